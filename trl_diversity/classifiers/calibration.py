# SPDX-License-Identifier: Apache-2.0
"""Scores of a pair classifier: threshold for a goal, temperature, metrics with bootstrap intervals, transitivity."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np


GOALS = ("accuracy", "balanced_accuracy", "f1", "false_merge_rate")
Values = Sequence[float] | np.ndarray  # numbers, one per pair
_BINS = 10
_SURE = 1e-7
_TEMPERATURES = (0.01, 100.0)
_STEPS = 200  # of the golden section search: far beyond float precision


def choose_threshold(
    labels: Values, probabilities: Values, goal: str = "accuracy", false_merge_rate: float = 0.05
) -> float:
    """
    The threshold that reaches a goal on labelled pairs. Choose it on training or development data, never on the test.

    Of several equally good ones, it is the middle of the widest gap between two scores. A pair is "same" when its
    probability lies above the threshold.

    Args:
        labels (`Sequence[int]`):
            1 for "same", 0 for "different".
        probabilities (`Sequence[float]`):
            In `[0, 1]`.
        goal (`str`, *optional*, defaults to `"accuracy"`):
            `"accuracy"`, `"balanced_accuracy"` (mean of the two classes' recalls), `"f1"` (of "same"), or
            `"false_merge_rate"`: the most recall of "same" among the thresholds at which at most `false_merge_rate`
            of the pairs that differ are called the same.
        false_merge_rate (`float`, *optional*, defaults to 0.05):
            In `[0, 1)`. Read for that goal only.

    Returns:
        `float`: in `[0, 1]`.

    Raises:
        `ValueError`: if the goal is unknown, the rate impossible, or a class is missing.
    """
    if goal not in GOALS:
        raise ValueError(f"the goal is {goal!r}: use one of {GOALS}")
    if not 0 <= false_merge_rate < 1:
        raise ValueError(f"false_merge_rate is {false_merge_rate!r}: it is a share of pairs in [0, 1)")
    truth, scores = _checked(labels, probabilities)
    values = np.unique(scores)
    # Candidates: between two neighbouring scores, above all of them, and below all of them where there is room.
    below = [values[0] / 2] if values[0] > 0 else []
    candidates = np.array([*below, *((values[:-1] + values[1:]) / 2), min(1.0, (values[-1] + 1) / 2)])
    gaps = np.array([*([values[0]] if below else []), *np.diff(values), 1 - values[-1]])
    hits, false_merges = (
        (truth == label).sum() - np.searchsorted(np.sort(scores[truth == label]), candidates, side="right")
        for label in (1, 0)
    )
    merits = _merits(hits, false_merges, int((truth == 1).sum()), int((truth == 0).sum()), goal, false_merge_rate)
    best = np.flatnonzero(merits >= merits.max() - 1e-12)
    return float(candidates[best[np.argmax(gaps[best])]])


def stable_threshold(
    labels: Values,
    probabilities: Values,
    goal: str = "accuracy",
    false_merge_rate: float = 0.05,
    resamples: int = 200,
    seed: int = 0,
) -> float:
    """
    Median of the thresholds that [`choose_threshold`] takes on bootstrap samples, drawn within each class.

    Accuracies hardly change over a wide range of thresholds, so that the single best one is a matter of a few pairs.

    Args:
        labels (`Sequence[int]`):
            1 for "same", 0 for "different".
        probabilities (`Sequence[float]`):
            In `[0, 1]`.
        goal (`str`, *optional*, defaults to `"accuracy"`):
            As there.
        false_merge_rate (`float`, *optional*, defaults to 0.05):
            As there.
        resamples (`int`, *optional*, defaults to 200):
            Samples that are drawn.
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws.

    Returns:
        `float`: in `[0, 1]`.
    """
    truth, scores = _checked(labels, probabilities)
    classes, generator = [np.flatnonzero(truth == label) for label in (0, 1)], np.random.default_rng(seed)
    thresholds = []
    for _ in range(resamples):
        drawn = np.concatenate([generator.choice(members, len(members)) for members in classes])
        thresholds.append(choose_threshold(truth[drawn].tolist(), scores[drawn].tolist(), goal, false_merge_rate))
    return float(np.median(thresholds))


def fit_temperature(labels: Values, logits: Values) -> float:
    """
    The temperature that logits are divided by for the least log loss (one number: the ranking stays).

    Args:
        labels (`Sequence[int]`):
            1 for "same", 0 for "different".
        logits (`Sequence[float]`):
            Of "same": for two labels the difference of the two logits.

    Returns:
        `float`: between 0.01 and 100.

    Raises:
        `ValueError`: if a class is missing.
    """
    truth = np.asarray(labels, dtype=np.float64)
    values = np.asarray(logits, dtype=np.float64)
    _require_both(truth)

    def loss(log_temperature: float) -> float:
        scaled = values / math.exp(log_temperature)
        return float(np.mean(np.logaddexp(0.0, scaled) - truth * scaled))

    low, high = (math.log(bound) for bound in _TEMPERATURES)
    # The loss is convex in 1 / temperature, so it has one minimum in its logarithm too.
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(_STEPS):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(left) <= loss(right):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def probabilities_of(logits: Values) -> np.ndarray:
    """Sigmoid; of any logit, however large."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(logits, dtype=np.float64)))


def logits_of(probabilities: Values) -> np.ndarray:
    """Logits of probabilities, which may be 0 or 1."""
    values = np.clip(np.asarray(probabilities, dtype=np.float64), _SURE, 1 - _SURE)
    return np.log(values) - np.log1p(-values)


def area_under_curve(labels: Values, scores: Values) -> float:
    """Probability that a "same" pair scores higher than a "different" one; ties count half. In `[0, 1]`."""
    truth, values = np.asarray(labels), np.asarray(scores, dtype=np.float64)
    positives, negatives = np.sort(values[truth == 1]), values[truth == 0]
    above = len(positives) - np.searchsorted(positives, negatives, side="right")
    ties = np.searchsorted(positives, negatives, side="right") - np.searchsorted(positives, negatives, side="left")
    return float((above + ties / 2).sum() / (len(positives) * len(negatives)))


def expected_calibration_error(labels: Values, probabilities: Values, bins: int = _BINS) -> float:
    """
    Mean distance between probability and share of "same" over bins of equal width, weighted by their pairs.

    Returns:
        `float`: in `[0, 1]`, 0 is calibrated.
    """
    truth, scores = np.asarray(labels, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    which = np.minimum((scores * bins).astype(int), bins - 1)
    sums = [np.bincount(which, weights=values, minlength=bins) for values in (truth, scores)]
    return float(np.abs(sums[0] - sums[1]).sum() / len(truth))


def pair_metrics(labels: Values, probabilities: Values, threshold: float) -> dict[str, float]:
    """
    Accuracy, balanced accuracy, precision, recall, F1 of "same", false-merge rate, AUC and ECE.

    Args:
        labels (`Sequence[int]`):
            1 for "same", 0 for "different"; both occur.
        probabilities (`Sequence[float]`):
            In `[0, 1]`.
        threshold (`float`):
            A pair is "same" when its probability lies above it.

    Returns:
        `dict[str, float]`: every value in `[0, 1]`. Precision is 0 where nothing is called the same.
    """
    truth, scores = _checked(labels, probabilities)
    same = scores > threshold
    hits, false_merges = (same & (truth == 1)).sum(), (same & (truth == 0)).sum()
    positives, negatives = (truth == 1).sum(), (truth == 0).sum()
    recall, false_merge_rate = hits / positives, false_merges / negatives
    precision = hits / same.sum() if same.any() else 0.0
    metrics = {
        "accuracy": (same == truth).mean(),
        "balanced_accuracy": (recall + 1 - false_merge_rate) / 2,
        "precision": precision,
        "recall": recall,
        "f1": 2 * hits / (same.sum() + positives),
        "false_merge_rate": false_merge_rate,
        "auc": area_under_curve(truth.tolist(), scores.tolist()),
        "ece": expected_calibration_error(truth.tolist(), scores.tolist()),
    }
    return {name: float(value) for name, value in metrics.items()}


def bootstrap_metrics(
    metric: Callable[[np.ndarray], dict[str, float]],
    labels: Values,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """
    Percentile bootstrap intervals over pairs, drawn anew within each class, so that every sample has both.

    Args:
        metric (`Callable`):
            Gets the indices of the drawn pairs and returns the metrics, such as
            `lambda drawn: pair_metrics(labels[drawn], probabilities[drawn], threshold)`; for a paired comparison the
            differences of two models' metrics.
        labels (`Sequence[int]`):
            Of all pairs.
        resamples (`int`, *optional*, defaults to 2000):
            Samples that are drawn.
        confidence (`float`, *optional*, defaults to 0.95):
            In `(0, 1)`.
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws.

    Returns:
        `dict[str, tuple[float, float]]`: lower and upper end for every metric.
    """
    truth, generator = np.asarray(labels), np.random.default_rng(seed)
    classes = [np.flatnonzero(truth == label) for label in (0, 1)]
    samples = [
        metric(np.concatenate([generator.choice(members, len(members)) for members in classes]))
        for _ in range(resamples)
    ]
    tail = (1 - confidence) / 2
    return {
        name: tuple(np.quantile([sample[name] for sample in samples], [tail, 1 - tail]).tolist())
        for name in samples[0]
    }


def non_transitivity_rate(groups: Sequence[Any], threshold: float) -> float:
    """
    Share of the triples with two "same" pairs whose third pair is "different": what a closure has to repair.

    Args:
        groups (`Sequence[np.ndarray]`):
            Of every group the `(n, n)` probabilities; that of `i` and `j` is read at `[min(i, j), max(i, j)]`.
        threshold (`float`):
            A pair is "same" when its probability lies above it.

    Returns:
        `float`: in `[0, 1]`; NaN where no triple has two "same" pairs.
    """
    broken = linked = 0
    for scores in groups:
        same = np.asarray(scores) > threshold
        for one, other, third in combinations(range(len(same)), 3):
            links = int(same[one, other]) + int(same[one, third]) + int(same[other, third])
            linked += links >= 2
            broken += links == 2
    return broken / linked if linked else math.nan


def _merits(
    hits: np.ndarray, false_merges: np.ndarray, positives: int, negatives: int, goal: str, most_false_merges: float
) -> np.ndarray:
    """How good each candidate is, from its counts of rightly and of wrongly merged pairs."""
    if goal == "accuracy":
        return (hits + negatives - false_merges) / (positives + negatives)
    if goal == "f1":
        return 2 * hits / (hits + false_merges + positives)
    if goal == "balanced_accuracy":
        return (hits / positives + 1 - false_merges / negatives) / 2
    # Above all scores the rate is 0, so that one candidate always passes.
    return np.where(false_merges / negatives <= most_false_merges, hits / positives, -1.0)


def _checked(labels: Values, probabilities: Values) -> tuple[np.ndarray, np.ndarray]:
    truth, scores = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    if len(truth) != len(scores):
        raise ValueError(f"{len(truth)} labels do not fit {len(scores)} probabilities")
    if not np.isfinite(scores).all() or ((scores < 0) | (scores > 1)).any():
        raise ValueError("every probability lies in [0, 1]")
    _require_both(truth)
    return truth, scores


def _require_both(truth: np.ndarray) -> None:
    if set(np.unique(truth)) != {0, 1}:
        raise ValueError(f"labels are 0 and 1, and both must occur; got only {sorted(np.unique(truth).tolist())}")
