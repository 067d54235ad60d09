# SPDX-License-Identifier: Apache-2.0
"""Thresholds, temperature and metrics against scikit-learn and slow counting."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    log_loss,
    precision_score,
    recall_score,
    roc_auc_score,
)

from trl_diversity.classifiers.calibration import (
    area_under_curve,
    bootstrap_metrics,
    choose_threshold,
    expected_calibration_error,
    fit_temperature,
    non_transitivity_rate,
    pair_metrics,
    probabilities_of,
    stable_threshold,
)


@st.composite
def scored_labels(draw):
    """Labels of both classes and probabilities with ties."""
    count = draw(st.integers(2, 25))
    labels = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count).filter(lambda x: len(set(x)) == 2))
    scores = draw(st.lists(st.integers(0, 20).map(lambda x: x / 20), min_size=count, max_size=count))
    return labels, scores


@settings(max_examples=60, deadline=None)
@given(scored_labels(), st.floats(0, 1))
def test_metrics_agree_with_scikit_learn(data, threshold):
    labels, scores = data
    same = [score > threshold for score in scores]
    metrics = pair_metrics(labels, scores, threshold)
    expected = {
        "accuracy": accuracy_score(labels, same),
        "balanced_accuracy": balanced_accuracy_score(labels, same),
        "precision": precision_score(labels, same, zero_division=0),
        "recall": recall_score(labels, same),
        "f1": f1_score(labels, same),
        "auc": roc_auc_score(labels, scores),
        "false_merge_rate": 1 - recall_score(labels, same, pos_label=0),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(scored_labels(), st.sampled_from(["accuracy", "balanced_accuracy", "f1"]))
def test_no_threshold_beats_the_chosen_one(data, goal):
    labels, scores = data
    reached = pair_metrics(labels, scores, choose_threshold(labels, scores, goal))[goal]
    for other in (index / 80 for index in range(81)):
        assert pair_metrics(labels, scores, other)[goal] <= reached + 1e-12


@settings(max_examples=60, deadline=None)
@given(scored_labels(), st.sampled_from([0.0, 0.1, 0.3]))
def test_a_false_merge_rate_is_kept_with_the_most_recall(data, rate):
    labels, scores = data
    reached = pair_metrics(labels, scores, choose_threshold(labels, scores, "false_merge_rate", rate))
    assert reached["false_merge_rate"] <= rate
    for other in (index / 80 for index in range(81)):
        metrics = pair_metrics(labels, scores, other)
        assert metrics["false_merge_rate"] > rate or metrics["recall"] <= reached["recall"]


def test_a_threshold_lies_in_the_middle_of_its_gap():
    assert choose_threshold([0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9]) == pytest.approx(0.4)


def test_the_stable_threshold_repeats_itself_and_lies_where_the_classes_part():
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], 200)
    scores = np.clip(generator.normal(0.3 + 0.4 * labels, 0.12), 0, 1)
    threshold = stable_threshold(labels, scores, "balanced_accuracy")
    assert threshold == stable_threshold(labels, scores, "balanced_accuracy")
    assert 0.45 < threshold < 0.55


@pytest.mark.parametrize("true_temperature", [0.5, 3.0])
def test_the_temperature_that_distorted_the_logits_is_found(true_temperature):
    generator = np.random.default_rng(1)
    logits = generator.normal(0, 2, 20_000)
    labels = (generator.random(20_000) < 1 / (1 + np.exp(-logits))).astype(int)
    assert fit_temperature(labels, logits * true_temperature) == pytest.approx(true_temperature, rel=0.05)


@settings(max_examples=25, deadline=None)
@given(scored_labels())
def test_no_temperature_has_less_log_loss(data):
    labels, scores = data
    logits = np.array([8 * score - 4 for score in scores])

    def loss(temperature):
        return log_loss(labels, 1 / (1 + np.exp(-logits / temperature)))

    reached = loss(fit_temperature(labels, logits))
    assert all(reached <= loss(other) + 1e-6 for other in np.geomspace(0.02, 90, 60))


def test_calibration_error_by_hand():
    # Bins [0.2, 0.3): one of two is the same, mean probability 0.25; [0.9, 1]: both are, mean probability 0.95.
    assert expected_calibration_error([0, 1, 1, 1], [0.21, 0.29, 0.9, 1.0]) == pytest.approx((0.25 + 0.05) / 2)


def test_intervals_hold_the_value_and_shrink_with_more_pairs():
    generator = np.random.default_rng(2)

    def interval(count):
        labels = np.arange(count) % 2
        scores = np.clip(generator.normal(0.4 + 0.2 * labels, 0.2), 0, 1)
        value = area_under_curve(labels, scores)
        low, high = bootstrap_metrics(lambda i: {"auc": area_under_curve(labels[i], scores[i])}, labels, 300)["auc"]
        assert low < value < high
        return high - low

    assert interval(2000) < interval(100) / 2


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 6), st.randoms(use_true_random=False))
def test_non_transitivity_counts_triples(count, random):
    scores = np.array([[random.random() for _ in range(count)] for _ in range(count)])

    def same(i, j):
        return scores[min(i, j), max(i, j)] > 0.5

    # A slow count over ordered triples whose first two links hold; each open one is seen twice, each closed one six.
    chains = [same(a, c) for a, b, c in permutations(range(count), 3) if same(a, b) and same(b, c)]
    broken, closed = chains.count(False) / 2, chains.count(True) / 6
    rate = non_transitivity_rate([scores], 0.5)
    assert math.isnan(rate) if not chains else rate == pytest.approx(broken / (broken + closed))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: choose_threshold([0, 1], [0.1, 0.2], "precision"), "goal.*precision"),
        (lambda: choose_threshold([0, 1], [0.1, 0.2], "false_merge_rate", 1.0), "false_merge_rate"),
        (lambda: choose_threshold([1, 1], [0.1, 0.2]), "both must occur"),
        (lambda: pair_metrics([0, 1], [0.1, 1.2], 0.5), "probability"),
        (lambda: pair_metrics([0, 1], [0.1], 0.5), "do not fit"),
        (lambda: fit_temperature([0, 0], [0.1, 2.0]), "both must occur"),
    ],
)
def test_what_cannot_be_is_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_probabilities_of_logits_however_large():
    logits = np.array([-1e5, -30.0, -1.0, 0.0, 2.5, 1e5])
    with np.errstate(all="raise", under="ignore"):
        found = probabilities_of(logits)
    np.testing.assert_allclose(found, expit(logits), rtol=1e-12)
