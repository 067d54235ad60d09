# SPDX-License-Identifier: Apache-2.0
"""Quality and diversity of a group become its rewards."""

import math
from collections.abc import Sequence

import numpy as np


COMBINES = ("multiply", "add")
DIVERSITY_NORMS = ("linear", "sigmoid", "minmax", "inverse_size")
QUALITY_SHIFTS = ("auto", "none", "group_min", "sigmoid")

_EPSILON = 1e-6


def darling_reward(
    quality: Sequence[float],
    diversity: Sequence[float],
    *,
    labels: Sequence[int] | None = None,
    combine: str = "multiply",
    diversity_weight: float = 1.0,
    diversity_floor: float = 0.0,
    diversity_norm: str = "linear",
    quality_shift: str = "auto",
    allow_negative_quality: bool = False,
    correct_only: bool = False,
) -> list[float]:
    """
    Rewards of one group, `r(x, y_i) * Norm(Div(y_i))` (arXiv 2509.02534, Eq. 6).

    Args:
        quality (`Sequence[float]` of length `n`):
            Quality of every completion, in the units of the reward functions. NaN where there is none.
        diversity (`Sequence[float]` of length `n`):
            Diversity of every completion, in `[0, 1]`. With `correct_only` it was measured among the correct ones,
            and the values of the others are not read.
        labels (`Sequence[int]` of length `n`, *optional*):
            Cluster of every completion. Needed by `diversity_norm="inverse_size"`.
        combine (`str`, *optional*, defaults to `"multiply"`):
            `"multiply"`: shifted quality times normalised diversity. `"add"`: `z(quality) + diversity_weight *
            z(diversity)` with `z(v) = (v - mean) / (std + 1e-6)`, 0 where all values are equal; it reads the raw
            diversity, not its norm.
        diversity_weight (`float`, *optional*, defaults to `1.0`):
            Weight of the diversity in `"add"`.
        diversity_floor (`float`, *optional*, defaults to `0.0`):
            Least value of the normalised diversity; what wrong completions get with `correct_only`.
        diversity_norm (`str`, *optional*, defaults to `"linear"`):
            Norm of the paper. `"linear"` is the diversity itself, `"sigmoid"` is `1 / (1 + exp(-Div))`, `"minmax"`
            stretches the group to `[0, 1]` (all equal: 1), `"inverse_size"` is one over the size of the cluster
            (it reads the labels alone).
        quality_shift (`str`, *optional*, defaults to `"auto"`):
            What happens to qualities below 0, where a product would pay duplicates. `"auto"` lifts the group so that
            its lowest quality is 0, if that is negative; `"none"` leaves the quality as it is (the paper's letter);
            `"group_min"` always takes the group's minimum away, so that a group of equal qualities has no signal;
            `"sigmoid"` maps the quality to `(0, 1)`.
        allow_negative_quality (`bool`, *optional*, defaults to `False`):
            Accept a group of mostly negative qualities with `quality_shift="none"`.
        correct_only (`bool`, *optional*, defaults to `False`):
            Diversity was measured among the completions with a quality above 0; the others get the floor.

    Returns:
        `list[float]` of length `n`: the rewards. NaN where the quality is NaN. A single completion gets its quality.

    Raises:
        `ValueError`: if an option is unknown, floor or weight are out of range, lengths differ, a quality is infinite,
        a diversity lies outside `[0, 1]`, `"inverse_size"` has no labels, or most qualities are negative where that is
        not allowed.
    """
    q = np.asarray(quality, dtype=np.float64)
    div = np.asarray(diversity, dtype=np.float64)
    _check_options(combine, diversity_norm, quality_shift)
    _check_numbers(diversity_weight, diversity_floor)
    counted = q > 0 if correct_only else np.ones(len(q), dtype=bool)
    _check_values(q, div, labels, counted)
    if len(q) <= 1:
        return q.tolist()
    if diversity_norm == "inverse_size" and labels is None:
        raise ValueError(
            "`diversity_norm='inverse_size'` needs clusters, and this diversity measure has none. Use a partition "
            "with `clustering='closure'` or 'greedy', or another norm."
        )
    if combine == "add":
        div = np.where(counted, div, diversity_floor)
        return (_z_score(_shift(q, quality_shift)) + diversity_weight * _z_score(div)).tolist()
    if quality_shift == "none" and not allow_negative_quality:
        check_not_mostly_negative(q)
    norm = np.full(len(q), diversity_floor, dtype=np.float64)
    if counted.any():
        norm[counted] = np.maximum(_normalise(div, labels, counted, diversity_norm), diversity_floor)
    return (_shift(q, quality_shift) * norm).tolist()


def check_not_mostly_negative(quality: np.ndarray) -> None:
    """
    Refuse qualities that are mostly negative, which a product with the diversity would turn upside down.

    Raises:
        `ValueError`: if more than half of the qualities that are not NaN lie below 0.
    """
    known = quality[~np.isnan(quality)]
    negative = int((known < 0).sum())
    if 2 * negative > len(known):
        raise ValueError(
            f"{negative} of {len(known)} quality rewards are negative (lowest {known.min():.4g}). Their product with "
            "the diversity pays duplicates: -4 x 0.25 is more than -4 x 1. Use `quality_shift='auto'` (lifts each "
            "group's lowest quality to 0) or 'sigmoid', or set `allow_negative_quality=True` to keep "
            "`quality_shift='none'`."
        )


def _check_options(combine: str, diversity_norm: str, quality_shift: str) -> None:
    for name, value, accepted in (
        ("combine", combine, COMBINES),
        ("diversity_norm", diversity_norm, DIVERSITY_NORMS),
        ("quality_shift", quality_shift, QUALITY_SHIFTS),
    ):
        if value not in accepted:
            raise ValueError(f"`{name}` is {value!r}; accepted are {', '.join(map(repr, accepted))}.")


def _check_numbers(diversity_weight: float, diversity_floor: float) -> None:
    if not 0 <= diversity_floor <= 1:
        raise ValueError(f"`diversity_floor` lies in [0, 1], as the norm of the diversity; got {diversity_floor}.")
    if not math.isfinite(diversity_weight):
        raise ValueError(f"`diversity_weight` is a finite number; got {diversity_weight}.")


def _check_values(q: np.ndarray, div: np.ndarray, labels: Sequence[int] | None, counted: np.ndarray) -> None:
    if q.ndim != 1 or q.shape != div.shape or (labels is not None and len(labels) != len(q)):
        sizes = f"{q.shape}, {div.shape} and {None if labels is None else len(labels)}"
        raise ValueError(f"Quality, diversity and labels are of one group and equally long; got {sizes}.")
    if np.isinf(q).any():
        raise ValueError(f"A quality reward is infinite: {q.tolist()}. Return None for what cannot be scored.")
    if not ((div[counted] >= 0) & (div[counted] <= 1)).all():
        raise ValueError(f"Diversity lies in [0, 1]; got {div[counted].tolist()}.")


def _shift(q: np.ndarray, quality_shift: str) -> np.ndarray:
    if quality_shift == "none" or np.isnan(q).all():
        return q
    if quality_shift == "sigmoid":
        return 0.5 * (1.0 + np.tanh(0.5 * q))  # 1 / (1 + exp(-q)) without overflow
    lowest = np.nanmin(q)
    return q - (lowest if quality_shift == "group_min" else min(lowest, 0.0))


def _normalise(div: np.ndarray, labels: Sequence[int] | None, counted: np.ndarray, how: str) -> np.ndarray:
    """Norm of the diversity of the completions that count, in `[0, 1]`."""
    div = div[counted]
    if how == "linear":
        return div
    if how == "sigmoid":
        return 1.0 / (1.0 + np.exp(-div))
    if how == "minmax":
        spread = div.max() - div.min()
        return (div - div.min()) / spread if spread > 0 else np.ones_like(div)
    _, cluster, sizes = np.unique(np.asarray(labels)[counted], return_inverse=True, return_counts=True)
    return 1.0 / sizes[cluster]


def _z_score(values: np.ndarray) -> np.ndarray:
    """`(v - mean) / (std + 1e-6)` over the values that are not NaN; 0 where they are all equal."""
    known = values[~np.isnan(values)]
    if not len(known) or known.min() == known.max():
        return values * 0.0
    return (values - known.mean()) / (known.std() + _EPSILON)
