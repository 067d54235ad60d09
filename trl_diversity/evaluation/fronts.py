# SPDX-License-Identifier: Apache-2.0
"""Which points of quality and diversity are beaten in both."""

from collections.abc import Sequence
from typing import Any


def mark_dominated(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """
    Points with the key `dominated`: whether another is at least as good in `quality` and `distinct`, better in one.

    The means are compared as they are; their intervals say how sure that is.
    """
    return [{**point, "dominated": any(_beats(other, point) for other in points)} for point in points]


def _beats(first: dict[str, Any], second: dict[str, Any]) -> bool:
    one, other = ((point["quality"], point["distinct"]) for point in (first, second))
    return one != other and one[0] >= other[0] and one[1] >= other[1]
