# SPDX-License-Identifier: Apache-2.0
"""Advantages and logged numbers of a rollout with given texts, recomputed outside in plain Python."""

import math
import statistics

import pytest
from datasets import Dataset

from tests.trainers.helpers import (
    ExactText,
    fix_completions,
    logged,
    make_trainer,
    record_outputs,
    table_lookup,
)


TEXTS = {
    "p0": ["red", "RED", "blue", "green"],
    "p1": ["sun", "sun", "moon", ""],
    "p2": ["same", "same", "same", "same"],
    "p3": ["bad", "worse", "Bad", "awful"],
}
# What the two reward functions give. `None`: this function does not score it. "moon" is scored by none.
HELPFUL = {"red": 1.0, "RED": 0.5, "blue": None, "green": 0.25, "sun": 2.0, "moon": None, "": 1.0, "same": 1.0}
HELPFUL |= {"bad": -1.0, "worse": -3.0, "Bad": -1.0, "awful": 0.5}
SHORT = {"red": 0.5, "RED": 0.0, "blue": 1.0, "green": 1.0, "sun": None, "moon": None, "": 4.0, "same": 0.0}
SHORT |= {"bad": 1.0, "worse": 0.5, "Bad": 1.0, "awful": None}
WEIGHTS = [2.0, 0.5]


def oracle_quality(text):
    given = [(weight, table[text]) for table, weight in zip((HELPFUL, SHORT), WEIGHTS, strict=True)]
    scored = [weight * value for weight, value in given if value is not None]
    return sum(scored) if scored else math.nan


def oracle_diversity(texts, index):
    others = [text for position, text in enumerate(texts) if position != index]
    return 0.0 if not texts[index] else sum(text.lower() != texts[index].lower() for text in others) / len(others)


def oracle_rewards(texts):
    quality = [oracle_quality(text) for text in texts]
    lift = -min(0.0, *(value for value in quality if value == value))
    return [(value + lift) * oracle_diversity(texts, index) for index, value in enumerate(quality)]


def oracle_advantages(texts, scale=False):
    rewards = oracle_rewards(texts)
    known = [value for value in rewards if value == value]
    mean, deviation = statistics.fmean(known), statistics.stdev(known)
    return [0.0 if value != value else (value - mean) / (deviation + 1e-4 if scale else 1.0) for value in rewards]


def run(tmp_path, model, **settings):
    trainer = make_trainer(
        tmp_path,
        model,
        [table_lookup(HELPFUL, "helpful"), table_lookup(SHORT, "short")],
        train_dataset=Dataset.from_dict({"prompt": list(TEXTS)}),
        reward_weights=WEIGHTS,
        shuffle_dataset=False,
        per_device_train_batch_size=16,
        **settings,
    )
    fix_completions(trainer, TEXTS)
    outputs = record_outputs(trainer)
    trainer.train()
    (output,) = outputs
    assert output["completions"] == [text for texts in TEXTS.values() for text in texts]
    return trainer, output


@pytest.fixture(scope="module")
def rollout(tmp_path_factory, causal_lm_path):
    """One generation of all four groups, and the equivalence model that was asked."""
    model = ExactText()
    return *run(tmp_path_factory.mktemp("rollout"), causal_lm_path, diversity=model), model


def flat(per_group):
    return [value for texts in TEXTS.values() for value in per_group(texts)]


def known_values(values):
    return [value for value in values if value == value]


def test_the_oracle_is_the_worked_example_of_the_paper():
    assert [oracle_diversity(TEXTS["p0"], index) for index in range(4)] == pytest.approx([2 / 3, 2 / 3, 1, 1])
    assert oracle_rewards(TEXTS["p0"]) == pytest.approx([2.25 * 2 / 3, 1.0 * 2 / 3, 0.5, 1.0])


def test_advantages_are_reward_minus_group_mean(rollout):
    _, output, _ = rollout
    assert output["advantages"].tolist() == pytest.approx(flat(oracle_advantages), abs=1e-6)


def test_a_completion_that_nothing_scores_has_no_advantage_but_counts_as_a_member(rollout):
    _, output, _ = rollout
    moon = output["completions"].index("moon")
    assert output["advantages"][moon] == 0
    assert output["rewards_per_func"][moon].isnan().all()
    # Without the moon, two equal suns and an empty text would have a diversity of 1/2.
    assert output["rewards_per_func"][moon - 1, -1].item() == pytest.approx(4.0 * 2 / 3)


def test_columns_of_the_hook(rollout):
    trainer, output, _ = rollout
    assert trainer.reward_func_names == ["helpful", "short", "darling"]
    expected = flat(lambda texts: [HELPFUL[text] for text in texts])
    for value, wanted in zip(output["rewards_per_func"][:, 0].tolist(), expected, strict=True):
        assert (value != value) if wanted is None else value == pytest.approx(wanted)
    darling = output["rewards_per_func"][:, 2].tolist()
    assert known_values(darling) == pytest.approx(known_values(flat(oracle_rewards)))


def test_logged_rewards(rollout):
    trainer, _, _ = rollout
    means = {
        "rewards/helpful/mean": [HELPFUL[text] for texts in TEXTS.values() for text in texts],
        "rewards/short/mean": [SHORT[text] for texts in TEXTS.values() for text in texts],
        "rewards/darling/mean": known_values(flat(oracle_rewards)),
        "reward": known_values(flat(oracle_rewards)),
        "quality/mean": known_values([oracle_quality(text) for texts in TEXTS.values() for text in texts]),
    }
    for key, values in means.items():
        expected = statistics.fmean(value for value in values if value is not None)
        assert logged(trainer, key) == [pytest.approx(expected, abs=1e-6)], key
    quality = known_values([oracle_quality(text) for texts in TEXTS.values() for text in texts])
    assert logged(trainer, "quality/negative_fraction") == [pytest.approx(sum(q < 0 for q in quality) / len(quality))]


def test_logged_diversity(rollout):
    trainer, _, model = rollout
    expected = {
        "diversity/mean": statistics.fmean(
            oracle_diversity(texts, index) for texts in TEXTS.values() for index in range(4)
        ),
        "diversity/clusters_per_group": (3 + 3 + 1 + 3) / 4,  # the empty text is a cluster of its own
        "diversity/collapsed_groups": 1 / 4,  # p2
        "diversity/zero_std_groups": 1 / 4,
        "frac_reward_zero_std": 1 / 4,
        "diversity/pairs_scored": len(model.pairs),
        "diversity/pairs_skipped": 4 * 6 - len(model.pairs),
    }
    for key, value in expected.items():
        assert logged(trainer, key) == [pytest.approx(value, abs=1e-6)], key
    assert logged(trainer, "diversity/seconds")[0] >= 0
    assert not any("sun" in pair and "same" in pair for pair in model.pairs)  # never across groups
    assert set(model.prompts) == {"p0", "p1", "p3"}  # p2 has one distinct text: nothing to ask


def test_scaled_by_the_deviation_of_the_group(tmp_path, causal_lm_path):
    _, output = run(tmp_path, causal_lm_path, scale_rewards="group")
    expected = flat(lambda texts: [0.0] * 4 if texts == TEXTS["p2"] else oracle_advantages(texts, scale=True))
    assert output["advantages"].tolist() == pytest.approx(expected, abs=1e-5)


def test_only_the_last_column_is_optimised(rollout):
    trainer, _, _ = rollout
    assert trainer.reward_weights.tolist() == [0, 0, 1]
    assert trainer.quality_weights.tolist() == WEIGHTS
