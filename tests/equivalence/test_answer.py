# SPDX-License-Identifier: Apache-2.0
"""Which final answers count as the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_diversity.diversity.groups import CompletionGroup
from trl_diversity.diversity.measures import PartitionDiversity
from trl_diversity.equivalence import AnswerEquivalence
from trl_diversity.equivalence.answer import extract_answer, last_boxed, normalize_answer


def boxed(answer):
    return f"Some reasoning. The answer is \\boxed{{{answer}}}."


@pytest.fixture(scope="module")
def equivalence():
    model = AnswerEquivalence(num_workers=1, time_limit_seconds=60)
    yield model
    model.close()


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("\\boxed{\\frac{3}{7}}", "\\frac{3}{7}"),
        ("first \\boxed{1}, then \\boxed{\\sqrt{\\frac{1}{2}}} it is", "\\sqrt{\\frac{1}{2}}"),
        ("\\boxed{\\left\\{ 1, 2 \\right\\}}", "\\{ 1, 2 \\}"),
        ("a set \\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed {7}", "7"),
        ("\\fbox{7}", "7"),
        ("cut off \\boxed{4} and \\boxed{\\frac{1", "4"),
        ("<answer> 12 </answer>", "12"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("\\boxed{3} <answer>so \\boxed{5}</answer>", "5"),
        ("<answer>\n</answer>", None),
        ("\\boxed{}", None),
        ("the answer is 12", None),
        ("<answer>12", None),
        ("", None),
    ],
)
def test_the_last_marked_answer_is_extracted_whole(completion, expected):
    """FC-122."""
    assert extract_answer(completion) == expected


@given(st.recursive(st.sampled_from(["x", "\\frac", "1", " ", "\\{", "\\}"]), lambda inner: st.lists(inner)))
def test_any_balanced_content_comes_out_of_the_box_whole(tree):
    """FC-122."""

    def latex(node):
        return node if isinstance(node, str) else "{" + "".join(map(latex, node)) + "}"

    assert last_boxed(f"so \\boxed{{{latex(tree)}}} }}") == latex(tree)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("$5$", "5"),
        ("$$ 5 $$", "5"),
        ("\\( 5 \\)", "5"),
        ("$1$ and $2$", "$1$ and $2$"),
        ("\\dfrac{1}{2}", "\\frac{1}{2}"),
        ("\\left(1,\\,2\\right)", "(1,2)"),
        ("\\leftarrow", "\\leftarrow"),
        (" 5 .", "5"),
        ("\\text{Paris}", "Paris"),
        ("12\\text{ cm}", "12\\text{ cm}"),
        ("$", "$"),
    ],
)
def test_normalisation_removes_only_what_changes_nothing(answer, expected):
    assert normalize_answer(answer) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("\\frac{3}{7}", "\\frac{3}{7}", 1.0),
        ("\\frac{3}{7}", "\\dfrac{6}{14}", 1.0),
        ("\\frac{3}{7}", "\\frac{3}{8}", 0.0),  # FC-122
        ("\\frac{2}{15}", "\\frac{21}{5}", 0.0),  # FC-123
        ("0.5", "\\frac12", 1.0),
        ("2\\sqrt{2}", "\\sqrt{8}", 1.0),
        ("x=5", "5", 1.0),
        ("1,000", "1000", 1.0),
        ("7", "8", 0.0),
        ("\\{512,729\\}", "729, 512", 1.0),
        ("512 and 729", "729", 0.0),  # FC-115
        ("729", "\\{512,729\\}", 0.0),  # FC-115
        ("x \\in [3,\\infty)", "x \\geq 3", 1.0),  # FC-114
        ("Paris", "\\text{paris}", 1.0),
        ("Paris", "London", 0.0),
        ("listen", "silent", 0.0),
        ("New York", "York New", 0.0),
        ("Paris", "5", 0.0),
        ("ab", "ba", 1.0),
    ],
)
def test_equal_and_different_answers_in_either_order(equivalence, one, other, expected):
    """FC-114: the rule is symmetric."""
    assert equivalence.score_pairs([(boxed(one), boxed(other)), (boxed(other), boxed(one))]) == [expected] * 2


def test_classes_do_not_depend_on_the_order_of_completions(equivalence):
    """FC-114."""
    completions = [boxed(answer) for answer in ("x \\geq 3", "x \\in [3,\\infty)", "x \\geq 4")]
    measure = PartitionDiversity(equivalence)
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        (diversity,) = measure([CompletionGroup("", [completions[index] for index in order])])
        assert [diversity.scores[order.index(index)] for index in range(3)] == [0.5, 0.5, 1.0]


def test_completions_without_an_answer_equal_nothing_and_are_counted():
    equivalence = AnswerEquivalence()
    none, other, five = "I do not know", "no idea", boxed("5")
    assert equivalence.score_pairs([(none, other), (none, five), (five, five), (none, none)]) == [0.0, 0.0, 1.0, 0.0]
    assert equivalence.pop_statistics() == {"pairs_without_answer": 3, "failed_verifications": 0}
    assert equivalence.pop_statistics() == {"pairs_without_answer": 0, "failed_verifications": 0}
    assert equivalence.score_pairs([]) == []


def test_each_pair_of_answers_is_verified_once(equivalence, monkeypatch):
    verified = []
    original = equivalence._verifier.verify

    def verify(pairs, **kwargs):
        verified.extend(pairs)
        return original(pairs, **kwargs)

    monkeypatch.setattr(equivalence._verifier, "verify", verify)
    pairs = [(boxed("1001"), "Another way. \\boxed{1002}"), (boxed("1002"), boxed("1001")), (boxed("1001"), "x")]
    assert equivalence.score_pairs(pairs) == [0.0, 0.0, 0.0]
    assert sorted(verified) == [
        ("$1$", "\\boxed{1001}"),
        ("$1$", "\\boxed{1002}"),
        ("\\boxed{1001}", "\\boxed{1002}"),
    ]
    verified.clear()
    equivalence.score_pairs(pairs)
    assert verified == []


HOSTILE = {
    "FC-110": "\\frac{7^{7^{7^{7^{7}}}} - 7}{12}",
    "FC-111": "\\dfrac{3^{\\left(3^{\\left(3^{\\left(3^3\\right)}\\right)} - 2\\right)} - 3}{8}",
    "FC-112": "(6\\cdot 10^{7})!",
}


def test_hostile_answers_cost_one_time_limit_each_and_count_as_different():
    """FC-110, FC-111, FC-112: towers of powers and factorials neither hang nor equal anything but themselves."""
    equivalence = AnswerEquivalence(num_workers=3, time_limit_seconds=3.0)
    hostile, plain = [boxed(answer) for answer in HOSTILE.values()], boxed("8")
    pairs = [(one, other) for one in [*hostile, plain] for other in [*hostile, plain] if one != other]
    assert equivalence.score_pairs(pairs) == [0.0] * len(pairs)
    # Each of the 12 pairs would hang, but an answer that hung is never verified again.
    assert equivalence.pop_statistics() == {"pairs_without_answer": 0, "failed_verifications": len(HOSTILE)}
    assert equivalence.score_pairs([(text, text) for text in hostile]) == [1.0] * len(HOSTILE)
    assert equivalence.score_pairs([(boxed("16"), boxed("4^2"))]) == [1.0]
    equivalence.close()


def test_without_math_verify_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("trl_diversity.equivalence.verification.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"trl-diversity\[math\]"):
        AnswerEquivalence()
