# SPDX-License-Identifier: Apache-2.0
"""`PartitionDiversity` against brute force over all pairs, what it costs in questions, and what bad models get."""

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_diversity.diversity import CompletionGroup, GroupDiversity, PartitionDiversity


Judge = Callable[[str, str, str], float]  # prompt, first, second -> P(equivalent)
PROPERTY = settings(max_examples=80, deadline=None)
CLUSTERINGS = ["closure", "greedy", "pairwise"]


class RecordingModel:
    """An equivalence model made of a function; keeps what it was asked, one list per call."""

    threshold = 0.5

    def __init__(self, judge: Judge):
        self.judge = judge
        self.calls: list[list[tuple[str, str, str]]] = []

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        assert prompts is not None and len(prompts) == len(pairs) > 0
        self.calls.append([(prompt, *pair) for prompt, pair in zip(prompts, pairs, strict=True)])
        return [self.judge(*asked) for asked in self.calls[-1]]

    @property
    def asked(self) -> list[tuple[str, str, str]]:
        return [question for call in self.calls for question in call]


def arbitrary(seed: int) -> Judge:
    """Judgements without any law: neither symmetric nor transitive, and another one for every prompt."""
    return lambda prompt, first, second: random.Random(f"{seed}|{prompt}|{first}|{second}").random()


def symmetric(seed: int) -> Judge:
    return lambda prompt, first, second: arbitrary(seed)(prompt, *sorted([first, second]))


def same_first_letter(prompt: str, first: str, second: str) -> float:
    return float(first[0] == second[0])


def all_different(prompt: str, first: str, second: str) -> float:
    return 0.0


WORDS = st.lists(st.sampled_from(["buy", "sell", "now", "never"]), min_size=1, max_size=6).map(" ".join)


@st.composite
def groups(draw: st.DrawFn, max_groups: int = 3) -> list[CompletionGroup]:
    """Groups with duplicates (a small pool of texts), empty completions, short and long answers."""
    pool = draw(st.lists(WORDS, min_size=1, max_size=6)) + ["", " \n"]
    texts = st.lists(st.sampled_from(pool), min_size=1, max_size=8)
    return [CompletionGroup(f"p{k}", draw(texts)) for k in range(draw(st.integers(1, max_groups)))]


def is_same(group: CompletionGroup, i: int, j: int, judge: Judge, threshold: float, short_rule: bool) -> bool:
    """The judgement of one pair of non-empty completions, `i` as the first of the two."""
    first, second = group.completions[i], group.completions[j]
    if first == second:
        return True
    u, v = first.split(), second.split()
    if short_rule and len(u) <= 5 and len(v) <= 5:
        return len(set(u) & set(v)) * 2 >= max(len(u), len(v))
    return judge(group.prompt, first, second) > threshold


def brute_force(
    group: CompletionGroup, clustering: str, judge: Judge, threshold: float, short_rule: bool
) -> GroupDiversity:
    """Every pair is judged, one at a time; Eq. 4 is summed one by one; empty ones are one cluster of diversity 0."""
    n, texts = len(group.completions), group.completions
    empty = [not text.strip() for text in texts]
    seen = [texts.index(text) for text in texts]  # the text that appears first is the first of the pair

    def same(i: int, j: int) -> bool:
        if empty[i] or empty[j]:
            return empty[i] and empty[j]
        i, j = sorted((i, j), key=lambda k: seen[k])
        return is_same(group, i, j, judge, threshold, short_rule)

    if clustering == "pairwise":
        related = [[same(i, j) for j in range(n)] for i in range(n)]
    elif clustering == "closure":
        related = [[i == j or same(i, j) for j in range(n)] for i in range(n)]
        for k in range(n):  # Warshall
            related = [[related[i][j] or (related[i][k] and related[k][j]) for j in range(n)] for i in range(n)]
    else:
        first_of: list[int] = []
        for newcomer in range(n):
            first_of.append(next((r for r in sorted(set(first_of)) if same(r, newcomer)), newcomer))
        related = [[first_of[i] == first_of[j] for j in range(n)] for i in range(n)]
    scores = [
        0.0 if empty[i] else 1.0 if n == 1 else sum(not related[i][j] for j in range(n) if j != i) / (n - 1)
        for i in range(n)
    ]
    if clustering == "pairwise":
        return GroupDiversity(scores, None)
    heads = [related[i].index(True) for i in range(n)]
    return GroupDiversity(scores, [sorted(set(heads)).index(head) for head in heads])


@PROPERTY
@pytest.mark.parametrize("clustering", CLUSTERINGS)
@given(groups(), st.integers(0, 9999), st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]), st.booleans())
def test_partition_equals_brute_force(
    clustering: str, batch: list[CompletionGroup], seed: int, threshold: float, short_rule: bool
) -> None:
    """Also that groups do not interact: brute force sees one group at a time, with its own prompt."""
    judge = arbitrary(seed)
    model = RecordingModel(judge)
    results = PartitionDiversity(model, clustering, threshold, short_answer_rule=short_rule)(batch)
    for group, result in zip(batch, results, strict=True):
        expected = brute_force(group, clustering, judge, threshold, short_rule)
        assert result.labels == expected.labels
        assert result.scores == pytest.approx(expected.scores)
        assert all(0 <= score <= 1 for score in result.scores)
    assert len(model.asked) == len(set(model.asked)), "a pair was asked twice"


@PROPERTY
@pytest.mark.parametrize("clustering", ["closure", "greedy"])
@given(groups(), st.integers(0, 9999), st.booleans())
def test_no_pair_is_asked_whose_members_share_a_cluster(
    clustering: str, batch: list[CompletionGroup], seed: int, short_rule: bool
) -> None:
    """By what was known when the round was asked."""
    judge, model = arbitrary(seed), RecordingModel(arbitrary(seed))
    PartitionDiversity(model, clustering, short_answer_rule=short_rule)(batch)
    clusters = {(group.prompt, text): {text} for group in batch for text in group.completions if text.strip()}

    def merge(prompt: str, first: str, second: str) -> None:
        joined = clusters[prompt, first] | clusters[prompt, second]
        clusters.update({(prompt, text): joined for text in joined})

    for call in model.calls:
        assert all(second not in clusters[prompt, first] for prompt, first, second in call)
        for question in call:
            if judge(*question) > 0.5:
                merge(*question)


@PROPERTY
@pytest.mark.parametrize("clustering", ["closure", "pairwise"])
@given(groups(max_groups=1), st.integers(0, 9999), st.booleans(), st.randoms(use_true_random=False))
def test_permuting_a_group_permutes_its_scores(
    clustering: str, batch: list[CompletionGroup], seed: int, short_rule: bool, shuffler: random.Random
) -> None:
    """For a symmetric model; FC-153: then the clusters do not depend on the order of the completions."""
    (group,) = batch
    order = shuffler.sample(range(len(group.completions)), len(group.completions))
    permuted = CompletionGroup(group.prompt, [group.completions[index] for index in order])
    measure = PartitionDiversity(RecordingModel(symmetric(seed)), clustering, short_answer_rule=short_rule)
    before, after = measure([group, permuted])
    assert after.scores == pytest.approx([before.scores[index] for index in order])


@pytest.mark.parametrize("clustering", CLUSTERINGS)
@pytest.mark.parametrize(
    ("completions", "scores", "labels"),
    [
        (["a1", "a2", "b1", "c1"], [2 / 3, 2 / 3, 1, 1], [0, 0, 1, 2]),
        (["a"] * 5, [0] * 5, [0] * 5),
        (["a"], [1], [0]),
        ([""], [0], [0]),
        (["", "a", " "], [0, 1, 0], [0, 1, 0]),
        (["a", "", "b"], [1, 0, 1], [0, 1, 2]),
        ([], [], []),
    ],
)
def test_worked_examples(clustering: str, completions: list[str], scores: list[float], labels: list[int]) -> None:
    (result,) = PartitionDiversity(RecordingModel(same_first_letter), clustering)([CompletionGroup("p", completions)])
    assert result.scores == pytest.approx(scores)
    assert result.labels == (None if clustering == "pairwise" else labels)


DISTINCT, TWO_CLUSTERS = list("abcdefgh"), ["a1", "a2", "b1", "a3", "b2", "b3", "a4", "b4"]


@pytest.mark.parametrize(
    ("clustering", "completions", "judge", "questions", "most_calls"),
    [
        ("closure", DISTINCT, all_different, 28, 5),
        ("greedy", DISTINCT, all_different, 28, 7),
        ("pairwise", DISTINCT, all_different, 28, 1),
        ("closure", TWO_CLUSTERS, same_first_letter, 22, 5),
        ("closure", sorted(TWO_CLUSTERS), same_first_letter, 22, 5),
        ("greedy", TWO_CLUSTERS, same_first_letter, 10, 2),
        ("closure", ["a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"], same_first_letter, 7, 1),
        ("greedy", ["a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"], same_first_letter, 7, 1),
        ("closure", ["a"] * 8, same_first_letter, 0, 0),
        ("greedy", ["a"] * 8, same_first_letter, 0, 0),
        ("pairwise", ["a"] * 8, same_first_letter, 0, 0),
        ("pairwise", ["", " "] * 4, same_first_letter, 0, 0),
    ],
)
@pytest.mark.parametrize("group_count", [1, 8])
def test_questions_and_calls(
    group_count: int, clustering: str, completions: list[str], judge: Judge, questions: int, most_calls: int
) -> None:
    """The number of questions grows with the groups; the number of calls does not: rounds span all groups."""
    model = RecordingModel(judge)
    measure = PartitionDiversity(model, clustering)
    measure([CompletionGroup(f"p{k}", completions) for k in range(group_count)])
    assert len(model.asked) == questions * group_count
    assert len(model.calls) <= most_calls
    statistics = Counter(measure.pop_statistics())
    assert statistics["pairs_scored"] == questions * group_count
    assert statistics["pairs_skipped"] == (28 - questions) * group_count
    assert not any(measure.pop_statistics().values()), "counts are cleared"


def test_a_step_without_questions_still_counts_them_and_what_the_model_counts() -> None:
    """Otherwise `diversity/pairs_scored` would vanish from the log just when every group has collapsed."""
    model = RecordingModel(all_different)
    model.pop_statistics = lambda: {"truncated_pairs": 3}  # type: ignore[attr-defined]
    measure = PartitionDiversity(model)
    measure([CompletionGroup("p", ["a", "a"])])
    assert measure.pop_statistics() == {"pairs_scored": 0, "pairs_skipped": 1, "truncated_pairs": 3}


@pytest.mark.parametrize("clustering", ["closure", "greedy"])
def test_fc_130_short_answers(clustering: str) -> None:
    """FC-130: "buy now" and "never buy now" are two classes, unless the compatibility rule merges them unasked."""
    group = CompletionGroup("Should I sell?", ["buy now", "never buy now"])
    asked, unasked = RecordingModel(all_different), RecordingModel(all_different)
    assert PartitionDiversity(asked, clustering)([group])[0].labels == [0, 1]
    assert PartitionDiversity(unasked, clustering, short_answer_rule=True)([group])[0].labels == [0, 0]
    assert (len(asked.asked), len(unasked.asked)) == (1, 0)


def test_what_the_short_answer_rule_merges_saves_questions() -> None:
    """The rule comes before the first round: the long text is compared with one of the two short ones."""
    model = RecordingModel(same_first_letter)
    group = CompletionGroup("p", ["buy now", "buy it now, and never sell", "buy it now"])
    assert PartitionDiversity(model, short_answer_rule=True)([group])[0].labels == [0, 0, 0]
    assert len(model.asked) == 1


def test_the_threshold_is_the_models_own_unless_given_and_must_be_exceeded() -> None:
    model = RecordingModel(lambda *_: 0.5)
    group = [CompletionGroup("p", ["a", "b"])]
    assert PartitionDiversity(model)(group)[0].labels == [0, 1], "a score at the threshold is not above it"
    assert PartitionDiversity(model, threshold=0.49)(group)[0].labels == [0, 0]
    model.threshold = 0.0
    assert PartitionDiversity(model)(group)[0].labels == [0, 0], "0 is a threshold, not a missing one"
    assert PartitionDiversity(model, threshold=0.6)(group)[0].labels == [0, 1]


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
def test_a_threshold_that_is_no_probability_is_refused(threshold: float) -> None:
    """Also the model's own: above 1 it would call everything different without a word."""
    model = RecordingModel(all_different)
    with pytest.raises(ValueError, match="threshold"):
        PartitionDiversity(model, threshold=threshold)
    model.threshold = threshold
    with pytest.raises(ValueError, match="threshold"):
        PartitionDiversity(model)


def test_an_unknown_clustering_is_refused_with_the_accepted_ones() -> None:
    with pytest.raises(ValueError, match="'closed'.*'closure', 'greedy', 'pairwise'"):
        PartitionDiversity(RecordingModel(all_different), "closed")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.2, -0.1, None])
@pytest.mark.parametrize("clustering", CLUSTERINGS)
def test_a_bad_score_names_the_model_and_the_pair(clustering: str, bad: Any) -> None:
    model = RecordingModel(lambda prompt, first, second: bad if (first, second) == ("fine", "culprit") else 0.2)
    with pytest.raises(ValueError, match=r"RecordingModel.*'fine'.*'culprit'") as error:
        PartitionDiversity(model, clustering)([CompletionGroup("p", ["innocent", "fine", "culprit"])])
    assert str(bad) in str(error.value)


@pytest.mark.parametrize("scores", [[], [0.1], [0.1] * 3])
def test_a_wrong_number_of_scores_names_the_model(scores: list[float]) -> None:
    model = RecordingModel(all_different)
    model.score_pairs = lambda pairs, prompts=None: scores  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=rf"RecordingModel.*{len(scores)} scores for 2 pairs"):
        PartitionDiversity(model, "greedy")([CompletionGroup("p", ["a", "b", "c"])])


def test_a_long_text_is_shortened_in_the_error() -> None:
    model = RecordingModel(lambda *_: math.nan)
    with pytest.raises(ValueError) as error:
        PartitionDiversity(model)([CompletionGroup("p", ["x" * 5000, "y" * 5000])])
    assert len(str(error.value)) < 600
