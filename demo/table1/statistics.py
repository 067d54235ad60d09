# SPDX-License-Identifier: Apache-2.0
"""Intervals over seeds and prompts, and the difference that an experiment can detect."""

import math
from collections.abc import Sequence

import numpy as np


CONFIDENCE = 0.95
RESAMPLES = 10_000
_NORMAL_95, _NORMAL_POWER_80 = 1.959964, 0.841621


def interval(values: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float]:
    """
    Bootstrap interval of the mean of a table of runs: seeds are drawn anew, and prompts are.

    Args:
        values (`Sequence[Sequence[float]]` of shape `(seeds, prompts)`):
            One value per run and prompt. All runs have the same prompts.
        seed (`int`, *optional*, defaults to 0):
            Of the draws.

    Returns:
        `tuple[float, float]`: 95 % percentile interval. With one seed it covers the prompts alone; with three it is
        too narrow rather than too wide, since three seeds show little of their spread.
    """
    data = np.asarray(values, dtype=np.float64)  # (seeds, prompts)
    generator = np.random.default_rng(seed)
    seeds, prompts = data.shape
    # How often each seed and each prompt is drawn
    seed_counts = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)  # (RESAMPLES, seeds)
    prompt_counts = generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
    means = ((seed_counts @ data) * prompt_counts).sum(axis=1) / (seeds * prompts)  # (RESAMPLES,)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def difference(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Mean of `first - second` and its interval; runs with the same place share seed and prompts."""
    data = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)  # (seeds, prompts)
    return float(data.mean()), *interval(data.tolist())


def detectable_difference(pilot: Sequence[Sequence[float]], seeds: int, prompts: int) -> dict[str, float]:
    """
    The difference between two arms that an experiment finds with a chance of 80 %, at a level of 5 %.

    Args:
        pilot (`Sequence[Sequence[float]]` of shape `(pilot seeds, pilot prompts)`):
            Differences between two arms of a pilot, one per seed and prompt. At least two of each.
        seeds (`int`), prompts (`int`):
            Of the planned experiment.

    Returns:
        `dict`: `seed_sd`, `prompt_sd` and `residual_sd` (standard deviations of the components, those that come out
        negative count 0), and `difference`, in the unit of the values.

    Raises:
        `ValueError`: if the pilot is too small.
    """
    data = np.asarray(pilot, dtype=np.float64)  # (pilot seeds, pilot prompts)
    if data.ndim != 2 or min(data.shape) < 2:
        raise ValueError(f"a pilot needs at least two seeds and two prompts; got the shape {data.shape}.")
    rows, columns = data.shape
    seed_means, prompt_means = data.mean(axis=1), data.mean(axis=0)
    residuals = data - seed_means[:, None] - prompt_means[None, :] + data.mean()
    residual = float((residuals**2).sum() / ((rows - 1) * (columns - 1)))
    between_seeds = max(0.0, float(seed_means.var(ddof=1)) - residual / columns)
    between_prompts = max(0.0, float(prompt_means.var(ddof=1)) - residual / rows)
    variance = between_seeds / seeds + between_prompts / prompts + residual / (seeds * prompts)
    return {
        "seed_sd": math.sqrt(between_seeds),
        "prompt_sd": math.sqrt(between_prompts),
        "residual_sd": math.sqrt(residual),
        "difference": (_NORMAL_95 + _NORMAL_POWER_80) * math.sqrt(variance),
    }
