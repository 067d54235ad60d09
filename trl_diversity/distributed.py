# SPDX-License-Identifier: Apache-2.0
"""The one place that talks to other ranks: gather in rank order, deal out, exchange errors, take the local slice."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from accelerate.utils import gather_object


T = TypeVar("T")
R = TypeVar("R")


def gather_in_rank_order(items: list[T]) -> list[T]:
    """
    Concatenate the lists of all ranks, rank 0 first. Collective: every rank reaches this.

    Args:
        items (`list`):
            What this rank contributes; any picklable values, any length.

    Raises:
        `TypeError`: if `items` is not a list. A bare string would be gathered letter by letter.
    """
    if not isinstance(items, list):
        raise TypeError(f"Only a list can be gathered in order, got {type(items).__name__}: wrap the value in a list.")
    return gather_object(items)


def exchange(value: T | None, error: Exception | None, rank: int) -> list[T]:
    """
    Give every rank the values of all ranks, or raise on every rank if one of them failed. Collective.

    A rank that failed raises its own exception, with its traceback. The others raise a `RuntimeError` that holds the
    original type and message.

    Args:
        value (`Any`):
            What this rank contributes. Not read where `error` is given.
        error (`Exception` or `None`):
            The exception that this rank caught.
        rank (`int`):
            This rank's index, for the message.

    Returns:
        `list`: the values in rank order.
    """
    failure = None
    if error is not None:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        failure = f"rank {rank} failed with {type(error).__name__}: {error}{notes}"
    outcomes = gather_in_rank_order([(failure, None if error is not None else value)])
    failures = [failed for failed, _ in outcomes if failed is not None]
    if error is not None:
        raise error
    if failures:
        raise RuntimeError("; ".join(failures))
    return [outcome for _, outcome in outcomes]  # type: ignore[misc]


def max_over_ranks(value: int) -> int:
    """The largest of the values that the ranks pass. Collective: every rank reaches this."""
    return max(gather_in_rank_order([value]))


def deal_out(costs: Sequence[float], world_size: int) -> list[list[int]]:
    """
    Deal pieces of work out over the ranks so that their costs are balanced: the dearest first, to the least loaded.

    Args:
        costs (`Sequence[float]`):
            Cost of every piece, in any unit.
        world_size (`int`):
            Number of ranks.

    Returns:
        `list[list[int]]` of length `world_size`: indices of each rank's pieces, in ascending order. Every index occurs
        once; the same on every rank.
    """
    shares: list[list[int]] = [[] for _ in range(world_size)]
    loads = [(0.0, rank) for rank in range(world_size)]
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        load, rank = heapq.heappop(loads)
        shares[rank].append(index)
        heapq.heappush(loads, (load + costs[index], rank))
    return [sorted(share) for share in shares]


def map_dealt_out(
    function: Callable[[list[T]], tuple[list[R], Any]],
    items: list[T],
    costs: Sequence[float],
    rank: int,
    world_size: int,
    error: Exception | None = None,
) -> tuple[list[R], list[Any]]:
    """
    Apply a function to items that all ranks know, each item on one rank alone. Collective: every rank reaches this.

    Args:
        function (`Callable`):
            Takes this rank's items and returns one result for each, and anything else that is of interest. Called on
            every rank, with an empty list where nothing was dealt to it.
        items (`list`):
            The items, the same on every rank.
        costs (`Sequence[float]`):
            Cost of every item, by which they are dealt out.
        rank (`int`), world_size (`int`):
            This rank's index and the number of ranks.
        error (`Exception`, *optional*):
            An exception that this rank caught earlier; then the function is not called and all ranks raise.

    Returns:
        `tuple[list, list]`: the results of all items, in order, and what else each rank returned.

    Raises:
        `Exception`: on every rank, if the function failed on one of them (see [`exchange`]).
    """
    shares = deal_out(costs, world_size)
    outcome = None
    if error is None:
        try:
            outcome = function([items[index] for index in shares[rank]])
        except Exception as caught:
            error = caught
    outcomes = exchange(outcome, error, rank)
    results: dict[int, R] = {}
    for share, (share_results, _) in zip(shares, outcomes, strict=True):
        results.update(zip(share, share_results, strict=True))
    return [results[index] for index in range(len(items))], [extra for _, extra in outcomes]


def local_slice(values: Sequence[T], local_length: int, rank: int) -> list[T]:
    """This rank's part of a gathered sequence to which every rank contributed `local_length` values."""
    return list(values[rank * local_length : (rank + 1) * local_length])
