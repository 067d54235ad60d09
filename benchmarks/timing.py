# SPDX-License-Identifier: Apache-2.0
"""Paired timings: every round runs all ways once, and ratios are taken within a round."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


PRODUCT, PEER, FLOOR = "product", "peer", "floor"


@dataclass(frozen=True)
class Row:
    """
    One line of the results.

    Args:
        topic (`str`), case (`str`):
            What was timed.
        seconds (`dict[str, float]`):
            Median seconds of each way: `product`, and where there is one `peer` (the plain way) and `floor`.
        speedup (`float`, *optional*):
            Median over the rounds of peer / product.
        floor_share (`float`, *optional*):
            Median over the rounds of floor / product: 1 is the arithmetic alone.
        figures (`dict[str, Any]`, *optional*):
            Further figures, with their unit in the name.
    """

    topic: str
    case: str
    seconds: dict[str, float] = field(default_factory=dict)
    speedup: float | None = None
    floor_share: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)


def time_row(topic: str, case: str, ways: Mapping[str, Callable[[], Any]], rounds: int, **figures: Any) -> Row:
    """Time several ways to do one thing; each is called once beforehand."""
    for call in ways.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    return Row(
        topic,
        case,
        {name: statistics.median(values) for name, values in seconds.items()},
        median_ratio(seconds, PEER),
        median_ratio(seconds, FLOOR),
        figures,
    )


def median_ratio(seconds: Mapping[str, list[float]], way: str) -> float | None:
    """Median over the rounds of `way` / product."""
    if way not in seconds:
        return None
    return statistics.median(one / own for one, own in zip(seconds[way], seconds[PRODUCT], strict=True))
