# SPDX-License-Identifier: Apache-2.0
"""Preference pairs of the baseline DivPO: the most diverse good completion over the least diverse bad one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PairSelection:
    """
    Which completions of a group count as good and as bad (DivPO, arXiv 2501.18101).

    Attributes:
        min_quality (`float`, *optional*):
            Good is a quality of at least this. Goes with `max_quality`, and then fractions are not used.
        max_quality (`float`, *optional*):
            Bad is a quality of at most this; not above `min_quality`.
        top_fraction (`float`, *optional*, defaults to 0.5):
            Good is the best so large part of the group, in `(0, 1)`: at least one completion, ties included. A quality
            that both parts would share belongs to neither, as long as there is another.
        bottom_fraction (`float`, *optional*, defaults to 0.5):
            Bad is the worst so large part, likewise. The two add up to at most 1.

    Raises:
        `ValueError`: if they do not fit together.
    """

    min_quality: float | None = None
    max_quality: float | None = None
    top_fraction: float = 0.5
    bottom_fraction: float = 0.5

    def __post_init__(self):
        if (self.min_quality is None) != (self.max_quality is None):
            raise ValueError("give both `min_quality` and `max_quality`, or neither to use fractions of the group.")
        if self.min_quality is not None and self.max_quality is not None and self.min_quality < self.max_quality:
            raise ValueError(
                f"`min_quality` ({self.min_quality}) must not be below `max_quality` ({self.max_quality}): a "
                "completion would be good and bad."
            )
        for name, value in (("top_fraction", self.top_fraction), ("bottom_fraction", self.bottom_fraction)):
            if not 0 < value < 1:
                raise ValueError(f"`{name}` lies in (0, 1); got {value}.")
        if self.top_fraction + self.bottom_fraction > 1 + 1e-9:
            raise ValueError(
                f"`top_fraction` and `bottom_fraction` add up to at most 1; got {self.top_fraction} and "
                f"{self.bottom_fraction}."
            )


@dataclass(frozen=True)
class Pair:
    """Indices of the chosen and the rejected completion of a group, or why there is no pair."""

    chosen: int = -1
    rejected: int = -1
    reason: str | None = None


def select_pair(
    completions: Sequence[str],
    quality: Sequence[float],
    diversity: Sequence[float],
    selection: PairSelection,
    finished: Sequence[bool] | None = None,
) -> Pair:
    """
    Choose one pair from a group.

    Chosen is the most diverse of the good completions, rejected the least diverse of the bad ones. Among equally
    diverse ones the better is chosen and the worse rejected, then the first.

    Args:
        completions (`Sequence[str]` of length `n`):
            The group.
        quality (`Sequence[float]` of length `n`):
            Finite numbers.
        diversity (`Sequence[float]` of length `n`):
            Higher is more unlike the others.
        selection ([`PairSelection`]):
            What is good and bad.
        finished (`Sequence[bool]` of length `n`, *optional*):
            Whether each came to its end. One that did not is never chosen: DPO would teach to end there.

    Returns:
        [`Pair`]: with the `reason` `"none good"`, `"none bad"`, `"none finished"` (of the good), `"same quality"` or
        `"same text"` if there is none.

    Raises:
        `ValueError`: if the lengths differ or a number is not finite.
    """
    if not len(completions) == len(quality) == len(diversity):
        raise ValueError(
            f"the group has {len(completions)} completions, {len(quality)} qualities and {len(diversity)} diversities."
        )
    if not all(map(math.isfinite, (*quality, *diversity))):
        raise ValueError(f"qualities and diversities are finite numbers; got {list(quality)} and {list(diversity)}.")
    good, bad = _pools(quality, selection)
    if not good or not bad:
        return Pair(reason="none bad" if good else "none good")
    if finished is not None:
        good = [index for index in good if finished[index]]
        if not good:
            return Pair(reason="none finished")
    chosen = max(good, key=lambda index: (diversity[index], quality[index], -index))
    rejected = min(bad, key=lambda index: (diversity[index], quality[index], index))
    if quality[chosen] <= quality[rejected]:
        return Pair(reason="same quality")
    if completions[chosen].strip() == completions[rejected].strip():
        return Pair(reason="same text")
    return Pair(chosen, rejected)


def _pools(quality: Sequence[float], selection: PairSelection) -> tuple[list[int], list[int]]:
    low, high = selection.max_quality, selection.min_quality
    if low is None or high is None:
        if not quality:
            return [], []
        ordered = sorted(quality)
        n = len(ordered)
        high = ordered[n - max(1, math.floor(selection.top_fraction * n + 1e-9))]
        low = ordered[max(1, math.floor(selection.bottom_fraction * n + 1e-9)) - 1]
        if high <= low:  # both ends of the group share a quality: it is neither, unless one end has no other
            high, low = _apart(ordered, low)
    good = [index for index, value in enumerate(quality) if value >= high]
    return good, [index for index, value in enumerate(quality) if value <= low]


def _apart(ordered: list[float], shared: float) -> tuple[float, float]:
    better = [value for value in ordered if value > shared]
    worse = [value for value in ordered if value < shared]
    return min(better, default=shared), max(worse, default=shared)
