# SPDX-License-Identifier: Apache-2.0
"""Metrics of one group of completions: pass@k, distinct clusters, NoveltyBench's utility."""

import math
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from operator import index


# NoveltyBench's, made for the rewards of Skywork-Reward-Gemma-2-27B-v0.2.
QUALITY_THRESHOLDS = (-7.71875, -6.28125, -6.0, -5.71875, -5.5, -5.0, -4.375, -3.4375, -2.046875)
PATIENCE = 0.8


def pass_at_k(n: int, c: int, k: int) -> float:
    """
    Probability that at least one of `k` completions is correct, estimated without bias from `n` samples.

    `1 - C(n - c, k) / C(n, k)`: the share of the subsets of size `k` that hold a correct sample. It is computed in
    whole numbers and rounded once, so it is as exact as a float can be for any `n`.

    Args:
        n (`int`):
            Samples, at least 1.
        c (`int`):
            Correct ones among them, `0 <= c <= n`.
        k (`int`):
            Size of the subsets, `1 <= k <= n`.

    Returns:
        `float` in `[0, 1]`.

    Raises:
        `ValueError`: if `c` or `k` is impossible. With `k > n` there is no unbiased estimate.
    """
    n, c, k = index(n), index(c), index(k)
    if not 0 <= c <= n:
        raise ValueError(f"`c` is the number of correct samples among `n`, so 0 <= c <= n; got c = {c}, n = {n}.")
    if not 1 <= k <= n:
        raise ValueError(
            f"pass@k needs 1 <= k <= n; got k = {k} with n = {n} samples. Draw more samples or choose a smaller k."
        )
    subsets = math.comb(n, k)
    return (subsets - math.comb(n - c, k)) / subsets


def distinct(labels: Sequence[Hashable]) -> int:
    """
    Number of clusters in a group, NoveltyBench's `distinct`.

    The clusters are counted. NoveltyBench's own files before 2026 hold the largest label instead, which is one less.

    Args:
        labels (`Sequence` of length `n`):
            Cluster of every completion.

    Returns:
        `int` in `[1, n]`; 0 for an empty group.
    """
    return len(set(labels))


def novelty_utility(labels: Sequence[Hashable], scores: Sequence[float | None], patience: float = PATIENCE) -> float:
    """
    NoveltyBench's utility: what a user gains who reads the completions in order and may stop after each of them.

    A completion that opens a new cluster is worth its quality, a repeat 0. The average is weighted with
    `patience ** position`.

    Args:
        labels (`Sequence` of length `n`):
            Cluster of every completion.
        scores (`Sequence[float]` of length `n`):
            Quality of every completion, 1 to 10 in NoveltyBench. The score of a repeat is not read.
        patience (`float`, *optional*, defaults to 0.8):
            Probability in `(0, 1]` that the user reads on.

    Returns:
        `float` between 0 and the largest score.

    Raises:
        `ValueError`: if the group is empty, the lengths differ, `patience` is impossible, or the score of a completion
        that opens a cluster is missing or not finite.
    """
    if not 0 < patience <= 1:
        raise ValueError(f"`patience` is a probability in (0, 1]; got {patience}.")
    if not labels or len(labels) != len(scores):
        raise ValueError(f"Give one score per label and at least one; got {len(labels)} labels, {len(scores)} scores.")
    seen: set[Hashable] = set()
    gains = []
    for position, (label, score) in enumerate(zip(labels, scores, strict=True)):
        if label in seen:
            gains.append(0.0)
            continue
        if score is None or not math.isfinite(score):
            raise ValueError(f"Completion {position} opens a cluster, but its score is {score}: a number is needed.")
        seen.add(label)
        gains.append(score)
    weights = [patience**position for position in range(len(gains))]
    return math.fsum(gain * weight for gain, weight in zip(gains, weights, strict=True)) / math.fsum(weights)


def reward_to_quality(reward: float, thresholds: Sequence[float] = QUALITY_THRESHOLDS) -> int:
    """
    Map the raw reward of a reward model to a quality, NoveltyBench's 1 to 10.

    1 plus the number of thresholds that lie below the reward. A reward equal to a threshold is not above it.

    Args:
        reward (`float`):
            What the reward model gave.
        thresholds (`Sequence[float]`, *optional*):
            In ascending order. By default NoveltyBench's, which fit Skywork-Reward-Gemma-2-27B-v0.2 alone: those of
            another model are the deciles of its own rewards.

    Returns:
        `int` from 1 to `len(thresholds) + 1`.

    Raises:
        `ValueError`: if the reward is NaN or the thresholds do not ascend.
    """
    if math.isnan(reward):
        raise ValueError("the reward is NaN: there is no quality for it.")
    if any(low >= high for low, high in zip(thresholds, thresholds[1:], strict=False)):
        raise ValueError(f"quality thresholds must ascend; got {list(thresholds)}.")
    return bisect_left(thresholds, reward) + 1
