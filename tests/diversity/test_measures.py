# SPDX-License-Identifier: Apache-2.0
"""The measures that need no equivalence model (n-gram, unlikeliness), and the contract that all measures keep."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_diversity.diversity import (
    CompletionGroup,
    DiversityMeasure,
    NgramDiversity,
    PartitionDiversity,
    UnlikelinessDiversity,
)
from trl_diversity.equivalence import EquivalenceModel


PROPERTY = settings(max_examples=80, deadline=None)
LOGPROBS = st.lists(st.sampled_from([-3.0, -1.5, -0.5, 0.0]) | st.floats(-50, 0), min_size=1, max_size=8)


class Threshold:
    """The smallest equivalence model."""

    threshold = 0.5

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        return [0.0] * len(pairs)


def likelihood_group(logprobs: list[float] | None, completions: list[str] | None = None) -> CompletionGroup:
    texts = completions or [f"completion {index}" for index in range(len(logprobs or []))]
    return CompletionGroup("p", texts, logprobs)


def test_protocols_hold() -> None:
    """Both contracts are structural: nothing has to be inherited."""
    assert isinstance(Threshold(), EquivalenceModel) and not isinstance(object(), EquivalenceModel)
    measures = [PartitionDiversity(Threshold()), NgramDiversity(), UnlikelinessDiversity()]
    assert all(isinstance(measure, DiversityMeasure) for measure in measures)
    assert [measure.name for measure in measures] == ["partition", "ngram", "unlikeliness"]
    assert [measure.needs_logprobs for measure in measures] == [False, False, True]
    assert not isinstance(Threshold(), DiversityMeasure)


@pytest.mark.parametrize("measure", [PartitionDiversity(Threshold()), NgramDiversity(), UnlikelinessDiversity()])
def test_every_measure_takes_no_groups_and_groups_of_unequal_sizes(measure: DiversityMeasure) -> None:
    groups = [CompletionGroup("p", ["a b"] * n, [-1.0] * n) for n in (1, 3, 2)]
    assert measure([]) == []
    assert [len(result.scores) for result in measure(groups)] == [1, 3, 2]


@PROPERTY
@given(st.lists(st.lists(st.sampled_from(["a b c", "a b", "c b a c", "b", ""]), max_size=5), max_size=4))
def test_ngram_groups_do_not_interact(batch: list[list[str]]) -> None:
    """Each group gets what it gets alone; two groups with the same texts do not share their n-grams."""
    measure = NgramDiversity(2)
    groups = [CompletionGroup("p", texts) for texts in batch]
    assert measure(groups) == [measure([group])[0] for group in groups]
    assert measure(groups * 2) == measure(groups) * 2
    assert all(result.labels is None for result in measure(groups))


def test_scores_may_be_a_numpy_array() -> None:
    """What most models give; the diversity is plain floats all the same."""
    model = Threshold()
    model.score_pairs = lambda pairs, prompts=None: np.ones(len(pairs), np.float32)  # type: ignore[method-assign]
    (result,) = PartitionDiversity(model)([CompletionGroup("p", ["a", "b"])])
    assert result.labels == [0, 0] and [type(score) for score in result.scores] == [float, float]


def test_ngram_size_is_used_and_4_by_default() -> None:
    group = CompletionGroup("p", ["a b c d e", "a b c d f"])
    by_size = {n: NgramDiversity(n)([group])[0].scores for n in (1, 2, 4)}
    assert by_size == {1: [1 / 5] * 2, 2: [1 / 4] * 2, 4: [1 / 2] * 2}
    assert NgramDiversity()([group])[0].scores == by_size[4]


def test_fc_136_short_and_empty_texts_have_a_defined_ngram_diversity() -> None:
    """FC-136: a short answer is compared as a whole, so it is not killed; an empty one has diversity 0."""
    (result,) = NgramDiversity(4)([CompletionGroup("p", ["yes", "no", "no", "", "a b c d e"])])
    assert result.scores == [1, 0, 0, 0, 1]


@pytest.mark.parametrize("n", [0, -4])
def test_ngram_size_below_one_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1; got {n}"):
        NgramDiversity(n)


def slow_unlikeliness(logprobs: list[float], beta_rank: float) -> list[float]:
    """Sort from the least likely, count off ranks from 0; those that are equal share the mean of their ranks."""
    order = sorted(logprobs)
    scores = []
    for value in logprobs:
        ranks = [rank for rank, other in enumerate(order) if other == value]
        scores.append(1 - beta_rank * (sum(ranks) / len(ranks)) / len(logprobs))
    return scores


@PROPERTY
@given(LOGPROBS, st.floats(0, 1), st.randoms(use_true_random=False))
def test_unlikeliness_is_one_minus_the_scaled_rank(
    logprobs: list[float], beta_rank: float, shuffler: random.Random
) -> None:
    measure = UnlikelinessDiversity(beta_rank)
    (result,) = measure([likelihood_group(logprobs)])
    assert result.labels is None
    assert result.scores == pytest.approx(slow_unlikeliness(logprobs, beta_rank))
    assert all(0 <= score <= 1 for score in result.scores)
    order = shuffler.sample(range(len(logprobs)), len(logprobs))
    (permuted,) = measure([likelihood_group([logprobs[index] for index in order])])
    assert permuted.scores == [result.scores[index] for index in order]


@pytest.mark.parametrize(
    ("logprobs", "beta_rank", "expected"),
    [
        ([-1.0, -4.0, -2.0, -3.0], 0.25, [1 - 0.25 * 3 / 4, 1, 1 - 0.25 * 2 / 4, 1 - 0.25 * 1 / 4]),
        ([-1.0, -1.0, -2.0], 1.0, [1 / 2, 1 / 2, 1]),  # the ties have the ranks 1 and 2, so 1.5 of 3
        ([-2.0, -2.0], 0.5, [0.875, 0.875]),
        ([-1.0], 1.0, [1]),
        ([-5.0, -1.0], 0.0, [1, 1]),
        ([-math.inf, -1.0], 1.0, [1, 0.5]),  # a token of probability 0: the least likely
    ],
)
def test_unlikeliness_examples(logprobs: list[float], beta_rank: float, expected: list[float]) -> None:
    assert UnlikelinessDiversity(beta_rank)([likelihood_group(logprobs)])[0].scores == pytest.approx(expected)


def test_unlikeliness_default_and_groups() -> None:
    """A group's ranks are its own: the second group is likelier throughout and scores the same."""
    first, second = UnlikelinessDiversity()([likelihood_group([-9.0, -8.0]), likelihood_group([-2.0, -1.0])])
    assert first.scores == second.scores == pytest.approx([1, 1 - 0.25 / 2])


def test_an_empty_completion_has_diversity_0_and_keeps_its_rank() -> None:
    group = likelihood_group([-3.0, -2.0, -1.0], ["a", " ", "b"])
    assert UnlikelinessDiversity(0.3)([group])[0].scores == pytest.approx([1, 0, 1 - 0.3 * 2 / 3])


@pytest.mark.parametrize("logprobs", [None, [-1.0], [-1.0, math.nan], [-1.0, -2.0, -3.0]])
def test_missing_log_probabilities_are_an_error(logprobs: list[float] | None) -> None:
    with pytest.raises(ValueError, match="UnlikelinessDiversity needs the mean log-probability of each of the 2"):
        UnlikelinessDiversity()([likelihood_group(logprobs, ["a", "b"])])


@pytest.mark.parametrize("beta_rank", [-0.01, 1.01, math.nan])
def test_beta_rank_outside_its_range_is_refused(beta_rank: float) -> None:
    with pytest.raises(ValueError, match=rf"beta_rank.*\[0, 1\].*got {beta_rank}"):
        UnlikelinessDiversity(beta_rank)
