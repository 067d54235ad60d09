# SPDX-License-Identifier: Apache-2.0
"""Two ranks give the rewards that one process gives, whole groups included that lie on both."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.distributed.launch import WORLD_SIZE, Launch
from tests.distributed.oracle import clusters, expected_diversity, expected_quality, expected_rewards
from tests.distributed.scenarios import SCENARIOS, run_scenario


pytestmark = pytest.mark.distributed

PARTITIONED = [name for name, scenario in SCENARIOS.items() if scenario.equivalence and scenario.measure]
# The last batch of an uneven evaluation is longer on two ranks; reused generations are dealt to steps rank by rank.
SAME_BATCHES = [name for name in SCENARIOS if name != "uneven_evaluation"]
SAME_WEIGHTS = [name for name in SAME_BATCHES if name != "reused"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rewards")


@pytest.fixture(scope="module")
def one_process(folder: Path, causal_lm_path: str, reward_model_path: str) -> dict[str, Any]:
    """What one process sees of every scenario."""
    return {
        name: run_scenario(name, folder / "one_process", causal_lm_path, reward_model_path, n_ranks=1)
        for name in SCENARIOS
    }


@pytest.fixture(scope="module")
def two_ranks(folder: Path, causal_lm_path: str, reward_model_path: str) -> list[dict[str, Any]]:
    """What each of two ranks sees."""
    with Launch("tests.distributed.rewards_worker", folder, causal_lm_path, reward_model_path) as launch:
        launch.wait(timeout=240)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(WORLD_SIZE)]


@pytest.fixture(params=SCENARIOS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def batches(two_ranks: list[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Every reward step of a scenario, put together from both ranks."""
    for first, second in zip(*(rank["scenarios"][name]["batches"] for rank in two_ranks), strict=True):
        joined = {key: first[key] + second[key] for key in ("prompts", "completions", "advantages")}
        yield joined | {"rewards": torch.tensor(first["rewards"]), "training": first["training"]}


def group_size(name: str, training: bool) -> int:
    config = SCENARIOS[name].config
    return config["num_generations"] if training else config["num_generations_eval"]


def groups(batch: dict[str, Any], size: int) -> Iterator[tuple[str, list[str], torch.Tensor]]:
    """Prompt, completions and rewards of every group of a batch."""
    for start in range(0, len(batch["prompts"]), size):
        assert len(set(batch["prompts"][start : start + size])) == 1, "the batch is not ordered by prompts"
        rows = slice(start, start + size)
        yield batch["prompts"][start], batch["completions"][rows], batch["rewards"][rows]


def test_world(two_ranks: list[dict[str, Any]], one_process: dict[str, Any], name: str) -> None:
    assert one_process[name]["world_size"] == 1
    for rank in two_ranks:
        assert rank["scenarios"][name]["world_size"] == WORLD_SIZE
        assert rank["scenarios"][name]["wrapper"] == "DistributedDataParallel"


def test_both_ranks_end_with_the_same_numbers(two_ranks: list[dict[str, Any]], name: str) -> None:
    first, second = (rank["scenarios"][name] for rank in two_ranks)
    for mine, other in zip(first["batches"], second["batches"], strict=True):
        torch.testing.assert_close(
            torch.tensor(mine["rewards"]), torch.tensor(other["rewards"]), rtol=0, atol=0, equal_nan=True
        )
    assert first["logs"] == second["logs"]
    assert torch.equal(first["weights"], second["weights"])


@pytest.mark.parametrize("name", SAME_BATCHES, indirect=True)
def test_rewards_equal_those_of_one_process(
    two_ranks: list[dict[str, Any]], one_process: dict[str, Any], name: str
) -> None:
    for joined, alone in zip(batches(two_ranks, name), one_process[name]["batches"], strict=True):
        assert joined["prompts"] == alone["prompts"]
        assert joined["completions"] == alone["completions"]
        rewards = torch.tensor(alone["rewards"])
        # Only the reward model's scores may differ, by rounding: its batches are padded differently.
        torch.testing.assert_close(joined["rewards"], rewards, rtol=0, atol=1e-5, equal_nan=True)
        torch.testing.assert_close(joined["advantages"], alone["advantages"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SAME_BATCHES, indirect=True)
def test_metrics_equal_those_of_one_process(
    two_ranks: list[dict[str, Any]], one_process: dict[str, Any], name: str
) -> None:
    ours = ("reward", "rewards/", "diversity/", "quality/", "eval_reward", "eval_diversity/", "eval_quality/")
    compared = set()
    for logged, alone in zip(two_ranks[0]["scenarios"][name]["logs"], one_process[name]["logs"], strict=True):
        assert set(logged) == set(alone)
        for key in filter(lambda key: key.startswith(ours), logged):
            assert logged[key] == pytest.approx(alone[key], abs=1e-5, nan_ok=True), key
            compared.add(key)
    assert {"reward", "quality/mean", "rewards/darling/mean"} <= compared
    assert name == "no_diversity" or "diversity/mean" in compared
    assert ("eval_diversity/mean" in compared) == (name == "evaluation")


@pytest.mark.parametrize("name", SAME_WEIGHTS, indirect=True)
def test_trained_weights_equal_those_of_one_process(
    two_ranks: list[dict[str, Any]], one_process: dict[str, Any], name: str
) -> None:
    weights, alone = two_ranks[0]["scenarios"][name]["weights"], one_process[name]["weights"]
    if name != "letters":  # where all rewards are equal there is nothing to learn
        assert one_process[name]["moved"] > 1e-3
    torch.testing.assert_close(weights, alone, rtol=0, atol=1e-6)


def test_every_group_is_scored_on_exactly_one_rank(two_ranks: list[dict[str, Any]], name: str) -> None:
    scenario = SCENARIOS[name]
    scored = [
        (group.prompt, tuple(group.completions)) for rank in two_ranks for group in rank["scenarios"][name]["scored"]
    ]
    expected = []
    for batch in batches(two_ranks, name):
        size = group_size(name, batch["training"])
        for prompt, completions, rewards in groups(batch, size):
            if scenario.config.get("partition_correct_only"):
                completions = [text for text, row in zip(completions, rewards, strict=True) if row[0] > 0]
            if size > 1 and completions and scenario.measure is not None:
                expected.append((prompt, tuple(completions)))
    assert sorted(scored) == sorted(expected)


def test_work_is_dealt_out(two_ranks: list[dict[str, Any]]) -> None:
    scored = {
        name: [len(rank["scenarios"][name]["scored"]) for rank in two_ranks]
        for name in ("one_group", "cut_group", "correct_only", "unlikeliness")
    }
    assert 0 in scored.pop("one_group"), "with one group, one rank has nothing to score"
    assert all(all(counts) for counts in scored.values()), scored


@pytest.mark.parametrize("name", PARTITIONED, indirect=True)
def test_rewards_equal_quality_times_diversity(two_ranks: list[dict[str, Any]], name: str) -> None:
    scenario, checked = SCENARIOS[name], 0
    for batch in batches(two_ranks, name):
        size = group_size(name, batch["training"])
        for _, completions, rewards in groups(batch, size):
            quality = [expected_quality(scenario, row[:-1].tolist()) for row in rewards]
            expected = quality if size == 1 else expected_rewards(scenario, completions, quality)
            assert rewards[:, -1].tolist() == pytest.approx(expected, abs=1e-6)
            checked += 1
    assert checked >= 2


def test_quality_columns_are_those_of_the_functions(two_ranks: list[dict[str, Any]]) -> None:
    for batch in batches(two_ranks, "one_group"):
        columns = batch["rewards"].T
        assert columns[0].tolist() == pytest.approx([len(text) / 10 for text in batch["completions"]])
        is_left_out = [bool(value) for value in columns[1].isnan()]
        assert is_left_out == ["river" in text for text in batch["completions"]]
        assert columns[2].std() > 0, "the reward model tells completions apart"
    for rank in two_ranks:  # the case FC-053, as far as one process and DDP show it
        assert rank["scenarios"]["one_group"]["reward_model_training"] == [False]


def test_unlikeliness_ranks_by_the_policys_likelihood(two_ranks: list[dict[str, Any]], causal_lm_path: str) -> None:
    """The first step, whose policy is the one that was saved: rank by one forward pass per completion."""
    model = AutoModelForCausalLM.from_pretrained(causal_lm_path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(causal_lm_path)
    batch = next(batches(two_ranks, "unlikeliness"))
    for prompt, completions, rewards in groups(batch, 6):
        logprobs = [_mean_logprob(model, tokenizer, prompt, text) for text in completions]
        for text, logprob, row in zip(completions, logprobs, rewards, strict=True):
            equally_likely = [other for other in logprobs if abs(other - logprob) < 1e-6]
            less_likely = [other for other in logprobs if other < logprob - 1e-6]
            place = len(less_likely) + (len(equally_likely) - 1) / 2
            assert row[-1].item() == pytest.approx(len(text) / 10 * (1 - 0.25 * place / 6), abs=1e-6)


def _mean_logprob(model: Any, tokenizer: Any, prompt: str, text: str) -> float:
    prompt_ids = tokenizer(prompt)["input_ids"]
    ids = torch.tensor([[*prompt_ids, *tokenizer.encode(text), tokenizer.eos_token_id]])
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    return logprobs[len(prompt_ids) - 1 :].mean().item()


def test_letters_of_both_ranks_are_one_group(two_ranks: list[dict[str, Any]]) -> None:
    """The case FC-001: A B C D on either rank are four clusters of two; a partition per rank would give 1."""
    for batch in batches(two_ranks, "letters"):
        assert batch["completions"] == ["A", "B", "C", "D"] * 2
        assert batch["rewards"][:, -1].tolist() == pytest.approx([6 / 7] * 8)
    assert two_ranks[0]["scenarios"]["letters"]["logs"][0]["diversity/clusters_per_group"] == 4


def test_completions_table(folder: Path, two_ranks: list[dict[str, Any]], one_process: dict[str, Any]) -> None:
    for name in ("one_group", "cut_group", "correct_only"):
        scenario = SCENARIOS[name]
        tables = [pd.read_parquet(folder / run / name / "completions") for run in ("two_ranks", "one_process")]
        pd.testing.assert_frame_equal(*tables, rtol=0, atol=1e-5)
        table = tables[0]
        assert len(table) == sum(len(batch["prompts"]) for batch in batches(two_ranks, name))
        for _, group in table.groupby([table["step"], table["prompt"].map(str)], sort=False):
            texts = [entry if isinstance(entry, str) else entry[0]["content"] for entry in group["completion"]]
            columns = group[two_ranks[0]["scenarios"][name]["columns"][:-1]].values.tolist()
            quality = [expected_quality(scenario, row) for row in columns]
            assert group["quality"].tolist() == pytest.approx(quality, abs=1e-5)
            assert group["diversity"].tolist() == pytest.approx(expected_diversity(scenario, texts, quality))
            reward = group["darling"]
            assert group["advantage"].tolist() == pytest.approx((reward - reward.mean()).tolist(), abs=1e-5)
            if name != "correct_only":
                members = [set(group["cluster"][group["cluster"] == label].index) for label in group["cluster"]]
                first = group.index[0]
                expected = [{first + i for i in cluster} for cluster in clusters(scenario, texts)]
                assert members == expected


def test_gathered_lists_keep_their_strings_and_their_order(two_ranks: list[dict[str, Any]]) -> None:
    """The case FC-057."""
    for rank in two_ranks:
        assert rank["gathered"] == [
            ["abc", "d", "e", "fg"],
            ["abc", "de"],
            ["abc"],
            [["nested", "list"], None],
        ]
