# SPDX-License-Identifier: Apache-2.0
"""`darling_reward` against a slow oracle for every option, and its degenerate cases and signs one by one."""

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trl_diversity.diversity import darling_reward, label_diversity


NAN = math.nan
SHIFTS, NORMS = ["auto", "none", "group_min", "sigmoid"], ["linear", "sigmoid", "minmax", "inverse_size"]
PROPERTY = settings(max_examples=150, deadline=None)
QUALITY = st.sampled_from([0.0, 1.0, 1.0, -4.69, -0.23, 0.44, NAN]) | st.floats(-20, 20)
# Deciles of Athene-like rewards, most of them negative; the completions 4, 5 and 6 are equally good.
ATHENE, ATHENE_LABELS = [-4.69, -3.2, -2.3, -1.6, -0.9, -0.9, -0.9, 0.44], [0, 1, 2, 3, 4, 5, 5, 6]


@pytest.fixture(autouse=True)
def no_numerical_warnings():
    """Overflow, 0/0 and means of nothing are errors in every test."""
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error", RuntimeWarning)
        yield


def slow_sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def slow_shift(quality: list[float], how: str) -> list[float]:
    known = [value for value in quality if not math.isnan(value)]
    if not known or how == "none":
        return quality
    if how == "auto":
        return [value + max(0, -min(known)) for value in quality]
    if how == "group_min":
        return [value - min(known) for value in quality]
    return [NAN if math.isnan(value) else slow_sigmoid(value) for value in quality]


def slow_z(values: list[float]) -> list[float]:
    """`(v - mean) / (std with ddof 0 + 1e-6)`; zero std gives 0; NaN is left out and stays NaN."""
    known = [value for value in values if not math.isnan(value)]
    if not known or len(set(known)) == 1:
        return [NAN if math.isnan(value) else 0.0 for value in values]
    mean = sum(known) / len(known)
    std = math.sqrt(sum((value - mean) ** 2 for value in known) / len(known))
    return [(value - mean) / (std + 1e-6) for value in values]


def slow_norm(values: list[float], labels: list[int], how: str) -> list[float]:
    if how == "sigmoid":
        return [1 / (1 + math.exp(-value)) for value in values]
    if how == "minmax":
        low, high = min(values), max(values)
        return [(value - low) / (high - low) if high > low else 1.0 for value in values]
    if how == "inverse_size":
        return [1 / labels.count(label) for label in labels]
    return values


def slow_reward(quality: list[float], diversity: list[float], labels: list[int], **options: Any) -> list[float]:
    """The five steps of the specification, one completion at a time."""
    floor, n = options["diversity_floor"], len(quality)
    if n == 1:
        return quality
    members = [i for i in range(n) if quality[i] > 0 or not options["correct_only"]]
    div = [diversity[i] if i in members else floor for i in range(n)]
    shifted = slow_shift(quality, options["quality_shift"])
    if options["combine"] == "add":
        weight = options["diversity_weight"]
        return [a + weight * b for a, b in zip(slow_z(shifted), slow_z(div), strict=True)]
    norms = [floor] * n
    if members:
        member_norms = slow_norm([div[i] for i in members], [labels[i] for i in members], options["diversity_norm"])
        for i, value in zip(members, member_norms, strict=True):
            norms[i] = max(value, floor)
    return [a * b for a, b in zip(shifted, norms, strict=True)]


def diversity_among_correct(quality: list[float], labels: list[int]) -> list[float]:
    """`(n_correct - |cluster|) / (n_correct - 1)`, 1 for a single correct one; wrong ones are not read: NaN."""
    correct = [i for i in range(len(quality)) if quality[i] > 0]
    sizes = [sum(labels[j] == labels[i] for j in correct) for i in range(len(quality))]
    if len(correct) == 1:
        return [1.0 if i in correct else NAN for i in range(len(quality))]
    return [(len(correct) - sizes[i]) / (len(correct) - 1) if i in correct else NAN for i in range(len(quality))]


@st.composite
def rewards_input(draw: st.DrawFn) -> dict[str, Any]:
    """A group and options of `darling_reward`, all of them drawn."""
    n = draw(st.integers(1, 7))
    quality = draw(st.lists(QUALITY, min_size=n, max_size=n))
    labels = draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n))
    diversity = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1), min_size=n, max_size=n))
    correct_only = draw(st.booleans())
    return {
        "quality": quality,
        "diversity": diversity_among_correct(quality, labels) if correct_only else diversity,
        "labels": labels,
        "combine": draw(st.sampled_from(["multiply", "add"])),
        "correct_only": correct_only,
        "diversity_weight": draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        "diversity_floor": draw(st.sampled_from([0.0, 0.1, 0.6])),
        "diversity_norm": draw(st.sampled_from(NORMS)),
        "quality_shift": draw(st.sampled_from(SHIFTS)),
    }


@settings(max_examples=600, deadline=None)
@given(rewards_input())
def test_every_option_equals_the_slow_oracle(case: dict[str, Any]) -> None:
    rewards = darling_reward(**case, allow_negative_quality=True)
    assert rewards == pytest.approx(slow_reward(**case), abs=1e-7, nan_ok=True)
    unknown = [math.isnan(value) for value in case["quality"]]
    assert [math.isnan(value) for value in rewards] == unknown, "NaN where the quality is NaN, and nowhere else"


@pytest.mark.parametrize(
    ("quality", "diversity", "options", "expected"),
    [
        ([1, 1, 1, 1], [2 / 3, 2 / 3, 1, 1], {}, [2 / 3, 2 / 3, 1, 1]),
        ([2, 4], [0.5, 0.25], {}, [1, 1]),
        ([-4, -2, 1], [1, 0.5, 1], {}, [0, 1, 5]),
        ([-4, -2, 1], [1, 0.5, 1], {"quality_shift": "none", "allow_negative_quality": True}, [-4, -1, 1]),
        ([3, 4, 7], [1, 1, 0.5], {"quality_shift": "group_min"}, [0, 1, 2]),
        ([0, math.log(3)], [1, 0.5], {"quality_shift": "sigmoid"}, [0.5, 0.375]),
        ([1, 1], [0, 1], {"diversity_norm": "sigmoid"}, [0.5, 1 / (1 + math.exp(-1))]),
        ([1, 1, 1], [0.2, 0.3, 0.4], {"diversity_norm": "minmax"}, [0, 0.5, 1]),
        ([2, 2], [0, 0], {"diversity_norm": "minmax"}, [2, 2]),  # all equal: 1
        ([1, 1, 1], [0, 0, 0], {"diversity_norm": "inverse_size", "labels": [0, 1, 0]}, [0.5, 1, 0.5]),
        ([1, 1, 1], [0, 0.05, 1], {"diversity_floor": 0.1}, [0.1, 0.1, 1]),  # the released code's max(Div, 0.1)
        ([1, 1], [0, 1], {"diversity_norm": "sigmoid", "diversity_floor": 0.6}, [0.6, 1 / (1 + math.exp(-1))]),
        ([1, 1], [0, 0], {"diversity_norm": "inverse_size", "labels": [3, 3], "diversity_floor": 0.6}, [0.6, 0.6]),
        ([0, 2], [1, 0], {"combine": "add"}, [0, 0]),
        ([0, 2], [1, 0], {"combine": "add", "diversity_weight": 3}, [2, -2]),
        ([0, 0], [1, 0], {"combine": "add", "diversity_norm": "inverse_size", "labels": [0, 0]}, [1, -1]),  # raw Div
        ([5, 5], [1, 0], {"combine": "add"}, [1, -1]),  # zero std of the quality gives 0
        ([0, 2], [1, 1], {"combine": "add"}, [-1, 1]),  # zero std of the diversity gives 0
        ([0, 0], [NAN, NAN], {"correct_only": True}, [0, 0]),  # none correct
        ([-1, -1], [NAN, NAN], {"correct_only": True, "diversity_floor": 0.1}, [0, 0]),
        ([0, 3], [NAN, 1], {"correct_only": True, "diversity_floor": 0.1}, [0, 3]),  # one correct
        ([0, 1, 1, 1], [NAN, 0.5, 0.5, 1], {"correct_only": True}, [0, 0.5, 0.5, 1]),  # several
        ([0, 1, 1], [NAN, 0, 0], {"correct_only": True, "diversity_floor": 0.1}, [0, 0.1, 0.1]),
        ([0, 0, 4], [NAN, NAN, 1], {"correct_only": True, "quality_shift": "sigmoid", "diversity_floor": 0.1},
         [0.05, 0.05, slow_sigmoid(4)]),
        ([NAN, 1, 1], [0, 0.5, 1], {"diversity_norm": "minmax"}, [NAN, 0.5, 1]),  # still a member of its group
        ([NAN, 1, 3], [1, 0, 0], {"combine": "add", "diversity_weight": 0}, [NAN, -1, 1]),
        ([NAN, -2, 1], [0, 1, 1], {}, [NAN, 0, 3]),
    ],
)  # fmt: skip
def test_worked_examples(quality: list, diversity: list, options: dict[str, Any], expected: list) -> None:
    assert darling_reward(quality, diversity, **options) == pytest.approx(expected, rel=1e-5, abs=1e-5, nan_ok=True)


ALL_OPTIONS = [
    {"combine": combine, "diversity_norm": norm, "quality_shift": shift, "correct_only": correct_only}
    for combine, norm, shift, correct_only in itertools.product(["multiply", "add"], NORMS, SHIFTS, [False, True])
]


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_degenerate_groups(options: dict[str, Any]) -> None:
    """A single completion gets its quality, whatever the option; where nothing is known, nothing is made up."""
    for quality in (-5.0, 0.0, 0.7, NAN):
        assert darling_reward([quality], [1.0], **options) == pytest.approx([quality], abs=0, nan_ok=True)
    assert darling_reward([], [], **options) == []
    # FC-169: rows that cannot be judged abstain; unequal diversity alone is no reason to train.
    rewards = darling_reward([NAN] * 4, label_diversity([0, 1, 2, 2]), labels=[0, 1, 2, 2], **options)
    assert len(rewards) == 4 and all(map(math.isnan, rewards))
    # FC-166: 0/0 in the normaliser. Equal quality and one cluster: equal, finite rewards, so no advantage.
    rewards = darling_reward([1] * 4, [0] * 4, labels=[0] * 4, **options)
    assert math.isfinite(rewards[0]) and rewards == [rewards[0]] * 4


def test_auto_is_the_papers_product_where_no_reward_is_negative() -> None:
    """Bit for bit, and an all-correct group keeps its diversity signal, which "group_min" kills."""
    quality, diversity = [0.1, 0.7, 3.3, 0.0], [1 / 3, 2 / 3, 1.0, 0.5]
    assert darling_reward(quality, diversity) == [q * d for q, d in zip(quality, diversity, strict=True)]
    correct, diversity = [1, 1, 1, 1], label_diversity([0, 0, 1, 2])
    assert darling_reward(correct, diversity) == diversity
    assert darling_reward(correct, diversity, quality_shift="group_min") == [0] * 4


@pytest.mark.parametrize("shift", ["auto", "group_min", "sigmoid"])
def test_a_unique_answer_beats_its_duplicates_of_equal_negative_quality(shift: str) -> None:
    """Athene-like rewards. The plain product has it the wrong way round."""
    diversity = label_diversity(ATHENE_LABELS)
    rewards = darling_reward(ATHENE, diversity, quality_shift=shift)
    assert rewards[4] > rewards[5] == rewards[6]
    plain = darling_reward(ATHENE, diversity, quality_shift="none", allow_negative_quality=True)
    assert plain[4] < plain[5] == plain[6]


def test_fc_160_the_unique_completion_is_not_the_worst() -> None:
    quality, diversity = [-2.0] * 4, [1.0, 1 / 3, 1 / 3, 1 / 3]
    for shift in ("auto", "group_min", "sigmoid"):
        rewards = darling_reward(quality, diversity, quality_shift=shift)
        assert rewards[0] == max(rewards)
    with pytest.raises(ValueError, match="4 of 4"):
        darling_reward(quality, diversity, quality_shift="none")


@PROPERTY
@given(rewards_input())
def test_fc_161_the_diversity_factor_is_never_negative(case: dict[str, Any]) -> None:
    """FC-161: it lies in [0, 1], so a bad answer never gets a positive reward, nor more than its quality is away."""
    case |= {"combine": "multiply", "quality_shift": "none", "allow_negative_quality": True}
    assume(len(case["quality"]) > 1)
    for quality, reward in zip(case["quality"], darling_reward(**case), strict=True):
        assert math.isnan(quality) or min(quality, 0) <= reward <= max(quality, 0)


@PROPERTY
@given(
    st.lists(st.tuples(st.floats(-8, 8), st.floats(0, 1)), min_size=2, max_size=8),
    st.sampled_from(["auto", "group_min", "sigmoid"]),
    st.sampled_from([{}, {"diversity_norm": "sigmoid"}, {"combine": "add"}, {"diversity_floor": 0.2}]),
    st.floats(0, 1),
)
def test_fc_162_quality_order_is_kept_and_copying_never_pays(
    group: list[tuple[float, float]], shift: str, options: dict[str, Any], share: float
) -> None:
    quality, diversity = [q for q, _ in group], [d for _, d in group]
    equal = darling_reward(quality, [diversity[0]] * len(group), quality_shift=shift, **options)
    for (q, reward), (other_q, other) in itertools.combinations(zip(quality, equal, strict=True), 2):
        assert (q - other_q) * (reward - other) >= -1e-12
    before = darling_reward(quality, diversity, quality_shift=shift, **options)[0]
    after = darling_reward(quality, [diversity[0] * share, *diversity[1:]], quality_shift=shift, **options)[0]
    assert after <= before + 1e-9, "a reward must not rise when its diversity falls"


def test_fc_162_example() -> None:
    """Answer -1.0 copied (diversity 0) against the same answer given once."""
    copied, unique = darling_reward([-1.0, -6.0], [0.0, 1.0])[0], darling_reward([-1.0, -6.0], [1.0, 1.0])[0]
    assert copied < unique


@pytest.mark.parametrize("quality", [[-1, -2, 1], [-1, NAN, NAN], [-0.1, -0.1, NAN, 5]])
def test_mostly_negative_quality_without_a_shift_is_refused_with_a_way_out(quality: list[float]) -> None:
    diversity = [0.5] * len(quality)
    with pytest.raises(ValueError, match="negative") as error:
        darling_reward(quality, diversity, quality_shift="none")
    assert all(remedy in str(error.value) for remedy in ("'auto'", "'sigmoid'", "allow_negative_quality"))
    allowed = darling_reward(quality, diversity, quality_shift="none", allow_negative_quality=True)
    assert allowed == pytest.approx([0.5 * value for value in quality], nan_ok=True)


@pytest.mark.parametrize("quality", [[-1, 1], [-1, 0], [-1, NAN, 0], [NAN, NAN], [-7]])
def test_half_negative_quality_without_a_shift_is_accepted(quality: list[float]) -> None:
    assert len(darling_reward(quality, [1.0] * len(quality), quality_shift="none")) == len(quality)


def test_sigmoid_of_extreme_quality_does_not_overflow() -> None:
    rewards = darling_reward([1e6, -1e6, 0, 800, -800], [1.0] * 5, quality_shift="sigmoid")
    assert rewards == pytest.approx([1, 0, 0.5, 1, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quality": [math.inf, 1]}, "infinite"),
        ({"quality": [-math.inf, 1], "quality_shift": "sigmoid"}, "infinite"),
        ({"diversity": [1.2, 0]}, r"\[0, 1\]"),
        ({"diversity": [-0.5, 0], "quality": [-5, 1]}, r"\[0, 1\]"),  # FC-161
        ({"diversity": [NAN, 0]}, r"\[0, 1\]"),
        ({"quality": [0, 1], "diversity": [NAN, NAN], "correct_only": True}, r"\[0, 1\]"),
        ({"diversity": [1]}, "equally long"),
        ({"labels": [0]}, "equally long"),
        ({"diversity_norm": "inverse_size"}, "inverse_size.*needs clusters"),
        ({"diversity_norm": "inverse_size", "combine": "add"}, "inverse_size.*needs clusters"),
        ({"diversity_norm": "inverse_size", "quality": [0, 0], "correct_only": True}, "inverse_size.*needs clusters"),
        ({"combine": "mul"}, "'mul'.*'multiply', 'add'"),
        ({"diversity_norm": "none"}, "'none'.*'linear', 'sigmoid', 'minmax', 'inverse_size'"),
        ({"quality_shift": "min"}, "'min'.*'auto', 'none', 'group_min', 'sigmoid'"),
        ({"diversity_floor": -0.5, "correct_only": True, "quality": [-5, 1]}, "diversity_floor"),  # FC-161: +2.5
        ({"diversity_floor": 1.5}, "diversity_floor"),
        ({"diversity_floor": NAN}, "diversity_floor"),
        ({"diversity_weight": NAN, "combine": "add"}, "diversity_weight"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        darling_reward(**{"quality": [1, 2], "diversity": [0, 1]} | changes)


def test_arrays_are_accepted_and_left_alone_and_plain_floats_returned() -> None:
    quality, diversity = np.array([-1, 2], np.float32), np.array([0.5, 1])
    rewards = darling_reward(quality, diversity, labels=np.array([0, 1]), combine="add")
    assert quality.tolist() == [-1, 2] and diversity.tolist() == [0.5, 1]
    assert type(rewards) is list and all(type(reward) is float for reward in rewards)
