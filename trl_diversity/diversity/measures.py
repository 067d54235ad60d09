# SPDX-License-Identifier: Apache-2.0
"""Measures of how unlike the rest of its group each completion is."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from trl_diversity.diversity.clustering import (
    CLUSTERINGS,
    ClosureScheduler,
    GreedyScheduler,
    Pair,
    PairwiseScheduler,
    label_diversity,
    number_by_first_appearance,
    short_answers_equivalent,
)
from trl_diversity.diversity.groups import CompletionGroup, GroupDiversity, is_empty
from trl_diversity.diversity.ngrams import novel_ngram_fractions
from trl_diversity.equivalence.base import EquivalenceModel


_SHOWN_CHARACTERS = 80


@runtime_checkable
class DiversityMeasure(Protocol):
    """
    Scores the completions of whole groups; a plain function over groups with these two attributes will do.

    A measure may also have a method `pop_statistics() -> dict[str, int]`, which returns and clears counts gathered
    since the last call. They are summed over the ranks and logged as `diversity/<key>`.

    Attributes:
        name (`str`):
            Shown in errors.
        needs_logprobs (`bool`):
            Whether the groups must carry `mean_logprobs`. False for all but [`UnlikelinessDiversity`].
    """

    name: str
    needs_logprobs: bool

    def __call__(self, groups: list[CompletionGroup]) -> list[GroupDiversity]:
        """One [`GroupDiversity`] for every group, in order. Groups do not influence each other."""
        ...


class PartitionDiversity:
    """
    Share of its group that a completion means something else than (arXiv 2509.02534, Eq. 4).

    An equivalence model judges pairs. Equal texts are one cluster without asking, and a pair whose two members are
    already known to share a cluster is never asked, which changes the cost but not the result. Empty completions are
    one cluster and get diversity 0.

    Args:
        model ([`EquivalenceModel`]):
            Gives the probability that two completions mean the same.
        clustering (`str`, *optional*, defaults to `"closure"`):
            `"closure"`: transitive closure of the judgements, as in Darling. `"greedy"`: each completion is compared
            with the first member of every cluster so far, as in NoveltyBench. `"pairwise"`: Eq. 4 on the raw
            judgements, without clusters. The first of the two texts in the group is always the first of the pair, so
            the result depends on the order of the completions only where the model's judgement does.
        threshold (`float`, *optional*):
            Pairs with a probability above it are equivalent. In `[0, 1]`. The model's own by default.
        short_answer_rule (`bool`, *optional*, defaults to `False`):
            Settle pairs of at most five words each by their common words, as NoveltyBench does. It calls "buy now"
            and "never buy now" the same.

    Raises:
        `ValueError`: if `clustering` is unknown or the threshold lies outside `[0, 1]`; on use, if the model gives a
        score that is not a finite number in `[0, 1]`, or not one for every pair.
    """

    name = "partition"
    needs_logprobs = False

    def __init__(
        self,
        model: EquivalenceModel,
        clustering: str = "closure",
        threshold: float | None = None,
        short_answer_rule: bool = False,
    ):
        if clustering not in CLUSTERINGS:
            raise ValueError(f"`clustering` is {clustering!r}; accepted are {', '.join(map(repr, CLUSTERINGS))}.")
        if threshold is None:
            threshold = model.threshold
        if not 0 <= threshold <= 1:
            raise ValueError(f"The threshold of {type(model).__name__} is a probability in [0, 1]; got {threshold}.")
        self.model = model
        self.clustering = clustering
        self.threshold = threshold
        self.short_answer_rule = short_answer_rule
        self._statistics: Counter[str] = Counter()

    def __call__(self, groups: list[CompletionGroup]) -> list[GroupDiversity]:
        by_first = getattr(self.model, "shares_first_text", False)
        partitions = [_Partition(group, self.clustering, self.short_answer_rule, by_first) for group in groups]
        active = partitions
        while active:
            rounds = [(partition, partition.next_pairs()) for partition in active]
            rounds = [(partition, pairs) for partition, pairs in rounds if pairs]
            self._judge(rounds)
            active = [partition for partition, _ in rounds]
        self._statistics["pairs_skipped"] += sum(math.comb(len(group.completions), 2) for group in groups)
        return [partition.diversity() for partition in partitions]

    def pop_statistics(self) -> dict[str, int]:
        """Counts since the last call, then cleared: `pairs_scored`, `pairs_skipped` and what the model counts."""
        statistics = {name: self._statistics[name] for name in ("pairs_scored", "pairs_skipped")}
        self._statistics.clear()
        pop_model_statistics = getattr(self.model, "pop_statistics", None)
        return statistics | (pop_model_statistics() if pop_model_statistics else {})

    def _judge(self, rounds: "list[tuple[_Partition, list[Pair]]]") -> None:
        """Ask the model for one round of pairs of all groups at once and hand the judgements back."""
        asked = [(partition, pair) for partition, pairs in rounds for pair in pairs]
        if not asked:
            return
        texts = [(partition.texts[first], partition.texts[second]) for partition, (first, second) in asked]
        scores = self.model.score_pairs(texts, prompts=[partition.prompt for partition, _ in asked])
        for (partition, pair), score in zip(asked, self._checked(scores, texts), strict=True):
            partition.record(pair, score > self.threshold)
        self._statistics["pairs_scored"] += len(asked)
        self._statistics["pairs_skipped"] -= len(asked)

    def _checked(self, scores: Sequence[float], texts: list[tuple[str, str]]) -> list[float]:
        model = type(self.model).__name__
        values = [math.nan if score is None else float(score) for score in scores]
        if len(values) != len(texts):
            raise ValueError(f"{model}.score_pairs gave {len(values)} scores for {len(texts)} pairs; give one each.")
        for score, value, (first, second) in zip(scores, values, texts, strict=True):
            if not 0 <= value <= 1:  # also true for NaN
                raise ValueError(
                    f"{model}.score_pairs gave {score} for the pair ({_shorten(first)!r}, {_shorten(second)!r}). "
                    "A score is the probability that the two mean the same, a finite number in [0, 1]."
                )
        return values


class _Partition:
    """The distinct texts of one group while they are sorted into clusters."""

    def __init__(self, group: CompletionGroup, clustering: str, short_answer_rule: bool, by_first: bool):
        self.prompt = group.prompt
        self.texts = list(dict.fromkeys(text for text in group.completions if not is_empty(text)))
        node = {text: index for index, text in enumerate(self.texts)}
        self._nodes = [node.get(text) for text in group.completions]  # None: empty
        self._short_answer_rule = short_answer_rule
        n = len(self.texts)
        self._scheduler: ClosureScheduler | GreedyScheduler | PairwiseScheduler
        if clustering == "pairwise":
            self._scheduler = PairwiseScheduler(n)
        elif clustering == "greedy":
            self._scheduler = GreedyScheduler(n)
        else:
            self._scheduler = ClosureScheduler(n, by_first)
            self._merge_short_answers(n)

    def next_pairs(self) -> list[Pair]:
        """Pairs of distinct texts that only the model can judge; empty once the outcome is certain."""
        while pairs := self._scheduler.next_pairs():
            judged = {pair: self._short_answer_judgement(pair) for pair in pairs}
            for pair, equivalent in judged.items():
                if equivalent is not None:
                    self.record(pair, equivalent)
            if unknown := [pair for pair, equivalent in judged.items() if equivalent is None]:
                return unknown
        return []

    def record(self, pair: Pair, equivalent: bool) -> None:
        self._scheduler.record(pair, equivalent)

    def diversity(self) -> GroupDiversity:
        if isinstance(self._scheduler, PairwiseScheduler):
            return GroupDiversity(scores=self._pairwise_scores(self._scheduler), labels=None)
        clusters = self._scheduler.labels()
        labels = number_by_first_appearance([-1 if node is None else clusters[node] for node in self._nodes])
        scores = label_diversity(labels)
        return GroupDiversity(
            scores=[0.0 if node is None else score for node, score in zip(self._nodes, scores, strict=True)],
            labels=labels,
        )

    def _merge_short_answers(self, n: int) -> None:
        """Settle all short pairs before anything is asked: what they merge saves questions to the model."""
        for pair in [(first, second) for first in range(n) for second in range(first + 1, n)]:
            if self._short_answer_judgement(pair):
                self.record(pair, True)

    def _short_answer_judgement(self, pair: Pair) -> bool | None:
        if not self._short_answer_rule:
            return None
        return short_answers_equivalent(self.texts[pair[0]], self.texts[pair[1]])

    def _pairwise_scores(self, judged: PairwiseScheduler) -> list[float]:
        others = max(len(self._nodes) - 1, 1)
        scores = []
        for node in self._nodes:
            if node is None:
                scores.append(0.0)
                continue
            same = sum(other is not None and judged.are_equivalent(node, other) for other in self._nodes)
            scores.append((len(self._nodes) - same) / others if len(self._nodes) > 1 else 1.0)
        return scores


class NgramDiversity:
    """
    Share of a completion's word n-grams that no other completion of its group has (arXiv 2509.02534, section 6.2).

    Unlike the released code, a completion of fewer than `n` words is compared as a whole instead of getting 0, which
    as a factor would kill every short answer.

    Args:
        n (`int`, *optional*, defaults to `4`):
            Words per n-gram.

    Raises:
        `ValueError`: if `n` is below 1.
    """

    name = "ngram"
    needs_logprobs = False

    def __init__(self, n: int = 4):
        if n < 1:
            raise ValueError(f"`n` is the number of words per n-gram, at least 1; got {n}.")
        self.n = n

    def __call__(self, groups: list[CompletionGroup]) -> list[GroupDiversity]:
        return [GroupDiversity(scores=novel_ngram_fractions(group.completions, self.n)) for group in groups]


class UnlikelinessDiversity:
    """
    GRPO-Unlikeliness: `1 - beta_rank * rank / n`, rank 0 for the completion the policy finds least likely.

    The rank is that of the mean token log-probability (He et al., 2025, "Rewarding the Unlikely", released form).
    Equally likely completions share their mean rank, so that the order within the group does not matter. Empty
    completions get 0.

    Args:
        beta_rank (`float`, *optional*, defaults to `0.25`):
            How much the likeliest completion loses. In `[0, 1]`.

    Raises:
        `ValueError`: if `beta_rank` lies outside `[0, 1]`; on use, if a group has no log-probabilities, or one is NaN.
    """

    name = "unlikeliness"
    needs_logprobs = True

    def __init__(self, beta_rank: float = 0.25):
        if not 0 <= beta_rank <= 1:
            raise ValueError(f"`beta_rank` lies in [0, 1]; got {beta_rank}.")
        self.beta_rank = beta_rank

    def __call__(self, groups: list[CompletionGroup]) -> list[GroupDiversity]:
        return [self._score(group) for group in groups]

    def _score(self, group: CompletionGroup) -> GroupDiversity:
        logprobs, n = group.mean_logprobs, len(group.completions)
        if logprobs is None or len(logprobs) != n or any(math.isnan(value) for value in logprobs):
            raise ValueError(
                f"UnlikelinessDiversity needs the mean log-probability of each of the {n} completions; got {logprobs}."
            )
        below = [sum(other < value for other in logprobs) for value in logprobs]
        ties = [logprobs.count(value) - 1 for value in logprobs]
        scores = [
            0.0 if is_empty(text) else 1.0 - self.beta_rank * (less + tied / 2) / n
            for text, less, tied in zip(group.completions, below, ties, strict=True)
        ]
        return GroupDiversity(scores=scores)


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
