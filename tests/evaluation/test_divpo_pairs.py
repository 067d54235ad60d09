# SPDX-License-Identifier: Apache-2.0
"""DivPO's pairs: by hand, and against a slow search over all pairs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_diversity.evaluation.divpo_pairs import Pair, PairSelection, select_pair


TEXTS = ["a", "b", "c", "d"]


def test_most_diverse_good_over_least_diverse_bad():
    pair = select_pair(TEXTS, [0.9, 0.8, 0.2, 0.1], [0.3, 0.7, 0.9, 0.4], PairSelection())
    assert pair == Pair(chosen=1, rejected=3)
    thresholds = PairSelection(min_quality=0.85, max_quality=0.2)
    assert select_pair(TEXTS, [0.9, 0.8, 0.2, 0.1], [0.3, 0.7, 0.9, 0.4], thresholds) == Pair(chosen=0, rejected=3)
    quarter = PairSelection(top_fraction=0.25, bottom_fraction=0.25)
    assert select_pair(TEXTS, [0.9, 0.8, 0.2, 0.1], [0.3, 0.7, 0.9, 0.4], quarter) == Pair(chosen=0, rejected=3)


def test_ties_go_to_the_better_and_the_worse():
    assert select_pair(TEXTS, [0.8, 0.9, 0.2, 0.1], [1, 1, 0, 0], PairSelection()) == Pair(chosen=1, rejected=3)
    assert select_pair(TEXTS, [1, 1, 0, 0], [1, 1, 0, 0], PairSelection()) == Pair(chosen=0, rejected=2)


@pytest.mark.parametrize(
    ("quality", "pair"),
    [
        ([0.0, 0.0, 0.0, 0.9], Pair(chosen=3, rejected=2)),  # half of the group would be good at 0
        ([0.9, 0.9, 0.9, 0.0], Pair(chosen=0, rejected=3)),
        ([0.5, 0.5, 0.9, 0.0], Pair(chosen=2, rejected=3)),
    ],
)
def test_a_quality_that_both_ends_share_is_neither(quality, pair):
    assert select_pair(TEXTS, quality, [1.0, 0.9, 0.1, 0.2], PairSelection()) == pair


@pytest.mark.parametrize(
    ("texts", "quality", "selection", "reason"),
    [
        (TEXTS, [0.4, 0.3, 0.2, 0.1], PairSelection(0.5, 0.1), "none good"),
        (TEXTS, [0.9, 0.8, 0.7, 0.6], PairSelection(0.5, 0.1), "none bad"),
        (TEXTS, [0.5] * 4, PairSelection(), "same quality"),
        (TEXTS, [0.5] * 4, PairSelection(0.5, 0.5), "same quality"),
        (["a", "b ", " b", "d"], [0.9, 1.0, 0.0, 0.1], PairSelection(0.9, 0.1), "same text"),
        ([], [], PairSelection(), "none good"),
    ],
)
def test_groups_without_a_pair(texts, quality, selection, reason):
    diversity = [0.5, 1.0, 0.0, 0.5][: len(texts)]
    assert select_pair(texts, quality, diversity, selection).reason == reason


def test_what_did_not_come_to_its_end_is_never_chosen_but_may_be_rejected():
    quality, diversity = [0.9, 0.8, 0.2, 0.1], [0.3, 0.7, 0.9, 0.4]
    cut = [True, False, True, False]
    assert select_pair(TEXTS, quality, diversity, PairSelection(), cut) == Pair(chosen=0, rejected=3)
    assert select_pair(TEXTS, quality, diversity, PairSelection(), [False] * 4).reason == "none finished"


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=9
    )
)
def test_pair_is_the_best_of_all_pairs(group):
    quality, diversity = zip(*group, strict=True)
    texts = [str(i) for i in range(len(group))]
    pair = select_pair(texts, quality, diversity, PairSelection(min_quality=0.5, max_quality=0.25))
    allowed = [
        (i, j) for i in range(len(group)) for j in range(len(group)) if quality[i] >= 0.5 and quality[j] <= 0.25
    ]
    if not allowed:
        assert pair.reason in ("none good", "none bad")
        return
    assert (pair.chosen, pair.rejected) in allowed
    assert diversity[pair.chosen] == max(diversity[i] for i, _ in allowed)
    assert diversity[pair.rejected] == min(diversity[j] for _, j in allowed)


@given(st.permutations(list(range(6))), st.sampled_from([0.2, 0.34, 0.5]))
def test_fractions_take_the_best_and_the_worst(quality, fraction):
    texts, selection = [str(i) for i in range(6)], PairSelection(top_fraction=fraction, bottom_fraction=fraction)
    size = {0.2: 1, 0.34: 2, 0.5: 3}[fraction]
    pair = select_pair(texts, quality, [0.5] * 6, selection)
    assert quality[pair.chosen] == 5 and quality[pair.rejected] == 0  # equally diverse: the extremes
    diversity = [1.0 if value == 6 - size else 0.0 if value == size - 1 else 0.5 for value in quality]
    pair = select_pair(texts, quality, diversity, selection)
    assert quality[pair.chosen] == 6 - size and quality[pair.rejected] == size - 1  # the last that still count


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_quality": 1.0}, "give both"),
        ({"min_quality": 0.0, "max_quality": 1.0}, "must not be below"),
        ({"top_fraction": 0.0}, r"`top_fraction` lies in \(0, 1\)"),
        ({"top_fraction": 0.7}, "add up to at most 1"),
    ],
)
def test_selections_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        PairSelection(**arguments)


def test_groups_that_do_not_fit():
    with pytest.raises(ValueError, match="4 completions, 3 qualities and 4 diversities"):
        select_pair(TEXTS, [1.0] * 3, [1.0] * 4, PairSelection())
    with pytest.raises(ValueError, match="finite"):
        select_pair(TEXTS, [math.nan] * 4, [1.0] * 4, PairSelection())
