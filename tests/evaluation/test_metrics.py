# SPDX-License-Identifier: Apache-2.0
"""pass@k against exact fractions and all subsets; clusters and utility by hand and against NoveltyBench's rule."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from trl_diversity.evaluation import distinct, novelty_utility, pass_at_k, reward_to_quality


def test_pass_at_k_is_the_exact_fraction():
    """A product of fractions, drawing one wrong sample after the other, for all 0 <= c <= n <= 40 and k <= n."""
    for n in range(1, 41):
        for c in range(n + 1):
            all_wrong = Fraction(1)
            for k in range(1, n + 1):
                all_wrong *= Fraction(max(n - c - k + 1, 0), n - k + 1)
                assert pass_at_k(n, c, k) == float(1 - all_wrong)


def test_pass_at_k_counts_subsets():
    for n, c, k in [(5, 2, 3), (6, 1, 2), (4, 4, 1), (7, 3, 7)]:
        subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == sum(map(any, subsets)) / len(subsets)


@pytest.mark.parametrize("n", [256, 10_000])
def test_pass_at_k_of_many_samples(n):
    for c in (0, 1, 2, n // 3, n - 1, n):
        values = [pass_at_k(n, c, k) for k in (1, 2, 16, 128, n // 2, n - 1, n)]
        assert all(0 <= value <= 1 for value in values) and values == sorted(values)
        assert values[0] == c / n and values[-1] == float(c > 0)
    assert pass_at_k(n, 1, 128) == pytest.approx(128 / n, rel=1e-15)  # the one correct sample is drawn


@pytest.mark.parametrize(("n", "c", "k"), [(3, 0, 8), (8, 9, 1), (8, -1, 1), (8, 2, 0), (0, 0, 1)])
def test_impossible_counts_are_errors(n, c, k):
    """FC-139: with k > n the usual shortcut says 1.0 where no sample is correct."""
    with pytest.raises(ValueError, match="got"):
        pass_at_k(n, c, k)


def test_one_problem_with_k_equal_to_n_is_certain():
    """FC-141: no resampling, so the values are exact and the same in every run."""
    assert [pass_at_k(8, 2, k) for k in (1, 8)] == [0.25, 1.0] == [pass_at_k(np.int64(8), 2, k) for k in (1, 8)]
    with pytest.raises(TypeError):
        pass_at_k(8, 2.0, 1)  # type: ignore[arg-type]


def test_distinct_counts_clusters():
    """FC-127: the largest label is one less than the number of clusters."""
    assert distinct([0, 0, 0, 0]) == 1 and distinct([0, 1, 0, 2]) == 3 and distinct([]) == 0
    assert distinct([5, 5, 9]) == 2 and distinct("aab") == 2


def noveltybench_utility(partition: list[int], scores: list[int], patience: float) -> float:
    """NoveltyBench's own procedure, with numpy: a label counts if it equals the number of classes seen so far."""
    gains, classes = [], 0
    for label, score in zip(partition, scores, strict=True):
        gains.append(score if label == classes else 0)
        classes += label == classes
    return float(np.average(gains, weights=patience ** np.arange(len(gains))))


def test_utility_is_noveltybenchs():
    draw = random.Random(0)
    for _ in range(500):
        labels = [0]
        while len(labels) < draw.randint(1, 12):
            labels.append(draw.randint(0, max(labels) + 1))
        scores = [draw.randint(1, 10) for _ in labels]
        patience = draw.choice([0.8, 0.5, 1.0])
        expected = noveltybench_utility(labels, scores, patience)
        assert novelty_utility(labels, scores, patience) == pytest.approx(expected, abs=1e-12)
        names = draw.sample("abcdefghijklmnop", 16)  # names of clusters do not matter
        assert novelty_utility([names[label] for label in labels], scores, patience) == pytest.approx(expected)


def test_utility_by_hand():
    assert novelty_utility([0, 0, 1], [10, 7, 4], patience=0.5) == pytest.approx((10 + 0.25 * 4) / 1.75)
    assert novelty_utility([0, 0], [6, math.nan]) == pytest.approx(6 / 1.8)  # a repeat's score is not read
    assert novelty_utility([3], [9]) == 9


@pytest.mark.parametrize(
    ("labels", "scores", "patience"),
    [([], [], 0.8), ([0], [1, 2], 0.8), ([0], [math.nan], 0.8), ([0], [None], 0.8), ([0], [1], 0.0), ([0], [1], 1.1)],
)
def test_utility_of_nothing_is_an_error(labels, scores, patience):
    with pytest.raises(ValueError, match="got|needed"):
        novelty_utility(labels, scores, patience)


def test_quality_is_monotone_and_a_tie_is_not_above():
    """FC-134: the mapping of NoveltyBench, and that of another reward model."""
    rewards = [-100.0, -7.8, -7.71875, -7.7, -6.28125, -5.0, -4.999, -2.046875, -2.0, 100.0]
    assert [reward_to_quality(reward) for reward in rewards] == [1, 1, 1, 2, 2, 6, 7, 9, 10, 10]
    assert [reward_to_quality(reward, [0.0, 1.0]) for reward in (0.3, -0.2, 1.1)] == [2, 1, 3]
    with pytest.raises(ValueError, match="ascend"):
        reward_to_quality(0.0, [1.0, 0.0])
    with pytest.raises(ValueError, match="NaN"):
        reward_to_quality(math.nan)
