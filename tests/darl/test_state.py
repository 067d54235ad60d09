# SPDX-License-Identifier: Apache-2.0
"""The filter's moving average and the baseline: what they do in a run, and that a resumed run goes on with them."""

import json
import logging
import math
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl.trainer.utils import RepeatSampler

from tests.darl.helpers import make_trainer, references_dataset, serve_cases, serve_texts
from tests.darl.rollouts import group_advantages
from tests.trainers.helpers import logged, record_outputs, weights
from trl_diversity.trainers.darl_state import DarlState


RUN = {
    "per_device_train_batch_size": 16,
    "num_generations": 4,
    "max_completion_length": 32,
    "max_steps": 14,
    "save_strategy": "steps",
    "save_steps": 12,
    "std_filter_beta": 0.9,
    "debias": True,
    "learning_rate": 2e-3,
    "answer_format": "after_think",  # the tiny policy writes `</think>` often enough
    "delta_weight": 0.5,
    "format_weight": 0.0,
}


def letters(completions: list, **kwargs: Any) -> list[float | None]:
    return [0.01 * sum(character.isalpha() for character in text) for text in completions]


def build(tmp_path: Path, path: str, **settings: Any) -> Any:
    return make_trainer(tmp_path, path, **{**RUN, **settings})


def entries(trainer: Any) -> list[dict[str, float]]:
    """Everything that was logged on each step, but what depends on the clock."""
    return [
        {key: value for key, value in entry.items() if not any(word in key for word in ("time", "second"))}
        for entry in trainer.state.log_history
        if "reward" in entry
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, policy_path):
    """14 steps (and epochs) with sampled completions, a checkpoint after 12, and what the reward steps gave."""
    folder = tmp_path_factory.mktemp("whole")
    trainer = build(folder, policy_path)
    outputs, stds = record_outputs(trainer), record_stds(trainer)
    trainer.train()
    return trainer, list(zip(outputs, stds, strict=True)), folder / "checkpoint-12"


def record_stds(trainer: Any) -> list[list[float]]:
    """The standard deviations of the groups that the filter is asked about."""
    seen: list[list[float]] = []
    update = trainer.darl_state.std_filter.update
    trainer.darl_state.std_filter.update = lambda stds: seen.append(list(stds)) or update(stds)
    return seen


def expected_filter(stds: list[list[float]], beta: float) -> list[list[bool]]:
    """RLPR's filter in plain Python: which groups of each step are kept."""
    kept, means, average = [], [], math.nan
    for step, of_groups in enumerate(stds, start=1):
        kept.append([step < 11 or std >= beta * average for std in of_groups])
        mean = statistics.fmean(of_groups)
        if 6 <= step <= 10:
            means.append(mean)
            average = statistics.fmean(means)
        elif step > 10:
            average = 0.99 * average + 0.01 * mean
    return kept


def test_filter_in_a_run(whole):
    """Groups below the moving average lose their advantages, and those that stay keep theirs."""
    trainer, steps, _ = whole
    kept = expected_filter([stds for _, stds in steps], 0.9)
    assert any(not one for step in kept[12:] for one in step), "the filter drops groups after the checkpoint"
    assert any(one for step in kept[12:] for one in step)
    for (output, stds), step_kept in zip(steps, kept, strict=True):
        rows = output["rewards_per_func"].view(4, 4, -1)
        assert [not bool(group.isnan().all()) for group in rows] == step_kept
        advantages = output["advantages"].view(4, 4)
        for group, one, rewards, std in zip(advantages, step_kept, rows[..., -1].tolist(), stds, strict=True):
            if one:
                assert statistics.pstdev(rewards) == pytest.approx(std, abs=1e-6)
                assert group.tolist() == pytest.approx(group_advantages(rewards), abs=1e-3)
            else:
                assert group.tolist() == [0.0] * 4
    fractions = [1 - sum(step) / 4 for step in kept]
    assert logged(trainer, "darl/filtered_fraction") == pytest.approx(fractions)
    assert trainer.darl_state.std_filter.step == 14


def test_resumed_run_equals_the_whole_run(whole, tmp_path, policy_path):
    check_resumed(whole, tmp_path, policy_path)


def test_resumed_run_that_restores_callbacks_equals_the_whole_run(whole, tmp_path, policy_path):
    check_resumed(whole, tmp_path, policy_path, restore_callback_states_from_checkpoint=True)


def check_resumed(whole: Any, tmp_path: Path, policy_path: str, **settings: Any) -> None:
    trainer, _, checkpoint = whole
    torch.manual_seed(999)  # the state of the generator comes from the checkpoint
    resumed = build(tmp_path, policy_path, **settings)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert entries(resumed) == entries(trainer)
    assert [entry["step"] for entry in entries(resumed)[12:]] == [13, 14]
    assert any(entry["darl/filtered_fraction"] > 0 for entry in entries(resumed)[12:])
    assert resumed.darl_state.filter_state == trainer.darl_state.filter_state
    assert resumed.darl_state.baseline == trainer.darl_state.baseline
    for name, value in weights(resumed).items():
        assert torch.equal(value, trainer.model.get_parameter(name)), name
    (state,) = [callback for callback in resumed.callback_handler.callbacks if isinstance(callback, DarlState)]
    assert state is resumed.darl_state


@pytest.mark.parametrize("step", [2, 3], ids=["between epochs", "within the second epoch"])
def test_resumed_run_goes_on_with_the_prompts_of_its_epoch(tmp_path, policy_path, step):
    """The order of each epoch is TRL's, also where an earlier process has run the epochs before."""
    prompts = [f"p{number}" for number in range(8)]

    def run(folder: Path, **settings: Any) -> list[list[str]]:
        trainer = make_trainer(
            folder,
            policy_path,
            train_dataset=Dataset.from_dict({"prompt": prompts, "answer": ["x"] * 8}),
            per_device_train_batch_size=16,
            max_steps=6,
            save_strategy="steps",
            save_steps=step,
            seed=11,
        )
        serve_texts(trainer, {prompt: ["<answer>x</answer>"] for prompt in prompts})
        outputs = record_outputs(trainer)
        trainer.train(**settings)
        return [output["prompts"][::4] for output in outputs]

    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "parts", resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    sampler = RepeatSampler(prompts, mini_repeat_count=1, batch_size=4, seed=11)
    assert [prompt for batch in whole for prompt in batch] == [prompts[i] for _ in range(3) for i in sampler]
    assert resumed == whole[step:]
    assert whole[0] != whole[2]


def test_a_resumed_run_without_its_state_would_differ(whole, tmp_path, policy_path, caplog):
    """The check above can fail: without the moving average, nothing is filtered."""
    trainer, _, checkpoint = whole
    stripped = without_state(checkpoint, tmp_path)
    resumed = build(tmp_path / "resumed", policy_path, debias=False)
    with caplog.at_level(logging.WARNING):
        resumed.train(resume_from_checkpoint=str(stripped))
    assert "The checkpoint holds no state of Darl's standard-deviation filter" in caplog.text
    assert entries(resumed)[12:] != entries(trainer)[12:]
    assert [entry["darl/filtered_fraction"] for entry in entries(resumed)[12:]] == [0, 0]
    assert resumed.darl_state.std_filter.step == 2


def without_state(checkpoint: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a checkpoint as another trainer would have saved it, or with changes to our state."""
    copied = folder / "stripped" / checkpoint.name
    shutil.copytree(checkpoint, copied)
    path = copied / "trainer_state.json"
    state = json.loads(path.read_text())
    if changes:
        state["stateful_callbacks"]["DarlState"]["attributes"].update(changes)
    else:
        del state["stateful_callbacks"]["DarlState"]
    path.write_text(json.dumps(state))
    return copied


def test_a_checkpoint_of_a_run_without_filter_warns(whole, tmp_path, policy_path, caplog):
    _, _, checkpoint = whole
    stripped = without_state(checkpoint, tmp_path, filter_state=None)
    resumed = build(tmp_path / "resumed", policy_path)
    with caplog.at_level(logging.WARNING):
        resumed.train(resume_from_checkpoint=str(stripped))
    assert "The checkpoint holds no state of Darl's standard-deviation filter" in caplog.text


@pytest.mark.parametrize("changes", [{}, {"baseline": {}}], ids=["no state", "no baseline"])
def test_a_checkpoint_without_baseline_is_an_error(whole, tmp_path, policy_path, changes):
    _, _, checkpoint = whole
    stripped = without_state(checkpoint, tmp_path, **changes)
    resumed = build(tmp_path / "resumed", policy_path)
    with pytest.raises(ValueError, match="the checkpoint holds no likelihoods of the references under the initial"):
        resumed.train(resume_from_checkpoint=str(stripped))


def test_without_filter_and_baseline_nothing_is_missed(whole, tmp_path, policy_path, caplog):
    _, _, checkpoint = whole
    stripped = without_state(checkpoint, tmp_path)
    resumed = build(tmp_path / "resumed", policy_path, debias=False, std_filter_beta=None)
    with caplog.at_level(logging.WARNING):
        resumed.train(resume_from_checkpoint=str(stripped))
    assert "Darl" not in caplog.text
    assert not any("darl/filtered_fraction" in entry for entry in entries(resumed)[12:])


def test_saved_state_holds_plain_values(whole):
    trainer, _, checkpoint = whole

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    state = json.loads((checkpoint / "trainer_state.json").read_text(), parse_constant=refuse)
    saved = state["stateful_callbacks"]["DarlState"]
    assert saved["args"] == {"std_filter_beta": 0.9}
    assert set(saved["attributes"]) == {"filter_state", "baseline"}
    filter_state = saved["attributes"]["filter_state"]
    assert filter_state["step"] == 12 and filter_state["moving_average"] > 0
    assert saved["attributes"]["baseline"] == trainer.darl_state.baseline
    assert len(trainer.darl_state.baseline) == 4


def test_a_new_setting_of_the_filter_counts_after_resuming(whole, tmp_path, policy_path):
    _, _, checkpoint = whole
    resumed = build(tmp_path, policy_path, std_filter_beta=1e9)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    fractions = [entry["darl/filtered_fraction"] for entry in entries(resumed)[12:]]
    assert resumed.darl_state.std_filter.beta == 1e9
    assert fractions == [1, 1]


# One step of a run whose filter is at work already


def at_work(trainer: Any, average: float) -> None:
    trainer.darl_state.std_filter.load_state_dict({"step": 10, "moving_average": average, "averaged_steps": 5})


ONE_STEP = {"per_device_train_batch_size": 16, "shuffle_dataset": False, "std_filter_beta": 0.5}


def test_filtered_groups_are_nan_in_every_column(tmp_path, policy_path):
    trainer = make_trainer(
        tmp_path,
        policy_path,
        trainer={"reward_funcs": [letters]},
        log_completions=True,
        num_completions_to_print=0,
        **ONE_STEP,
    )
    serve_texts(
        trainer,
        {
            "p0": ["<answer>42</answer>"] * 4,  # no spread: dropped
            "p1": ["<answer>Paris</answer>", "word " * 9, "x", "<think>a</think><answer>Rome</answer>"],
            "p2": ["nothing"] * 4,  # dropped
            "p3": ["y" * 30, "", "z", "<answer>東京</answer>"],
        },
    )
    at_work(trainer, 0.01)
    outputs = record_outputs(trainer)
    trainer.train()
    rewards = outputs[0]["rewards_per_func"].view(4, 4, 2)
    assert [bool(group.isnan().all()) for group in rewards] == [True, False, True, False]
    assert not rewards[[1, 3]].isnan().any()
    advantages = outputs[0]["advantages"].view(4, 4)
    assert advantages[[0, 2]].abs().max() == 0 and advantages[[1, 3]].abs().min() > 0
    assert logged(trainer, "darl/filtered_fraction") == [0.5]
    # What was filtered is still measured and shown
    assert logged(trainer, "darl/malformed_fraction") == [pytest.approx((2 + 4 + 3) / 16)]
    assert not math.isnan(trainer._logs["extra"]["reference_prob"][0])


def test_all_groups_filtered(tmp_path, policy_path):
    trainer = make_trainer(tmp_path, policy_path, optim="sgd", **ONE_STEP)
    serve_cases(trainer)
    at_work(trainer, 1e9)
    before = weights(trainer)
    trainer.train()
    assert logged(trainer, "darl/filtered_fraction") == [1.0]
    assert logged(trainer, "reward") == [None]
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())
    json.dumps(trainer.state.log_history, allow_nan=False)


def test_the_reward_that_is_filtered_is_the_whole_reward(tmp_path, policy_path):
    """Also what other reward functions add, and the format."""
    trainer = make_trainer(tmp_path, policy_path, trainer={"reward_funcs": [letters]}, **ONE_STEP)
    serve_cases(trainer)
    outputs, seen = record_outputs(trainer), record_stds(trainer)
    trainer.train()
    rewards = outputs[0]["rewards_per_func"][:, -1].view(4, 4)
    assert seen == [pytest.approx([statistics.pstdev(group) for group in rewards.tolist()], abs=1e-6)]


def test_a_baseline_is_computed_once_and_for_each_row_once(tmp_path, policy_path):
    data = references_dataset(["p0", "p1"] * 8)
    trainer = make_trainer(
        tmp_path, policy_path, train_dataset=data, debias=True, max_steps=3, per_device_train_batch_size=8
    )
    serve_cases(trainer)
    calls = []
    score = trainer.score_rows
    trainer.score_rows = lambda rows: calls.append(len(rows)) or score(rows)
    trainer.train()
    assert len(calls) == 4
    assert calls[0] == 2


def test_baseline_of_an_evaluation_before_training_is_kept(tmp_path, policy_path):
    trainer = make_trainer(
        tmp_path,
        policy_path,
        trainer={"eval_dataset": references_dataset()},
        debias=True,
        per_device_eval_batch_size=4,
        learning_rate=0.1,
        max_steps=2,
    )
    serve_cases(trainer)
    trainer.evaluate()
    before = dict(trainer.darl_state.baseline)
    trainer.train()
    assert trainer.darl_state.baseline == before and len(before) == 4
