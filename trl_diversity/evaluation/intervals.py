# SPDX-License-Identifier: Apache-2.0
"""Bootstrap confidence intervals over prompts."""

from collections.abc import Sequence

import numpy as np


CONFIDENCE = 0.95
RESAMPLES = 10_000
_CHUNK = 500  # resamples at a time: bounds the memory


def bootstrap_interval(
    values: Sequence[float], confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """
    Percentile bootstrap interval of a mean. One value per prompt: the prompts are what is drawn anew.

    Args:
        values (`Sequence[float]`):
            One finite value per prompt.
        confidence (`float`, *optional*, defaults to 0.95):
            In `(0, 1)`.
        resamples (`int`, *optional*, defaults to 10000):
            Samples that are drawn with replacement.
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws: the same values give the same interval.

    Returns:
        `tuple[float, float]`: lower and upper end. A single value is its own interval, which says nothing.

    Raises:
        `ValueError`: if there is no value, one is not finite, or an option is impossible.
    """
    data = np.asarray(values, dtype=np.float64)  # (prompts,)
    if data.ndim != 1 or not len(data) or not np.isfinite(data).all():
        raise ValueError(f"give one finite value per prompt, at least one; got an array of shape {data.shape}.")
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError(f"`confidence` lies in (0, 1), `resamples` is at least 1; got {confidence} and {resamples}.")
    if (data == data[0]).all():  # no rounding where there is nothing to draw
        return float(data[0]), float(data[0])
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [
            data[generator.integers(0, len(data), size=(min(_CHUNK, resamples - start), len(data)))].mean(axis=1)
            for start in range(0, resamples, _CHUNK)
        ]
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def bootstrap_difference(
    first: Sequence[float],
    second: Sequence[float],
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """
    Bootstrap interval of the mean of `first - second`, two measurements of the same prompts in the same order.

    Takes the arguments of [`bootstrap_interval`] and raises as it does, also if the lengths differ.
    """
    if len(first) != len(second):
        raise ValueError(f"both must measure the same prompts; got {len(first)} and {len(second)} values.")
    differences = [one - other for one, other in zip(first, second, strict=True)]
    return bootstrap_interval(differences, confidence, resamples, seed)
