# SPDX-License-Identifier: Apache-2.0
"""The completions table holds each completion beside its own quality, diversity and cluster."""

import functools
import logging

import pandas as pd
import pytest
from datasets import Dataset

from tests.trainers.helpers import FixedDiversity, fix_completions, logged, make_trainer, text_of


TEXTS = {
    "p0": ["red", "RED", "blue", "green"],
    "p1": ["one", "two", "ONE", "One"],
    "p2": ["a", "b", "c", "d"],
    "p3": ["e", "e", "f", "F"],
    "q0": ["lone"],
    "q1": ["wolf"],
    "q2": ["star"],
}
CLUSTERS = {"red": 0, "RED": 0, "blue": 1, "green": 2, "one": 0, "two": 1, "ONE": 0, "One": 0}
CLUSTERS |= {"a": 0, "b": 1, "c": 2, "d": 3, "e": 0, "f": 1, "F": 1}
DIVERSITY = {"red": 2 / 3, "RED": 2 / 3, "blue": 1, "green": 1, "one": 1 / 3, "two": 1, "ONE": 1 / 3, "One": 1 / 3}
DIVERSITY |= {"a": 1, "b": 1, "c": 1, "d": 1, "e": 2 / 3, "f": 2 / 3, "F": 2 / 3}


def quality(text):
    return len(text) + ord(text[0]) / 128


def reward(completions, **kwargs):
    return [quality(text_of(completion)) for completion in completions]


def make(tmp_path, model, reward_funcs=reward, **settings):
    trainer = make_trainer(
        tmp_path,
        model,
        reward_funcs,
        train_dataset=Dataset.from_dict({"prompt": ["p0", "p1", "p2", "p3"]}),
        trainer_settings={"eval_dataset": Dataset.from_dict({"prompt": ["q0", "q1", "q2"]})},
        shuffle_dataset=False,
        log_completions=True,
        **settings,
    )
    fix_completions(trainer, TEXTS)
    return trainer


def table(folder, step):
    return pd.read_parquet(folder / "completions" / f"completions_{step:05d}.parquet")


def assert_rows_match(rows, clusters=True):
    assert len(rows)
    for row in rows.itertuples():
        assert row.quality == pytest.approx(quality(row.completion))
        if row.completion in CLUSTERS:
            assert row.completion in TEXTS[row.prompt]
            assert row.diversity == pytest.approx(DIVERSITY[row.completion])
            assert row.cluster == CLUSTERS[row.completion] if clusters else pd.isna(row.cluster)
            assert row.darling == pytest.approx(row.quality * row.diversity, rel=1e-6)
        else:  # one completion per prompt: nothing to compare it with
            assert pd.isna(row.diversity) and pd.isna(row.cluster)
            assert row.darling == pytest.approx(row.quality, rel=1e-6)


def test_columns_stay_beside_their_completions_with_evaluations_in_between(tmp_path, causal_lm_path):
    trainer = make(
        tmp_path,
        causal_lm_path,
        max_steps=4,
        gradient_accumulation_steps=2,  # two prompts per generation, kept in the table until the next one
        num_generations_eval=1,
        per_device_eval_batch_size=3,
        eval_strategy="steps",
        eval_steps=2,
    )
    trainer.train()
    for step, prompts in ((1, {"p0", "p1"}), (2, {"p3", "q0", "q1", "q2"}), (3, {"p0", "p1"})):
        rows = table(tmp_path, step)
        assert prompts <= set(rows["prompt"])
        assert_rows_match(rows)
    assert {"quality", "diversity", "cluster", "reward", "darling", "advantage", "step"} <= set(rows.columns)


def test_a_measure_without_clusters_leaves_that_column_empty(tmp_path, causal_lm_path):
    trainer = make(tmp_path, causal_lm_path, diversity=FixedDiversity([2 / 3, 2 / 3, 1.0, 1.0]))
    trainer.train()
    assert_rows_match(table(tmp_path, 1), clusters=False)
    assert not logged(trainer, "diversity/clusters_per_group")


def test_no_measure_logs_quality_alone(tmp_path, causal_lm_path):
    trainer = make(tmp_path, causal_lm_path, diversity_measure="none")
    trainer.train()
    rows = table(tmp_path, 1)
    assert rows["diversity"].isna().all() and rows["cluster"].isna().all()
    assert rows["quality"].tolist() == pytest.approx(rows["darling"].tolist())
    assert not any(key.startswith("diversity/") for entry in trainer.state.log_history for key in entry)


def test_evaluation_with_one_completion_is_explained_once(tmp_path, causal_lm_path, caplog):
    trainer = make(tmp_path, causal_lm_path, num_generations_eval=1, per_device_eval_batch_size=3)
    with caplog.at_level(logging.INFO, logger="trl_diversity"):
        trainer.evaluate()
        metrics = trainer.evaluate()
    notes = [record for record in caplog.records if "the reward is the quality" in record.getMessage()]
    assert len(notes) == 1
    assert metrics["eval_reward"] == pytest.approx(sum(map(quality, ("lone", "wolf", "star"))) / 3)


def test_a_reward_function_that_logs_columns_of_the_same_names(tmp_path, causal_lm_path):
    """TRL would append both to one column, which no longer fits the table."""

    def judge(column, completions, log_extra, log_metric, **kwargs):
        log_extra(column, [f"about {text_of(completion)}" for completion in completions])
        log_metric("judged", len(completions))
        return reward(completions)

    with pytest.raises(ValueError, match="'quality'.*another name"):
        make(tmp_path / "taken", causal_lm_path, lambda **kwargs: judge("quality", **kwargs)).train()

    trainer = make(tmp_path, causal_lm_path, functools.partial(judge, "remark"))
    trainer.train()
    rows = table(tmp_path, 1)
    assert_rows_match(rows)
    assert rows["remark"].tolist() == [f"about {text}" for text in rows["completion"]]
    assert logged(trainer, "judged") == [4.0]
