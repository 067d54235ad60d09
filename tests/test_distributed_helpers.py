# SPDX-License-Identifier: Apache-2.0
"""Dealing work out, exchanging errors and slicing, with ranks played by threads; real ranks: tests/distributed."""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_diversity import distributed
from trl_diversity.distributed import (
    deal_out,
    exchange,
    gather_in_rank_order,
    local_slice,
    map_dealt_out,
    max_over_ranks,
)


COSTS = st.lists(st.integers(0, 1000), max_size=12)
PROPERTY = settings(max_examples=80, deadline=None)


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[int], Any]], list[Any]]:
    """
    Run a function on several ranks at once; each rank's entry is what it returned, or the exception it raised.

    A rank that leaves out a collective call, or makes one too many, breaks the barrier and fails the test.
    """

    def run(world_size: int, function: Callable[[int], Any]) -> list[Any]:
        barrier = threading.Barrier(world_size, timeout=5)
        posted: list[list[Any]] = [[] for _ in range(world_size)]
        rank_of: dict[int, int] = {}
        results: list[Any] = [None] * world_size

        def gather(items: list[Any]) -> list[Any]:
            posted[rank_of[threading.get_ident()]] = items
            barrier.wait()
            gathered = list(itertools.chain(*posted))
            barrier.wait()
            return gathered

        def work(rank: int) -> None:
            rank_of[threading.get_ident()] = rank
            try:
                results[rank] = function(rank)
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world_size)]
        with monkeypatch.context() as patch:
            patch.setattr(distributed, "gather_object", gather)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not any(isinstance(result, threading.BrokenBarrierError) for result in results)
        return results

    return run


@PROPERTY
@given(COSTS, st.integers(1, 5))
def test_deal_out_deals_each_piece_once_and_balances(costs: list[int], world_size: int) -> None:
    shares = deal_out(costs, world_size)
    assert len(shares) == world_size
    assert sorted(itertools.chain(*shares)) == list(range(len(costs)))
    assert all(share == sorted(share) for share in shares)
    assert shares == deal_out(list(costs), world_size), "the same on every rank"
    loads = [sum(costs[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs, default=0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=7), st.integers(2, 3))
def test_deal_out_is_at_most_a_third_above_the_best_possible(costs: list[int], world_size: int) -> None:
    """Graham's bound for the dearest first, against all ways of dealing out."""
    best = min(
        max(sum(c for c, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(world_size))
        for owners in itertools.product(range(world_size), repeat=len(costs))
    )
    dearest = max(sum(costs[index] for index in share) for share in deal_out(costs, world_size))
    assert dearest <= (4 / 3 - 1 / (3 * world_size)) * best + 1e-9


@pytest.mark.parametrize(
    ("costs", "world_size", "expected"),
    [
        ([8, 7, 6, 5], 2, [[0, 3], [1, 2]]),
        ([1, 100, 1, 1], 2, [[1], [0, 2, 3]]),
        ([3, 3], 4, [[0], [1], [], []]),
        ([], 3, [[], [], []]),
        ([5, 5, 5], 1, [[0, 1, 2]]),
    ],
)
def test_deal_out_examples(costs: list[int], world_size: int, expected: list[list[int]]) -> None:
    """Ties go to the earlier piece and the lower rank, so that every rank computes the same."""
    assert deal_out(costs, world_size) == expected


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_map_dealt_out_keeps_order_and_scores_each_item_once(on_ranks, world_size: int) -> None:
    """More ranks than items included: a rank with nothing to do is called with nothing."""
    items, calls = ["aaaa", "b", "cc", "ddd"], []

    def upper(texts: list[str]) -> tuple[list[str], int]:
        calls.append(texts)
        return [text.upper() for text in texts], len(texts)

    costs = [len(item) for item in items]
    outcomes = on_ranks(world_size, lambda rank: map_dealt_out(upper, items, costs, rank, world_size))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    results, extras = outcomes[0]
    assert results == ["AAAA", "B", "CC", "DDD"]
    assert len(extras) == len(calls) == world_size and sum(extras) == 4
    assert sorted(itertools.chain(*calls)) == items


def test_map_dealt_out_without_launcher() -> None:
    """One process, no process group: plain Python, through the real gather."""
    assert map_dealt_out(lambda xs: ([x * x for x in xs], "more"), [3, 1, 2], [1, 9, 5], 0, 1) == ([9, 1, 4], ["more"])
    assert map_dealt_out(lambda xs: ([], len(xs)), [], [], 0, 1) == ([], [0])


def test_an_error_on_one_rank_is_raised_on_every_rank(on_ranks) -> None:
    """The rank that failed raises its own exception; the others say which rank it was, and the original message."""

    def fail_on_b(texts: list[str]) -> tuple[list[str], None]:
        if "b" in texts:
            raise KeyError("the server said 503")
        return texts, None

    outcomes = on_ranks(3, lambda rank: map_dealt_out(fail_on_b, ["a", "b", "c"], [1, 1, 1], rank, 3))
    assert type(outcomes[1]) is KeyError and outcomes[1].__traceback__ is not None
    for outcome in (outcomes[0], outcomes[2]):
        assert type(outcome) is RuntimeError
        assert all(part in str(outcome) for part in ("rank 1", "KeyError", "the server said 503"))


def test_an_earlier_error_skips_the_function_but_not_the_exchange(on_ranks) -> None:
    called = []

    def record(items: list[int]) -> tuple[list[int], None]:
        called.append(items)
        return items, None

    earlier = OSError("disk full")
    outcomes = on_ranks(2, lambda rank: map_dealt_out(record, [1, 2], [1, 1], rank, 2, earlier if rank == 0 else None))
    assert outcomes[0] is earlier and called == [[2]]
    assert isinstance(outcomes[1], RuntimeError) and "disk full" in str(outcomes[1])


def test_a_wrong_number_of_results_is_an_error_on_every_rank(on_ranks) -> None:
    """A measure that returns too few must not shift the results of the others."""
    outcomes = on_ranks(2, lambda rank: map_dealt_out(lambda xs: (xs[1:], None), [1, 2, 3, 4], [1] * 4, rank, 2))
    assert all(isinstance(outcome, ValueError) for outcome in outcomes)


def test_exchange_gives_values_in_rank_order_and_names_every_failure(on_ranks) -> None:
    assert on_ranks(3, lambda rank: exchange([rank], None, rank)) == [[[0], [1], [2]]] * 3
    assert exchange(None, None, 0) == [None]
    errors = [ValueError("first"), None, TypeError("third")]
    outcomes = on_ranks(3, lambda rank: exchange("value", errors[rank], rank))
    assert outcomes[0] is errors[0] and outcomes[2] is errors[2]
    assert "rank 0 failed with ValueError: first" in str(outcomes[1])
    assert "rank 2 failed with TypeError: third" in str(outcomes[1])


def test_fc_057_gather_keeps_strings_whole(on_ranks) -> None:
    """FC-057: in rank order, ranks may differ in length, and a bare string is refused, not cut into letters."""
    texts = [["abc", "d"], ["e", "fg", "h"], []]
    assert on_ranks(3, lambda rank: gather_in_rank_order(texts[rank])) == [["abc", "d", "e", "fg", "h"]] * 3
    assert gather_in_rank_order(["abc"]) == ["abc"]
    for wrong in ("abc", ("abc",), {"abc": 1}):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            gather_in_rank_order(wrong)  # type: ignore[arg-type]


def test_the_largest_value_of_all_ranks(on_ranks) -> None:
    assert on_ranks(3, lambda rank: max_over_ranks([-5, -1, -3][rank])) == [-1] * 3


def test_local_slices_are_the_gathered_sequence() -> None:
    gathered = list("abcdef")
    assert [local_slice(gathered, 2, rank) for rank in range(3)] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert local_slice(gathered, 6, 0) == gathered and local_slice([], 0, 1) == []
