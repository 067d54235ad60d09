# SPDX-License-Identifier: Apache-2.0
"""Bootstrap intervals: against scipy's, their coverage, and the inputs they refuse."""

import math

import numpy as np
import pytest

from trl_diversity.evaluation import bootstrap_difference, bootstrap_interval


def test_interval_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).exponential(size=60)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", rng=1).confidence_interval
    assert bootstrap_interval(values.tolist()) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_interval_covers_the_mean_as_often_as_it_says():
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        low, high = bootstrap_interval(generator.normal(size=40).tolist(), confidence=0.8, resamples=400)
        covered += low <= 0 <= high
    assert 0.72 < covered / 300 < 0.86


def test_interval_is_the_same_every_time_and_narrows_with_prompts():
    values = [0.0, 1.0, 2.0, 5.0]
    assert bootstrap_interval(values) == bootstrap_interval(values)
    narrow, wide = bootstrap_interval(values * 25), bootstrap_interval(values)
    assert wide[0] < narrow[0] < 2 < narrow[1] < wide[1]
    assert bootstrap_interval([0.1] * 3) == (0.1, 0.1)


def test_paired_difference_ignores_what_prompts_share():
    generator = np.random.default_rng(0)
    prompts = generator.normal(scale=100, size=50)
    low, high = bootstrap_difference((prompts + 1).tolist(), prompts.tolist())
    assert low == pytest.approx(1) and high == pytest.approx(1)
    with pytest.raises(ValueError, match="the same prompts"):
        bootstrap_difference([1.0], [1.0, 2.0])


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [[1.0]]])
def test_values_that_are_none(values):
    with pytest.raises(ValueError, match="one finite value per prompt"):
        bootstrap_interval(values)
    with pytest.raises(ValueError, match="confidence"):
        bootstrap_interval([1.0, 2.0], confidence=1.0)
