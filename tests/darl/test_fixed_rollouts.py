# SPDX-License-Identifier: Apache-2.0
"""Rewards, metrics and tables of rollouts with given ids equal a slow oracle: one sequence, one pass at a time."""

import copy
import math
import statistics
from typing import Any

import pandas as pd
import pytest
import torch

from tests.darl.helpers import make_trainer, references_dataset, serve_cases
from tests.darl.rollouts import (
    AFTER_THINK,
    BOXED,
    CASES,
    PATTERN,
    REFERENCES,
    Case,
    Expected,
    aggregated,
    encoded,
    expected_case,
    group_advantages,
    token_probabilities,
)
from tests.trainers.helpers import logged, record_outputs
from trl_diversity.likelihood import RowScores


RATIO = {"p0": 4.0, "p1": 2.0, "p2": None, "p3": 1.0}


def letters(completions: list, **kwargs: Any) -> list[float]:
    return [sum(character.isalpha() for character in text) / 100 for text in completions]


async def by_prompt(prompts: list, **kwargs: Any) -> list[float | None]:
    return [RATIO[prompt] for prompt in prompts]


def run(tmp_path, path, cases=CASES, trainer=None, **settings):
    """One step on all groups at once; the trainer, and what TRL's reward step gave."""
    rows = sum(map(len, cases.values()))
    built = make_trainer(
        tmp_path,
        path,
        train_dataset=references_dataset(tuple(cases)),
        trainer=trainer,
        **{"per_device_train_batch_size": rows, "num_generations": 4, "shuffle_dataset": False} | settings,
    )
    serve_cases(built, cases)
    outputs = record_outputs(built)
    built.train()
    return built, outputs[0]


def flat(cases):
    return [(prompt, case) for prompt, group in cases.items() for case in group]


def oracle(cases, policy, tokenizer, **settings) -> list[Expected]:
    return [
        expected_case(case, tokenizer(prompt)["input_ids"], policy, tokenizer, **settings)
        for prompt, case in flat(cases)
    ]


def baselines(policy, tokenizer, opening="<answer>", how="mean_prob"):
    """Likelihood of each reference right after its prompt and what opens an answer."""
    return {
        prompt: aggregated(
            token_probabilities(policy, tokenizer(prompt + opening)["input_ids"], encoded([reference], tokenizer)), how
        )
        for prompt, reference in REFERENCES.items()
    }


def assert_rewards(output, expected, groups_of=4):
    rewards = [one.reward for one in expected]
    assert output["rewards_per_func"][:, -1].tolist() == pytest.approx(rewards, abs=1e-5, nan_ok=True)
    advantages = [
        advantage
        for start in range(0, len(rewards), groups_of)
        for advantage in group_advantages(rewards[start : start + groups_of])
    ]
    assert output["advantages"].tolist() == pytest.approx(advantages, abs=1e-3)


def test_the_rollout_would_show_an_error(policy, tokenizer):
    """The likelihoods of the oracle are spread, and both sides of every rule are taken."""
    scored = [one for one in oracle(CASES, policy, tokenizer) if not math.isnan(one.reference)]
    assert len(scored) == 11
    assert max(one.reference for one in scored) - min(one.reference for one in scored) > 0.5
    assert any(one.delta > 0 and one.inside for one in scored)
    assert any(one.delta > 0 and not one.inside for one in scored)
    assert any(one.delta == 0 for one in scored)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"score_path": "fast", "score_tokens_per_forward": 64},
        {"score_path": "two_pass"},
        {"alpha": 0.7, "delta_weight": 0.5, "gamma": 1.2},
        {"threshold_type": "static", "tau": 0.3, "delta_weight": 2.0, "format_weight": 0.25},
        {"aggregation": "geometric_mean", "repetition_penalty_reward": True},
        {"aggregation": "product", "format_weight": 0.0},
        {"aggregation": "mean_logprob", "threshold_type": "static", "tau": 1.5, "delta_weight": 0.1},
        {"delta_weight": 0.0, "format_weight": 1.0},
    ],
    ids=lambda settings: " ".join(settings) or "defaults",
)
def test_rewards(tmp_path, policy_path, policy, tokenizer, settings):
    trainer, output = run(tmp_path, policy_path, **settings)
    known = {key: value for key, value in settings.items() if not key.startswith("score_")}
    assert_rewards(output, oracle(CASES, policy, tokenizer, **known))
    assert trainer.scorer.is_fast == (settings.get("score_path") != "two_pass")


@pytest.mark.parametrize("settings", [{}, {"aggregation": "geometric_mean", "delta_weight": 0.0, "alpha": 0.5}])
def test_debiased_rewards(tmp_path, policy_path, policy, tokenizer, settings):
    trainer, output = run(tmp_path, policy_path, debias=True, **settings)
    known = baselines(policy, tokenizer, how=settings.get("aggregation", "mean_prob"))
    expected = [
        expected_case(case, tokenizer(prompt)["input_ids"], policy, tokenizer, baseline=known[prompt], **settings)
        for prompt, case in flat(CASES)
    ]
    assert_rewards(output, expected)
    # The case FC-106: a likelihood below the baseline counts 0, not less.
    below = [one for (prompt, _), one in zip(flat(CASES), expected, strict=True) if one.reference < known[prompt]]
    assert below and all(one.reward >= 0 for one in below)
    assert sorted(trainer.darl_state.baseline.values()) == pytest.approx(sorted(known.values()), abs=1e-5)


@pytest.mark.parametrize(
    ("answer_format", "cases", "opening"),
    [
        ("boxed", BOXED, "\\boxed{"),
        ("after_think", AFTER_THINK, ""),
        (r"answer is: (\w+)\.", PATTERN, ""),
    ],
)
def test_answer_formats(tmp_path, policy_path, policy, tokenizer, answer_format, cases, opening):
    _, output = run(tmp_path, policy_path, cases, answer_format=answer_format, debias=True)
    known = baselines(policy, tokenizer, opening)
    expected = [
        expected_case(case, tokenizer(prompt)["input_ids"], policy, tokenizer, baseline=known[prompt])
        for prompt, case in flat(cases)
    ]
    assert_rewards(output, expected)


def test_format_without_thinking(tmp_path, policy_path, policy, tokenizer):
    """With `r1_nothink` the think block is no matter."""
    _, output = run(tmp_path, policy_path, format_style="r1_nothink")
    answered = [text.count("<answer>") == 1 == text.count("</answer>") for text in (c.text for _, c in flat(CASES))]
    ordered = [text.find("<answer>") < text.find("</answer>") for text in (c.text for _, c in flat(CASES))]
    expected = [
        expected_case(case, tokenizer(prompt)["input_ids"], policy, tokenizer, format_score=float(once and right))
        for (prompt, case), once, right in zip(flat(CASES), answered, ordered, strict=True)
    ]
    assert [one.reward for one in expected] != [one.reward for one in oracle(CASES, policy, tokenizer)]
    assert_rewards(output, expected)


def test_other_reward_functions_are_added_with_their_weights(tmp_path, policy_path, policy, tokenizer):
    trainer, output = run(
        tmp_path, policy_path, trainer={"reward_funcs": [letters, by_prompt]}, reward_weights=[0.5, -0.25]
    )
    expected = oracle(CASES, policy, tokenizer)
    for (prompt, case), one in zip(flat(CASES), expected, strict=True):
        one.reward += 0.5 * letters([case.text])[0] - 0.25 * (RATIO[prompt] or 0.0)
    assert trainer.reward_func_names == ["letters", "by_prompt", "darl"]
    assert_rewards(output, expected)
    by_function = output["rewards_per_func"].T.tolist()
    assert by_function[0] == pytest.approx([letters([case.text])[0] for _, case in flat(CASES)])
    assert by_function[1] == pytest.approx([RATIO[prompt] or math.nan for prompt, _ in flat(CASES)], nan_ok=True)


def test_second_step_uses_the_policy_of_that_step_and_the_first_baseline(tmp_path, policy_path, policy, tokenizer):
    trainer = make_trainer(
        tmp_path,
        policy_path,
        debias=True,
        max_steps=2,
        per_device_train_batch_size=16,
        shuffle_dataset=False,
        learning_rate=0.05,
    )
    serve_cases(trainer)
    outputs, states = record_outputs(trainer), []
    calculate = trainer._calculate_rewards

    def noted(*args: Any) -> torch.Tensor:
        states.append(copy.deepcopy(trainer.model.state_dict()))
        return calculate(*args)

    trainer._calculate_rewards = noted
    trainer.train()
    drifted = copy.deepcopy(policy)
    drifted.load_state_dict(states[1])
    known = baselines(policy, tokenizer)
    now, at_first = (
        [
            expected_case(case, tokenizer(prompt)["input_ids"], model, tokenizer, baseline=known[prompt])
            for prompt, case in flat(CASES)
        ]
        for model in (drifted, policy)
    )
    assert max(abs(one.reward - other.reward) for one, other in zip(now, at_first, strict=True)) > 1e-2
    assert_rewards(outputs[0], at_first)
    assert_rewards(outputs[1], now)


@pytest.fixture(scope="module")
def rollout(tmp_path_factory, policy_path):
    """One step with a table, and its folder."""
    folder = tmp_path_factory.mktemp("rollout")
    return *run(folder, policy_path, log_completions=True, num_completions_to_print=0, gamma=2.0), folder


@pytest.fixture(scope="module")
def expected(policy, tokenizer):
    return oracle(CASES, policy, tokenizer, gamma=2.0)


def test_metrics(rollout, expected):
    trainer, _, _ = rollout
    scored = [one for one in expected if not math.isnan(one.reference)]
    rewards = [one.reward for one in expected]
    wanted = {
        "darl/malformed_fraction": sum(case.malformed is not None for _, case in flat(CASES)) / 16,
        "darl/not_finite_fraction": 0.0,
        "darl/format_score": statistics.fmean(case.format_score for _, case in flat(CASES)),
        "darl/reference_prob": statistics.fmean(one.reference for one in scored),
        "darl/answer_prob": statistics.fmean(one.answer for one in scored),
        "darl/delta": statistics.fmean(one.delta for one in scored),
        "darl/bonus_fraction": sum(one.delta > 0 and one.inside for one in expected) / 16,
        "rewards/darl/mean": statistics.fmean(rewards),
        "rewards/darl/std": statistics.stdev(rewards),
        "reward": statistics.fmean(rewards),
    }
    entry = trainer.state.log_history[0]
    assert {key for key in entry if key.startswith("darl/")} == {key for key in wanted if key.startswith("darl/")}
    for key, value in wanted.items():
        assert entry[key] == pytest.approx(value, abs=1e-5), key
    assert 0 < wanted["darl/bonus_fraction"] < 1


def test_completions_table(rollout, expected):
    _, _, folder = rollout
    table = pd.read_parquet(folder / "completions" / "completions_00001.parquet")
    assert table["prompt"].tolist() == [prompt for prompt, _ in flat(CASES)]
    assert table["completion"].tolist() == [case.text for _, case in flat(CASES)]
    assert table["answer"].tolist() == [case.parsed for _, case in flat(CASES)]
    assert [None if pd.isna(value) else value for value in table["malformed"]] == [
        case.malformed for _, case in flat(CASES)
    ]
    for column, values in (
        ("reference_prob", [one.reference for one in expected]),
        ("answer_prob", [one.answer for one in expected]),
        ("darl", [one.reward for one in expected]),
    ):
        assert table[column].tolist() == pytest.approx(values, abs=1e-5, nan_ok=True), column


def break_rows(trainer, is_broken):
    """Let the model's output not be finite for some rows, as an overflow in half precision would."""
    score = trainer.scorer.score

    def scored(rows: list) -> list[RowScores]:
        return [
            RowScores(one.answer, (math.nan,) * len(one.reference)) if is_broken(row) else one
            for row, one in zip(rows, score(rows), strict=True)
        ]

    trainer.scorer.score = scored


@pytest.mark.parametrize("rewarded", [False, True], ids=["alone", "beside others"])
def test_a_row_that_is_not_finite_has_no_advantage(tmp_path, policy_path, policy, tokenizer, rewarded):
    trainer = make_trainer(
        tmp_path,
        policy_path,
        trainer={"reward_funcs": [letters]} if rewarded else None,
        per_device_train_batch_size=16,
        shuffle_dataset=False,
    )
    serve_cases(trainer)
    break_rows(trainer, lambda row: row.reference == "東京" and row.answer == "東京")
    outputs = record_outputs(trainer)
    trainer.train()
    expected = oracle(CASES, policy, tokenizer)
    broken = [case.parsed == "東京" for _, case in flat(CASES)].index(True)
    for (_, case), one in zip(flat(CASES), expected, strict=True):
        one.reward += letters([case.text])[0] if rewarded else 0.0
    expected[broken].reward = math.nan
    assert_rewards(outputs[0], expected)
    assert outputs[0]["rewards_per_func"][broken].isnan().all()
    assert outputs[0]["advantages"][broken] == 0
    assert logged(trainer, "darl/not_finite_fraction") == [pytest.approx(1 / 16)]
    assert logged(trainer, "darl/malformed_fraction") == [pytest.approx(5 / 16)]
    finite = [one.reference for index, one in enumerate(expected) if index != broken]
    known = [value for value in finite if not math.isnan(value)]
    assert logged(trainer, "darl/reference_prob") == [pytest.approx(statistics.fmean(known), abs=1e-5)]


@pytest.mark.parametrize("path", ["fast", "two_pass", "scorer"])
@pytest.mark.parametrize("debias", [False, True], ids=["", "debias"])
def test_no_finite_likelihood_at_all_is_an_error(tmp_path, policy_path, path, debias):
    """Malformed completions beside them do not hide it."""
    model = make_trainer(tmp_path, policy_path).model
    settings: dict[str, Any] = {"per_device_train_batch_size": 16, "debias": debias}
    if path == "scorer":
        settings["scorer_model"] = policy_path
    else:
        settings["score_path"] = path
    trainer = make_trainer(tmp_path, model, **settings)
    serve_cases(trainer)
    scored = trainer.model if path != "scorer" else trainer.scorer._scorer.model
    if path != "fast":
        scored.lm_head.weight.data[:] = math.nan
    else:  # the trial that chooses the path needs a sound model
        break_rows(trainer, lambda row: True)
    with pytest.raises(ValueError, match="Not one of 11 references has a finite likelihood"):
        trainer.train()


def test_all_malformed_is_no_error(tmp_path, policy_path):
    """A policy that has not learned the format yet: no likelihoods, rewards of the format alone."""
    silent = {prompt: [Case(["nothing "], [], [], malformed="no_tag")] * 4 for prompt in CASES}
    trainer, output = run(tmp_path, policy_path, silent)
    assert output["rewards_per_func"].tolist() == [[0.0]] * 16
    assert logged(trainer, "darl/malformed_fraction") == [1.0]
    assert logged(trainer, "darl/reference_prob") == []
