# SPDX-License-Identifier: Apache-2.0
"""Every option of the configuration changes the rewards of a real training step, as computed by hand."""

import math

import pytest
from datasets import Dataset

from tests.trainers.helpers import ExactText, fix_completions, logged, make_trainer, record_outputs, table_lookup


class Judge(ExactText):
    """Equal after lower-casing, and the listed pairs: not transitive."""

    threshold = 0.5
    SCORES = {("a", "b"): 0.9, ("b", "c"): 0.6}

    def score_pairs(self, pairs, prompts=None):
        exact = super().score_pairs(pairs, prompts)
        return [
            self.SCORES.get(pair, self.SCORES.get(pair[::-1], same)) for pair, same in zip(pairs, exact, strict=True)
        ]


def rewards(tmp_path, model, texts, quality, **settings):
    """The rewards of one group of given texts and qualities."""
    table = dict(zip(texts, quality, strict=True))
    trainer = make_trainer(
        tmp_path,
        model,
        table_lookup(table, "quality"),
        train_dataset=Dataset.from_dict({"prompt": ["p0"]}),
        **{"num_generations": len(texts), "per_device_train_batch_size": len(texts)} | settings,
    )
    fix_completions(trainer, {"p0": texts})
    outputs = record_outputs(trainer)
    trainer.train()
    return outputs[0]["rewards_per_func"][:, -1].tolist()


TEXTS = ["red", "RED", "blue", "green"]  # diversity 2/3, 2/3, 1, 1
QUALITY = [1.0, 2.0, 3.0, 0.5]
SIGMOID = [1 / (1 + math.exp(-value)) for value in (2 / 3, 1.0)]


def z(values):
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / (deviation + 1e-6) for value in values]


Z_QUALITY, Z_DIVERSITY = z(QUALITY), z([2 / 3, 2 / 3, 1, 1])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [2 / 3, 4 / 3, 3, 0.5]),
        ({"diversity_measure": "none"}, QUALITY),
        ({"diversity_floor": 0.8}, [0.8, 1.6, 3, 0.5]),
        ({"diversity_norm": "sigmoid"}, [SIGMOID[0], 2 * SIGMOID[0], 3 * SIGMOID[1], 0.5 * SIGMOID[1]]),
        ({"diversity_norm": "minmax"}, [0, 0, 3, 0.5]),
        ({"diversity_norm": "inverse_size"}, [0.5, 1, 3, 0.5]),
        ({"quality_shift": "group_min"}, [0.5 * 2 / 3, 1.5 * 2 / 3, 2.5, 0]),
        ({"quality_shift": "sigmoid"}, [0.731059 * 2 / 3, 0.880797 * 2 / 3, 0.952574, 0.622459]),
        ({"combine": "add"}, [Z_QUALITY[row] + Z_DIVERSITY[row] for row in range(4)]),
        ({"combine": "add", "diversity_weight": 3.0}, [Z_QUALITY[row] + 3 * Z_DIVERSITY[row] for row in range(4)]),
    ],
)
def test_combination(tmp_path, causal_lm_path, settings, expected):
    assert rewards(tmp_path, causal_lm_path, TEXTS, QUALITY, **settings) == pytest.approx(expected, abs=1e-5)


def test_an_added_quality_is_standardised_whatever_moves_it(tmp_path, causal_lm_path):
    """A recipe may keep its `quality_shift`: what moves a whole group has no effect here, what bends it has."""
    added = rewards(tmp_path, causal_lm_path, TEXTS, QUALITY, combine="add")
    for shift in ("none", "group_min"):
        moved = rewards(tmp_path, causal_lm_path, TEXTS, QUALITY, combine="add", quality_shift=shift)
        assert moved == pytest.approx(added, abs=1e-5)
    bent = rewards(tmp_path, causal_lm_path, TEXTS, QUALITY, combine="add", quality_shift="sigmoid")
    assert bent != pytest.approx(added, abs=1e-2)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1 * 2 / 3, 2 * 2 / 3, 3, 0]),  # lifted by 1
        ({"quality_shift": "none"}, [0 * 2 / 3, 1 * 2 / 3, 2, -1]),
    ],
)
def test_negative_quality(tmp_path, causal_lm_path, settings, expected):
    got = rewards(tmp_path, causal_lm_path, TEXTS, [0.0, 1.0, 2.0, -1.0], **settings)
    assert got == pytest.approx(expected, abs=1e-5)


def test_mostly_negative_quality_is_refused_unless_allowed(tmp_path, causal_lm_path):
    quality, paper = [-1.0, -2.0, -3.0, 1.0], {"quality_shift": "none"}
    with pytest.raises(ValueError, match="3 of 4 quality rewards are negative.*quality_shift.*allow_negative_quality"):
        rewards(tmp_path, causal_lm_path, TEXTS, quality, **paper)
    got = rewards(tmp_path, causal_lm_path, TEXTS, quality, **paper, allow_negative_quality=True)
    assert got == pytest.approx([-2 / 3, -4 / 3, -3, 1], abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"clustering": "closure"}, [1 / 3, 1 / 3, 1 / 3, 1]),
        ({"clustering": "greedy"}, [2 / 3, 2 / 3, 1, 1]),  # a takes b; c is compared with a alone
        ({"clustering": "pairwise"}, [2 / 3, 1 / 3, 2 / 3, 1]),  # a~b, b~c, not a~c
    ],
)
def test_clustering_of_judgements_that_are_not_transitive(tmp_path, causal_lm_path, settings, expected):
    got = rewards(tmp_path, causal_lm_path, ["a", "b", "c", "d"], [1.0] * 4, diversity=Judge(), **settings)
    assert got == pytest.approx(expected, abs=1e-5)


def test_short_answer_rule(tmp_path, causal_lm_path):
    texts, judge = ["buy now", "never buy now", "hold", "sell"], ExactText()
    assert rewards(tmp_path, causal_lm_path, texts, [1.0] * 4, diversity=judge) == pytest.approx([1] * 4)
    assert len(judge.pairs) == 6
    judge = ExactText()
    got = rewards(tmp_path, causal_lm_path, texts, [1.0] * 4, diversity=judge, short_answer_rule=True)
    assert got == pytest.approx([2 / 3, 2 / 3, 1, 1])
    assert judge.pairs == []


@pytest.mark.parametrize(("n", "expected"), [(1, [0.25, 0.25, 1, 0.5]), (2, [1 / 3, 1 / 3, 1, 1]), (4, [1] * 4)])
def test_ngrams(tmp_path, causal_lm_path, n, expected):
    texts = ["one two three four", "one two three five", "six", "seven one"]
    got = rewards(tmp_path, causal_lm_path, texts, [1.0] * 4, diversity_measure="ngram", ngram_n=n)
    assert got == pytest.approx(expected, abs=1e-5)


THOUGHTS = ["<think>x</think><answer>7</answer>", "<think>y</think>\n<answer>7</answer> ok", "7", "<think>z"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"diversity_text": "full"}, [1, 1, 1, 1]),
        # "<answer>7</answer>", the same and " ok", "7", and reasoning that never ends: an empty text
        ({"diversity_text": "after_think"}, [1, 1, 1, 0]),
        ({"diversity_text": "answer"}, [2 / 3, 2 / 3, 0, 0]),
        # The tokens of the tiny policy are bytes.
        ({"diversity_text": "last_tokens", "diversity_last_tokens": 1}, [1, 1, 1, 1]),
    ],
)
def test_diversity_text(tmp_path, causal_lm_path, settings, expected):
    got = rewards(tmp_path, causal_lm_path, THOUGHTS, [1.0] * 4, **settings)
    assert got == pytest.approx(expected, abs=1e-5)


def test_last_tokens_are_counted(tmp_path, causal_lm_path):
    texts, judge = ["long text A!", "other text a!", "third b!", "b!"], ExactText()
    settings = {"diversity": judge, "diversity_text": "last_tokens", "diversity_last_tokens": 2}
    got = rewards(tmp_path, causal_lm_path, texts, [1.0] * 4, **settings)
    assert got == pytest.approx([2 / 3] * 4)
    assert set(judge.pairs) <= {(first, second) for first in ("A!", "a!", "b!") for second in ("A!", "a!", "b!")}


@pytest.mark.parametrize(
    ("quality", "settings", "expected"),
    [
        # Clusters among the correct ones: red and RED are one of two, blue is alone; green is wrong.
        ([1.0, 2.0, 3.0, 0.0], {}, [0.5, 1.0, 3.0, 0.0]),
        ([1.0, 2.0, 0.0, 0.0], {}, [0.0, 0.0, 0.0, 0.0]),  # all correct ones say the same
        ([0.0, 0.0, 3.0, 0.0], {}, [0.0, 0.0, 3.0, 0.0]),  # a single correct one: diversity 1
        ([0.0, 0.0, 0.0, 0.0], {}, [0.0, 0.0, 0.0, 0.0]),
        ([1.0, 2.0, 3.0, 0.5], {}, [2 / 3, 4 / 3, 3.0, 0.5]),
        # The wrong ones get the floor, of a lifted quality: -1 becomes 0, 0 becomes 1, 3 becomes 4.
        ([0.0, 0.0, 3.0, -1.0], {"diversity_floor": 0.1}, [0.1, 0.1, 4.0, 0.0]),
    ],
)
def test_partition_correct_only(tmp_path, causal_lm_path, quality, settings, expected):
    judge = ExactText()
    settings = settings | {"partition_correct_only": True, "diversity": judge}
    got = rewards(tmp_path, causal_lm_path, TEXTS, quality, **settings)
    assert got == pytest.approx(expected, abs=1e-5)
    wrong = {text for text, value in zip(TEXTS, quality, strict=True) if value <= 0}
    assert not wrong & {text for pair in judge.pairs for text in pair}


def test_partition_correct_only_logs_the_clusters_of_the_correct_ones(tmp_path, causal_lm_path):
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        table_lookup(dict(zip(TEXTS, [1.0, 2.0, 3.0, 0.0], strict=True)), "quality"),
        train_dataset=Dataset.from_dict({"prompt": ["p0"]}),
        partition_correct_only=True,
    )
    fix_completions(trainer, {"p0": TEXTS})
    trainer.train()
    assert logged(trainer, "diversity/clusters_per_group") == [2.0]
