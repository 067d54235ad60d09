# SPDX-License-Identifier: Apache-2.0
"""DARL's reward against worked examples, an oracle in exact fractions, and its properties."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_diversity.likelihood.rewards import (
    AGGREGATIONS,
    aggregate,
    bounded_bonus,
    check_reward_settings,
    darl_reward,
)


# Sixty-fourths are exact in binary, boundaries included.
UNIT = st.integers(0, 64).map(lambda number: Fraction(number, 64))


def oracle(reference, answer, baseline, format_score, alpha, weight, tau, gamma, format_weight):
    """One completion in exact arithmetic, branch by branch."""
    main = reference
    if baseline is not None:
        main = reference - baseline
        if main < 0:
            main = Fraction(0)
        if main > 1:
            main = Fraction(1)
    reward = alpha * main
    difference = reference - answer
    if difference > 0:
        limit = tau if tau is not None else reference / gamma
        if difference <= limit:
            reward = reward + weight * difference
    if format_score is not None:
        reward = (1 - format_weight) * reward + format_weight * format_score
    return reward


@pytest.mark.parametrize(("answer", "reward"), [(0.38, 0.4002), (0.30, 0.40), (0.50, 0.40)])
def test_worked_examples(answer, reward):
    assert darl_reward([0.40], [answer], alpha=1, delta_weight=0.01, gamma=8) == [pytest.approx(reward, abs=1e-12)]


def test_the_boundary_is_inside():
    # Exact in binary: delta = 0.0625 = 0.5 / 8.
    assert darl_reward([0.5], [0.4375], delta_weight=1.0, gamma=8) == [0.5625]
    assert darl_reward([0.5], [math.nextafter(0.4375, 0)], delta_weight=1.0, gamma=8) == [0.5]
    assert darl_reward([0.5], [0.25], delta_weight=1.0, threshold_type="static", tau=0.25) == [0.75]
    assert bounded_bonus(0.5, 0.4375) == (0.0625, True)


@given(
    reference=UNIT,
    answer=UNIT,
    baseline=st.none() | UNIT,
    format_score=st.none() | st.sampled_from([Fraction(0), Fraction(1)]),
    alpha=st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(2)]),
    weight=st.sampled_from([Fraction(0), Fraction(1, 64), Fraction(1), Fraction(-1, 2)]),
    tau=st.none() | UNIT,
    gamma=st.sampled_from([Fraction(1), Fraction(8), Fraction(16)]),
    format_weight=st.sampled_from([Fraction(0), Fraction(1, 8), Fraction(1)]),
)
def test_every_option_against_exact_arithmetic(
    reference, answer, baseline, format_score, alpha, weight, tau, gamma, format_weight
):
    rewards = darl_reward(
        [float(reference)],
        [float(answer)],
        alpha=float(alpha),
        delta_weight=float(weight),
        threshold_type="dynamic" if tau is None else "static",
        gamma=float(gamma),
        tau=None if tau is None else float(tau),
        debias=baseline is not None,
        baseline=None if baseline is None else [float(baseline)],
        format_score=None if format_score is None else [float(format_score)],
        format_weight=float(format_weight),
    )
    expected = oracle(reference, answer, baseline, format_score, alpha, weight, tau, gamma, format_weight)
    assert rewards == [float(expected)]


def test_tau_and_delta_read_the_raw_likelihood():
    # Debiased, r* is 0.25 and its threshold would be 0.03125, below delta.
    rewards = darl_reward([0.5], [0.4375], delta_weight=1.0, debias=True, baseline=[0.25], gamma=8)
    assert rewards == [0.25 + 0.0625]


def test_debiasing_is_clipped_before_alpha():  # FC-106
    assert darl_reward([0.25], None, delta_weight=0, debias=True, baseline=[0.5], alpha=2) == [0.0]
    assert darl_reward([0.75], None, delta_weight=0, debias=True, baseline=[0.25], alpha=4) == [2.0]


def test_the_format_is_mixed_in_last():
    assert darl_reward([0.5], [0.5], alpha=2, format_score=[1.0], format_weight=0.25) == [0.75 * 1.0 + 0.25]
    assert darl_reward([0.5], [0.5], format_score=[0.0]) == [pytest.approx(0.45)]


def test_malformed_completions_have_no_likelihood_part():
    rewards = darl_reward(
        [0.5, math.nan, 0.5],
        [0.4375, math.nan, 0.4375],
        delta_weight=1.0,
        malformed=["several", "no_tag", None],
        format_score=[1.0, 0.0, 1.0],
        format_weight=0.5,
    )
    assert rewards == [0.5, 0.0, 0.5 * 0.5625 + 0.5]
    assert darl_reward([0.5], [0.4], malformed=[True]) == [0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_nan_in_its_row_only(bad):
    assert_rows(darl_reward([bad, 0.5], [0.5, 0.5]), [math.nan, 0.5])
    assert_rows(darl_reward([0.5, 0.5], [bad, 0.5]), [math.nan, 0.5])
    assert_rows(darl_reward([0.5, 0.5], [bad, 0.5], delta_weight=0), [0.5, 0.5])
    assert_rows(darl_reward([0.5, 0.5], None, delta_weight=0, debias=True, baseline=[bad, 0.0]), [math.nan, 0.5])
    assert_rows(darl_reward([0.5, 0.5], None, delta_weight=0, format_score=[bad, 0.5]), [math.nan, 0.5])


def assert_rows(rewards, expected):
    assert rewards == pytest.approx(expected, nan_ok=True)


@given(rows=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=8))
def test_completions_do_not_interact(rows):
    references, answers = [row[0] for row in rows], [row[1] for row in rows]
    together = darl_reward(references, answers)
    assert together == [darl_reward([reference], [answer])[0] for reference, answer in rows]
    for reward, reference in zip(together, references, strict=True):
        assert reference <= reward <= reference * (1 + 0.01 / 8) + 1e-12


def test_rlpr_is_a_special_case():
    rewards = darl_reward([0.5, 0.25], None, delta_weight=0, debias=True, baseline=[0.25, 0.5], format_score=[1, 0])
    assert rewards == pytest.approx([0.9 * 0.25 + 0.1, 0.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"answer": None}, "delta_weight=0.01 needs"),
        ({"answer": [0.5, 0.5]}, "answer has 2 values for 1"),
        ({"debias": True}, "pass baseline"),
        ({"baseline": [0.1, 0.2], "debias": True}, "baseline has 2"),
        ({"malformed": []}, "malformed has 0"),
        ({"threshold_type": "fixed"}, "dynamic, static"),
        ({"threshold_type": "static"}, "needs a tau"),
        ({"threshold_type": "static", "tau": -0.1}, "got -0.1"),
        ({"threshold_type": "static", "tau": math.nan}, "needs a tau"),
        ({"gamma": 0}, "gamma=0"),
        ({"gamma": -8}, "above 0"),
        ({"aggregation": "median"}, "mean_prob"),
        ({"aggregation": "mean_logprob"}, "negative threshold"),
        ({"format_weight": 1.5}, "format_weight=1.5"),
    ],
)
def test_wrong_settings_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        darl_reward(**({"reference": [0.5], "answer": [0.5]} | arguments))


def test_log_likelihoods_work_with_a_static_threshold():
    rewards = darl_reward(
        [-1.0], [-1.25], aggregation="mean_logprob", threshold_type="static", tau=0.25, delta_weight=1.0
    )
    assert rewards == [-0.75]
    check_reward_settings("static", tau=0.1, aggregation="mean_logprob")


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ("mean_prob", (0.5 + 0.25 + 0.125) / 3),
        ("mean_logprob", (math.log(0.5) + math.log(0.25) + math.log(0.125)) / 3),
        ("product", 0.5 * 0.25 * 0.125),
        ("geometric_mean", 0.25),
    ],
)
def test_aggregations(how, value):
    assert aggregate([0.5, 0.25, 0.125], how) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("how", "value"), [("mean_prob", 0.25), ("mean_logprob", -math.inf), ("product", 0.0), ("geometric_mean", 0.0)]
)
def test_a_token_of_probability_zero(how, value):
    assert aggregate([0.5, 0.0], how) == value


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_no_token_and_nan_have_no_likelihood(how):  # FC-097
    assert math.isnan(aggregate([], how))
    assert math.isnan(aggregate([0.5, math.nan], how))


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=8))
def test_aggregations_are_ordered(probabilities):
    product, geometric, mean = (aggregate(probabilities, how) for how in ("product", "geometric_mean", "mean_prob"))
    assert product <= geometric * (1 + 1e-9) <= mean * (1 + 1e-8)
    assert math.log(geometric) == pytest.approx(aggregate(probabilities, "mean_logprob"), abs=1e-9)


@pytest.mark.parametrize("values", [[1.5], [-0.5], [0.5, -2.0]])
def test_log_probabilities_are_no_probabilities(values):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        aggregate(values)


def test_an_unknown_aggregation_names_the_known_ones():
    with pytest.raises(ValueError, match="geometric_mean"):
        aggregate([0.5], "max")
