# SPDX-License-Identifier: Apache-2.0
"""The filter of groups without variance: its steps, its average, and its state."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_diversity.likelihood.std_filter import StandardDeviationFilter, keep_group


def oracle(steps, beta):
    """RLPR's rule from a list of all steps' standard deviations, computed anew for each step."""
    kept = []
    for number in range(1, len(steps) + 1):
        past = [sum(stds) / len(stds) for stds in steps[5 : number - 1]]
        if number < 11:
            kept.append([True] * len(steps[number - 1]))
            continue
        average = sum(past[:5]) / 5
        for mean in past[5:]:
            average = 0.99 * average + 0.01 * mean
        kept.append([std >= beta * average for std in steps[number - 1]])
    return kept


@given(
    steps=st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=3), min_size=1, max_size=16),
    beta=st.sampled_from([0.5, 0.9]),
)
def test_against_the_rule_computed_from_all_steps(steps, beta):
    kept = StandardDeviationFilter(beta)
    for stds, expected in zip(steps, oracle(steps, beta), strict=True):
        edge = kept.moving_average is not None and any(abs(s - beta * kept.moving_average) < 1e-12 for s in stds)
        found = kept.update(stds)
        assert edge or found == expected


def test_by_hand():
    kept = StandardDeviationFilter(beta=0.5)
    for _ in range(5):
        assert kept.update([8.0, 0.0]) == [True, True]
    assert kept.moving_average is None
    for std in (0.25, 0.5, 0.75, 0.25, 0.75):  # steps 6 to 10, mean 0.5
        assert kept.update([std, std]) == [True, True]
    assert kept.moving_average == pytest.approx(0.5)
    assert kept.update([0.24, 0.26]) == [False, True]  # threshold 0.25
    assert kept.moving_average == pytest.approx(0.99 * 0.5 + 0.01 * 0.25)
    assert kept.update([0.0, 1.0]) == [False, True]


def test_a_step_is_judged_by_the_steps_before_it():
    kept = StandardDeviationFilter(beta=1.0, average_from=1, filter_from=2)
    kept.update([0.5])
    # Judged with itself, 0.25 would face 0.4975.
    assert kept.update([0.25, 0.499, 0.5, 0.75]) == [False, False, True, True]


@pytest.mark.parametrize(
    ("std", "average", "kept"),
    [(0.5, 1.0, True), (0.49, 1.0, False), (0.0, None, True), (0.0, 0.0, True), (math.nan, 1.0, False)],
)
def test_keep_group(std, average, kept):
    assert keep_group(std, average, 0.5) is kept


def test_unknown_deviations_do_not_enter_the_average():
    kept = StandardDeviationFilter(beta=0.5, average_from=1, filter_from=3)
    kept.update([math.nan, 0.5])
    assert kept.moving_average == 0.5
    kept.update([math.nan])
    assert kept.moving_average == 0.5
    assert kept.update([math.nan, 0.3]) == [False, True]
    assert kept.update([]) == []
    assert kept.step == 4


@given(stop=st.integers(0, 14))
def test_a_saved_state_goes_on_exactly(stop):
    steps = [[0.1 * (number % 7), 0.05 * (number % 3)] for number in range(16)]
    whole = StandardDeviationFilter(beta=0.9)
    expected = [whole.update(stds) for stds in steps]
    first = StandardDeviationFilter(beta=0.9)
    found = [first.update(stds) for stds in steps[:stop]]
    second = StandardDeviationFilter(beta=0.9)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found += [second.update(stds) for stds in steps[stop:]]
    assert found == expected
    assert second.state_dict() == whole.state_dict()


def test_an_incomplete_state_is_an_error():
    with pytest.raises(KeyError, match="averaged_steps"):
        StandardDeviationFilter(beta=0.5).load_state_dict({"step": 3, "moving_average": 0.5})


@pytest.mark.parametrize(
    "arguments",
    [{"beta": 0}, {"beta": math.nan}, {"beta": 0.5, "decay": 1.0}, {"beta": 0.5, "average_from": 0},
     {"beta": 0.5, "average_from": 11}],
)  # fmt: skip
def test_wrong_arguments_are_errors(arguments):
    with pytest.raises(ValueError):
        StandardDeviationFilter(**arguments)
