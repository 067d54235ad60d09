# SPDX-License-Identifier: Apache-2.0
"""Clusters of pairwise judgements against networkx and slow oracles, and the rounds in which pairs are asked."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_diversity.diversity import closure_labels, greedy_labels, label_diversity
from trl_diversity.diversity.clustering import (
    ClosureScheduler,
    GreedyScheduler,
    PairwiseScheduler,
    UnionFind,
    number_by_first_appearance,
    short_answers_equivalent,
)


networkx = pytest.importorskip("networkx")  # comes with torch

Pair = tuple[int, int]
FEW = settings(max_examples=60, deadline=None)
WORDS = st.lists(st.sampled_from(["buy", "Buy", "now", "never", "sell"]), max_size=7).map(" ".join)


@st.composite
def judgements(draw: st.DrawFn) -> tuple[int, set[Pair]]:
    """A number of completions and the ordered pairs that a model calls equivalent; no law holds for them."""
    n = draw(st.integers(0, 8))
    pairs = [(first, second) for first in range(n) for second in range(n) if first != second]
    return n, draw(st.sets(st.sampled_from(pairs))) if pairs else set()


def first_appearance(clusters: list[set[int]], n: int) -> list[int]:
    """Labels of disjoint sets, the set that holds the earliest completion first."""
    ordered = sorted(clusters, key=min)
    return [next(label for label, cluster in enumerate(ordered) if item in cluster) for item in range(n)]


def slow_greedy(n: int, equivalent: set[Pair]) -> list[int]:
    """NoveltyBench's loop, written out: against the first member of every class so far, in order."""
    classes: list[list[int]] = []
    for newcomer in range(n):
        for members in classes:
            if (members[0], newcomer) in equivalent:
                members.append(newcomer)
                break
        else:
            classes.append([newcomer])
    return first_appearance([set(members) for members in classes], n)


def run(scheduler: Any, is_equivalent: Callable[[Pair], bool]) -> list[list[Pair]]:
    """Answer a scheduler's questions until it has none; returns its rounds."""
    rounds = []
    while pairs := scheduler.next_pairs():
        rounds.append(pairs)
        for pair in pairs:
            scheduler.record(pair, is_equivalent(pair))
    assert scheduler.next_pairs() == [], "a scheduler that is done stays done"
    return rounds


@FEW
@given(judgements())
def test_closure_labels_are_the_connected_components(case: tuple[int, set[Pair]]) -> None:
    n, equivalent = case
    graph = networkx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(equivalent)
    assert closure_labels(n, equivalent) == first_appearance(list(networkx.connected_components(graph)), n)


def test_closure_is_transitive_and_numbered_by_first_appearance() -> None:
    """Completion 0 stands alone, so it is cluster 0, whatever the order and direction of the pairs."""
    assert closure_labels(5, [(4, 2), (1, 2)]) == [0, 1, 1, 2, 1]
    assert closure_labels(5, iter([(2, 1), (4, 1)])) == [0, 1, 1, 2, 1]
    assert closure_labels(3, [(1, 1)]) == [0, 1, 2]
    assert closure_labels(0, []) == []


@pytest.mark.parametrize("pair", [(0, 3), (3, 0), (-1, 0), (0, -1)])
def test_a_pair_outside_the_group_is_an_index_error(pair: Pair) -> None:
    """A negative index must not count from the end."""
    with pytest.raises(IndexError, match=r"\(-?\d, -?\d\).*0 \.\. 2"):
        closure_labels(3, [pair])


def test_closure_and_greedy_differ_on_non_transitive_judgements() -> None:
    """0 ~ 1 and 1 ~ 2, but not 0 ~ 2: the closure is one cluster, greedy compares with 0 alone."""
    equivalent = {(0, 1), (1, 2)}
    assert closure_labels(3, equivalent) == [0, 0, 0]
    assert greedy_labels(3, lambda *pair: pair in equivalent) == [0, 0, 1]


@FEW
@given(judgements())
def test_greedy_labels_and_the_order_of_each_question(case: tuple[int, set[Pair]]) -> None:
    n, equivalent = case
    asked: list[Pair] = []

    def judge(representative: int, newcomer: int) -> bool:
        asked.append((representative, newcomer))
        return (representative, newcomer) in equivalent

    labels = greedy_labels(n, judge)
    assert labels == slow_greedy(n, equivalent)
    assert len(asked) == len(set(asked))
    assert all(labels.index(labels[representative]) == representative < newcomer for representative, newcomer in asked)


@FEW
@given(judgements(), st.booleans())
def test_closure_scheduler_gives_the_partition_of_asking_all_pairs(
    case: tuple[int, set[Pair]], by_first: bool
) -> None:
    n, equivalent = case
    scheduler = ClosureScheduler(n, by_first)
    rounds = run(scheduler, equivalent.__contains__)
    forward = [pair for pair in equivalent if pair[0] < pair[1]]
    assert scheduler.labels() == closure_labels(n, forward)
    asked = list(itertools.chain(*rounds))
    assert len(asked) == len(set(asked)) and all(first < second for first, second in asked)
    known: list[Pair] = []
    for pairs in rounds:
        labels = closure_labels(n, known)
        assert all(labels[first] != labels[second] for first, second in pairs), "known to be one cluster already"
        known += equivalent.intersection(pairs)


@FEW
@given(st.lists(st.integers(0, 4), max_size=10), st.booleans())
def test_closure_scheduler_wastes_no_question_on_transitive_judgements(clusters: list[int], by_first: bool) -> None:
    """One positive answer for every merge, and each pair across clusters once, whatever the order; in few rounds."""
    n = len(clusters)
    rounds = run(ClosureScheduler(n, by_first), lambda pair: clusters[pair[0]] == clusters[pair[1]])
    across = sum(clusters[i] != clusters[j] for i in range(n) for j in range(i))
    assert sum(map(len, rounds)) == n - len(set(clusters)) + across
    assert len(rounds) <= (10 if by_first else 8)


def test_closure_scheduler_asks_for_the_partners_of_one_first_item_together() -> None:
    rounds = run(ClosureScheduler(5, by_first=True), lambda pair: False)
    assert [[first for first, _ in pairs] for pairs in rounds] == [[0] * 4, [1] * 3, [2] * 2, [3]]


@FEW
@given(judgements())
def test_greedy_scheduler_gives_the_labels_of_the_loop(case: tuple[int, set[Pair]]) -> None:
    n, equivalent = case
    scheduler = GreedyScheduler(n)
    asked = list(itertools.chain(*run(scheduler, equivalent.__contains__)))
    assert scheduler.labels() == slow_greedy(n, equivalent)
    assert len(asked) == len(set(asked))


@FEW
@given(judgements())
def test_pairwise_scheduler_keeps_raw_judgements(case: tuple[int, set[Pair]]) -> None:
    n, equivalent = case
    scheduler = PairwiseScheduler(n)
    assert len(run(scheduler, equivalent.__contains__)) <= 1
    for first, second in itertools.product(range(n), repeat=2):
        expected = first == second or (min(first, second), max(first, second)) in equivalent
        assert scheduler.are_equivalent(first, second) == expected


def test_union_find_says_whether_sets_were_apart() -> None:
    sets = UnionFind(4)
    assert [sets.union(0, 1), sets.union(2, 3), sets.union(1, 0)] == [True, True, False]
    assert [sets.union(3, 1), sets.union(0, 2), sets.union(2, 2)] == [True, False, False]
    assert sets.labels() == [0, 0, 0, 0]


def test_numbers_follow_first_appearance() -> None:
    assert number_by_first_appearance([7, -1, 7, 0, -1]) == [0, 1, 0, 2, 1]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 0, 1, 2], [2 / 3, 2 / 3, 1, 1]),  # the worked example of the paper's figure 2
        ([0, 0, 0, 0, 0], [0] * 5),
        ([0, 1, 2], [1, 1, 1]),
        ([0], [1]),
        ([], []),
        ([5, -1, 5, 5], [1 / 3, 1, 1 / 3, 1 / 3]),  # names of clusters do not matter
        ([0, 1, 2, 3, 0, 1, 2, 3], [6 / 7] * 8),  # FC-001: the whole group, not a rank's half of it
    ],
)
def test_label_diversity(labels: list[int], expected: list[float]) -> None:
    assert label_diversity(labels) == pytest.approx(expected)


@FEW
@given(st.lists(st.integers(0, 4), min_size=2, max_size=9))
def test_label_diversity_is_equation_4(labels: list[int]) -> None:
    """`1/(n-1) * sum over j != i of d(y_i, y_j)`, summed one by one."""
    n = len(labels)
    slow = [sum(labels[i] != labels[j] for j in range(n) if j != i) / (n - 1) for i in range(n)]
    assert label_diversity(labels) == pytest.approx(slow)


def slow_short_answer_rule(first: str, second: str) -> bool | None:
    """The rule of NoveltyBench, word for word: at most five words each; word count of the longer, not its set."""
    u, v = first.lower().split(), second.lower().split()
    if len(u) > 5 or len(v) > 5:
        return None
    shared = 0
    for word in set(u):
        if word in v:
            shared += 1
    return shared * 2 >= (len(u) if len(u) > len(v) else len(v))


@FEW
@given(WORDS, WORDS)
def test_short_answer_rule(first: str, second: str) -> None:
    assert short_answers_equivalent(first, second) == slow_short_answer_rule(first, second)
    assert short_answers_equivalent(first, second) == short_answers_equivalent(second, first)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("buy now", "never buy now", True),  # FC-130
        ("Buy NOW", "buy now", True),
        ("one two", "three four", False),
        ("a b c d", "a b", True),  # 2 x 2 >= 4
        ("a b c d e", "a b", False),  # 2 x 2 < 5
        ("no no no no", "no", False),  # the count of the longer one's words, not of its different words
        ("a b c d e", "a b c d e f", None),
        ("a b c d e f", "a", None),
    ],
)
def test_short_answer_examples(first: str, second: str, expected: bool | None) -> None:
    assert short_answers_equivalent(first, second) is expected
