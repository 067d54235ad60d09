# SPDX-License-Identifier: Apache-2.0
"""Two ranks give what one process gives, with unequal and with no work, sharded or not, and fail together."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.darl.failures import MESSAGES
from tests.darl.rollouts import CASES, encoded, token_probabilities
from tests.darl.scenarios import SCENARIOS, SILENT, run_scenario
from tests.darl.sharded import training_steps
from tests.darl.taught import save_taught
from tests.distributed.launch import WORLD_SIZE, Launch
from trl_diversity.trainers.references import row_key


pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two_ranks")


@pytest.fixture(scope="module")
def long_policy_path(folder: Path) -> str:
    """The policy with room for a reference of 900 tokens."""
    return save_taught(folder / "policy", max_position_embeddings=2048)


@pytest.fixture(scope="module")
def launch(folder: Path, long_policy_path: str) -> Iterator[Launch]:
    with Launch("tests.darl.worker", folder, long_policy_path) as launch:
        yield launch


@pytest.fixture(scope="module")
def one_process(launch: Launch, folder: Path, long_policy_path: str) -> dict[str, Any]:
    """What one process sees of every scenario, while the two ranks are at work."""
    return {name: run_scenario(name, folder / "one_process", long_policy_path, n_ranks=1) for name in SCENARIOS}


@pytest.fixture(scope="module")
def two_ranks(launch: Launch, folder: Path, one_process: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of two ranks sees."""
    launch.wait(timeout=240)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(WORLD_SIZE)]


@pytest.fixture(params=SCENARIOS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def of_both(two_ranks: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [rank["scenarios"][name] for rank in two_ranks]


def batches(two_ranks: list[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Every reward step, put together from both ranks."""
    for first, second in zip(*(rank["batches"] for rank in of_both(two_ranks, name)), strict=True):
        yield {
            "prompts": first["prompts"] + second["prompts"],
            "completions": first["completions"] + second["completions"],
            "rewards": first["rewards"],
            "advantages": torch.cat([first["advantages"], second["advantages"]]),
        }


def test_world(two_ranks, one_process, name):
    assert one_process[name]["world_size"] == 1
    for rank in of_both(two_ranks, name):
        assert rank["world_size"] == WORLD_SIZE
        assert rank["wrapper"] == "DistributedDataParallel"


def test_both_ranks_end_with_the_same_numbers(two_ranks, name):
    first, second = of_both(two_ranks, name)
    for mine, other in zip(first["batches"], second["batches"], strict=True):
        torch.testing.assert_close(mine["rewards"], other["rewards"], rtol=0, atol=0, equal_nan=True)
    for key in ("filter_state", "baseline", "logs"):
        assert first[key] == second[key], key
    assert torch.equal(first["weights"], second["weights"])


def test_rewards_equal_those_of_one_process(two_ranks, one_process, name):
    joined = list(batches(two_ranks, name))
    alone = one_process[name]["batches"]
    if SCENARIOS[name].evaluate:  # the last batch of an uneven evaluation is longer on two ranks
        joined, alone = (steps[: one_process[name]["n_training_steps"]] for steps in (joined, alone))
    assert len(joined) == len(alone) >= 1
    for both, one in zip(joined, alone, strict=True):
        assert both["prompts"] == one["prompts"]
        assert both["completions"] == one["completions"]
        torch.testing.assert_close(both["rewards"], one["rewards"], rtol=0, atol=1e-5, equal_nan=True)
        torch.testing.assert_close(both["advantages"], one["advantages"], rtol=0, atol=1e-3)


def test_metrics_state_and_weights_equal_those_of_one_process(two_ranks, one_process, name):
    both, alone = of_both(two_ranks, name)[0], one_process[name]
    compared = set()
    for logged, expected in zip(both["logs"], alone["logs"], strict=True):
        assert set(logged) == set(expected)
        for key in logged:
            if key.startswith(("reward", "darl/")):
                assert logged[key] == pytest.approx(expected[key], abs=1e-5), key
                compared.add(key)
    assert {"reward", "rewards/darl/mean", "darl/malformed_fraction"} <= compared
    assert both["baseline"] == pytest.approx(alone["baseline"], abs=1e-5)
    if alone["filter_state"] is not None:
        assert both["filter_state"] == pytest.approx(alone["filter_state"], abs=1e-5)
    torch.testing.assert_close(both["weights"], alone["weights"], rtol=0, atol=1e-5)
    assert alone["moved"] > 1e-4 or name == "all_malformed"


def test_the_scenarios_are_what_they_are_said_to_be(two_ranks, one_process):
    """Work is unequal or missing, the filter drops some groups and keeps some, evaluation is uneven."""
    (first, second) = of_both(two_ranks, "empty_rank")
    assert SILENT not in first["batches"][0]["completions"]
    assert set(second["batches"][0]["completions"]) == {SILENT}
    assert len(first["baseline"]) == 0
    everything = of_both(two_ranks, "everything")
    assert everything[0]["filter_state"]["step"] == 12
    fractions = [entry["darl/filtered_fraction"] for entry in everything[0]["logs"] if "reward" in entry]
    assert any(0 < fraction < 1 for fraction in fractions)
    assert len(everything[0]["baseline"]) == 5
    rows = [len(step["prompts"]) for step in everything[0]["batches"]]
    assert rows == [9, 9, *[3] * len(rows[2:])]
    assert any(len(set(step["prompts"])) > 1 for step in everything[0]["batches"]), "a group lies on both ranks"
    assert {len(text) > 100 for text in one_process["unequal_completions"]["batches"][0]["completions"]} == {
        True,
        False,
    }


def test_scoring_calls_the_wrapped_policy_equally_often_on_both_ranks(two_ranks, name):
    """The cases FC-050 and FC-054."""
    first, second = of_both(two_ranks, name)
    if name == "frozen_scorer":
        assert first["calls"] == second["calls"] == []
        return
    assert set(first["calls"]) == {"DistributedDataParallel"}
    assert len(first["calls"]) == len(second["calls"]) >= 2
    if name == "unequal_references":  # six short ones fill two calls or three, and two long ones a call each
        assert len(first["calls"]) > 10


def test_references_of_900_tokens_are_scored(two_ranks, long_policy_path):
    """The case FC-050: the prefixes are short, the reference of the fifth prompt is not."""
    policy = AutoModelForCausalLM.from_pretrained(long_policy_path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(long_policy_path)
    batch = next(batches(two_ranks, "unequal_references"))
    table = of_both(two_ranks, "unequal_references")[0]["table"]
    assert set(table["malformed"]) == {None}
    row = batch["prompts"].index("p4")
    assert row >= 8, "it lies on rank 1"
    text = batch["completions"][row]
    prefix = tokenizer("p4" + text[: text.index("<answer>") + len("<answer>")])["input_ids"]
    expected = token_probabilities(policy, prefix, encoded(["abc" * 300], tokenizer))
    assert len(expected) == 900
    baseline = token_probabilities(policy, tokenizer("p4<answer>")["input_ids"], encoded(["abc" * 300], tokenizer))
    likelihood = max((sum(expected) - sum(baseline)) / 900, 0.0)
    assert batch["rewards"][row, -1].item() == pytest.approx(0.9 * likelihood + 0.1, abs=1e-5)
    known = of_both(two_ranks, "unequal_references")[0]["baseline"]
    assert known[row_key("p4", "abc" * 300)] == pytest.approx(sum(baseline) / 900, abs=1e-5)


@pytest.mark.parametrize("scenario", ["empty_rank", "everything"])
def test_completions_table(folder, two_ranks, one_process, scenario):
    tables = [
        pd.read_parquet(folder / run / scenario / "completions" / "completions_00001.parquet")
        for run in ("two_ranks", "one_process")
    ]
    pd.testing.assert_frame_equal(*tables, rtol=0, atol=1e-3)
    assert {"answer", "reference_prob", "answer_prob", "malformed", "darl"} <= set(tables[0])
    for text, answer in zip(tables[0]["completion"], tables[0]["answer"], strict=True):
        assert answer == ("" if text == SILENT else text.split("<answer>")[1].removesuffix("</answer>"))


# Failures


@pytest.mark.parametrize("case", MESSAGES)
def test_a_failure_on_one_rank_is_told_on_both(two_ranks, case):
    healthy, failed = (rank["failures"][case] for rank in two_ranks)
    assert MESSAGES[case] in failed["text"] and "rank 1 failed" not in failed["text"]
    assert healthy["type"] == "RuntimeError"
    assert healthy["text"].startswith(f"rank 1 failed with {failed['type']}:")
    assert MESSAGES[case] in healthy["text"]
    assert healthy["wrapper"] == failed["wrapper"] == "DistributedDataParallel"
    if case == "reward function":
        assert "Raised by the reward function 'failing'" in failed["notes"]


# Shards


@pytest.mark.parametrize("path", ["fast", "two_pass"])
def test_a_sharded_policy_scores_like_a_whole_one(two_ranks, path, long_policy_path):
    """The case FC-054. Rank 1 has nothing to score."""
    policy = AutoModelForCausalLM.from_pretrained(long_policy_path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(long_policy_path)
    first, second = (rank["sharded"][path] for rank in two_ranks)
    assert second["scores"] == []
    assert first["training"] and second["training"]
    rows = [(prompt, case) for prompt in ("p0", "p1", "p3") for case in CASES[prompt] if not case.malformed]
    assert len(first["scores"]) == len(rows) == 9
    for (answer, reference), (prompt, case) in zip(first["scores"], rows, strict=True):
        prefix = [*tokenizer(prompt)["input_ids"], *encoded(case.before, tokenizer)]
        assert answer == pytest.approx(token_probabilities(policy, prefix, encoded(case.answer, tokenizer)), abs=1e-5)
        assert reference == pytest.approx(
            token_probabilities(policy, [*prefix, *encoded(case.lead, tokenizer)], encoded(case.reference, tokenizer)),
            abs=1e-5,
        )


def test_steps_of_the_trainer_with_a_sharded_policy(two_ranks, folder, long_policy_path):
    alone = training_steps(long_policy_path, folder, n_ranks=1, is_sharded=False)
    for rank, steps in enumerate(rank["sharded"]["steps"] for rank in two_ranks):
        assert steps["wrapper"].startswith("FSDP")
        assert steps["calls"] and set(steps["calls"]) == {steps["wrapper"]}
        for sharded, whole in zip(steps["rewards"], alone["rewards"], strict=True):
            torch.testing.assert_close(sharded, whole, rtol=0, atol=1e-4)
        for sharded, whole in zip(steps["advantages"], alone["advantages"], strict=True):
            torch.testing.assert_close(sharded, whole[4 * rank : 4 * rank + 4], rtol=0, atol=1e-2)
        torch.testing.assert_close(steps["weights"], alone["weights"], rtol=0, atol=1e-4)
    assert not torch.allclose(alone["rewards"][0], alone["rewards"][1], atol=1e-3)
