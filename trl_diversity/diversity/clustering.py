# SPDX-License-Identifier: Apache-2.0
"""From judgements of pairs to clusters, and which pairs still need to be judged."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol


Pair = tuple[int, int]
CLUSTERINGS = ("closure", "greedy", "pairwise")
SHORT_ANSWER_WORDS = 5


def number_by_first_appearance(ids: Sequence[int]) -> list[int]:
    """Rename cluster ids so that they count up from 0 in the order in which they first appear."""
    names: dict[int, int] = {}
    return [names.setdefault(identity, len(names)) for identity in ids]


class UnionFind:
    """Disjoint sets of `0 .. n - 1`."""

    def __init__(self, n: int):
        self._parent = list(range(n))

    def find(self, item: int) -> int:
        """The member that stands for the set of `item`."""
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def union(self, first: int, second: int) -> bool:
        """Merge two sets. Returns whether they were apart."""
        first, second = self.find(first), self.find(second)
        self._parent[max(first, second)] = min(first, second)
        return first != second

    def labels(self) -> list[int]:
        """Cluster of every item, numbered by first appearance."""
        return number_by_first_appearance([self.find(item) for item in range(len(self._parent))])


def closure_labels(n: int, equivalent_pairs: Iterable[Pair]) -> list[int]:
    """
    Clusters of the transitive closure of pairwise judgements, as in Darling's training.

    Args:
        n (`int`):
            Number of completions.
        equivalent_pairs (`Iterable[tuple[int, int]]`):
            Pairs judged equivalent, in any order and direction.

    Returns:
        `list[int]` of length `n`: labels numbered by first appearance.

    Raises:
        `IndexError`: if a pair names a completion outside `0 .. n - 1`.
    """
    sets = UnionFind(n)
    for first, second in equivalent_pairs:
        if not (0 <= first < n and 0 <= second < n):
            raise IndexError(f"The pair ({first}, {second}) names a completion outside 0 .. {n - 1}.")
        sets.union(first, second)
    return sets.labels()


def greedy_labels(n: int, are_equivalent: Callable[[int, int], bool]) -> list[int]:
    """
    NoveltyBench's clusters: each completion joins the first cluster whose first member it is equivalent to.

    Args:
        n (`int`):
            Number of completions.
        are_equivalent (`Callable[[int, int], bool]`):
            Judges `(representative, newcomer)`, in that order.

    Returns:
        `list[int]` of length `n`: labels numbered by first appearance.
    """
    representatives: list[int] = []
    labels = []
    for newcomer in range(n):
        matches = (k for k, representative in enumerate(representatives) if are_equivalent(representative, newcomer))
        label = next(matches, len(representatives))
        if label == len(representatives):
            representatives.append(newcomer)
        labels.append(label)
    return labels


def short_answers_equivalent(first: str, second: str) -> bool | None:
    """
    NoveltyBench's rule for answers of at most five words: equal where half of the longer one's words are shared.

    It calls "buy now" and "never buy now" the same, which is why it is off by default.

    Returns:
        `bool`, or `None` where one of the two is longer, so that the rule does not apply.
    """
    words_first, words_second = first.lower().split(), second.lower().split()
    longest = max(len(words_first), len(words_second))
    if longest > SHORT_ANSWER_WORDS:
        return None
    return 2 * len(set(words_first) & set(words_second)) >= longest


class Scheduler(Protocol):
    """Decides in rounds which pairs of one group are judged. A round is empty once the outcome is certain."""

    def next_pairs(self) -> list[Pair]:
        """Pairs to be judged now; none of them can be inferred from what is known."""
        ...

    def record(self, pair: Pair, equivalent: bool) -> None:
        """Take the judgement of a pair of the last round."""
        ...


class ClosureScheduler:
    """
    Asks for pairs until the transitive closure is certain, never for two members of one cluster.

    A round holds a forest over the clusters that were not compared yet, and all pairs across clusters that were found
    different. So with transitive judgements no question is wasted: a group of `n` in `k` clusters costs `n - k`
    positive answers, and each pair across clusters once. Rounds are few, at most about `n`.

    Args:
        n (`int`):
            Number of items.
        by_first (`bool`, *optional*, defaults to `False`):
            Ask for pairs with the same first item together, as far as that wastes no question. More rounds, but a
            model that reads a first text once for all its partners has less to read.
    """

    def __init__(self, n: int, by_first: bool = False):
        self._sets = UnionFind(n)
        self._different: list[Pair] = []
        # Neighbours first, then those two apart, and so on: forests become long paths, and there are few of them.
        self._open = [(start, start + gap) for gap in range(1, n) for start in range(n - gap)]
        if by_first:
            self._open.sort()

    def next_pairs(self) -> list[Pair]:
        found_different = {self._clusters(pair) for pair in self._different}
        forest = UnionFind(len(self._sets.labels()))
        chosen: list[Pair] = []
        remaining: list[Pair] = []
        for pair in self._open:
            first, second = self._clusters(pair)
            if first == second:
                continue  # follows from what is known
            is_asked = (first, second) in found_different or forest.union(first, second)
            (chosen if is_asked else remaining).append(pair)
        self._open = remaining
        return chosen

    def record(self, pair: Pair, equivalent: bool) -> None:
        if equivalent:
            self._sets.union(*pair)
        else:
            self._different.append(pair)

    def labels(self) -> list[int]:
        """Cluster of every item, numbered by first appearance. Certain once `next_pairs` gave none."""
        return self._sets.labels()

    def _clusters(self, pair: Pair) -> Pair:
        first, second = self._sets.find(pair[0]), self._sets.find(pair[1])
        return min(first, second), max(first, second)


class GreedyScheduler:
    """Asks `(representative, newcomer)` for all completions without a cluster at once; equals `greedy_labels`."""

    def __init__(self, n: int):
        self._representative = [-1] * n
        self._free = list(range(n))

    def next_pairs(self) -> list[Pair]:
        pairs: list[Pair] = []
        while self._free and not pairs:
            first, *self._free = self._free
            self._representative[first] = first
            pairs = [(first, newcomer) for newcomer in self._free]
        return pairs

    def record(self, pair: Pair, equivalent: bool) -> None:
        if equivalent:
            representative, newcomer = pair
            self._representative[newcomer] = representative
            self._free.remove(newcomer)

    def labels(self) -> list[int]:
        """Cluster of every item, numbered by first appearance. Certain once `next_pairs` gave none."""
        return number_by_first_appearance(self._representative)


class PairwiseScheduler:
    """Asks for all pairs at once and keeps the raw judgements, without closing them."""

    def __init__(self, n: int):
        self._open = [(first, second) for first in range(n) for second in range(first + 1, n)]
        self._equivalent = {(item, item) for item in range(n)}

    def next_pairs(self) -> list[Pair]:
        pairs, self._open = self._open, []
        return pairs

    def record(self, pair: Pair, equivalent: bool) -> None:
        if equivalent:
            self._equivalent |= {pair, pair[::-1]}

    def are_equivalent(self, first: int, second: int) -> bool:
        """The judgement of a pair, the same in both directions; an item is equivalent to itself."""
        return (first, second) in self._equivalent


def label_diversity(labels: Sequence[int]) -> list[float]:
    """
    Share of its group that each completion differs from, `(n - |cluster|) / (n - 1)` (arXiv 2509.02534, Eq. 4).

    Labels `[0, 0, 1, 2]` give `[2/3, 2/3, 1, 1]`; a single completion has nothing to be equal to and gets 1.

    Args:
        labels (`Sequence[int]` of length `n`):
            Cluster of every completion of one group.

    Returns:
        `list[float]` of length `n`, in `[0, 1]`.
    """
    n = len(labels)
    if n <= 1:
        return [1.0] * n
    sizes = Counter(labels)
    return [(n - sizes[label]) / (n - 1) for label in labels]
