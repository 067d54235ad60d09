# SPDX-License-Identifier: Apache-2.0
"""Which text of a TRL completion is compared, and how a batch is cut into groups."""

import dataclasses
from typing import Any

import pytest

from trl_diversity.diversity import CompletionGroup, GroupDiversity
from trl_diversity.diversity.groups import (
    DIVERSITY_TEXTS,
    completion_text,
    final_answer,
    is_empty,
    make_groups,
    message_text,
    narrow_text,
    prompt_text,
)


def assistant(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def tool(content: str) -> dict[str, Any]:
    return {"role": "tool", "name": "multiply", "content": content}


MULTIPLY = [{"function": {"name": "multiply", "arguments": {"a": 12, "b": 13}}}]
PLAN_A = [{"type": "text", "text": "Plan A"}, {"type": "image"}, {"type": "text", "text": "done"}]
PLAN_B = [{"type": "text", "text": "Plan B"}, {"type": "text", "text": "done"}]


def test_fc_025_plain_and_conversational_give_the_same_text() -> None:
    """FC-025: the form of the data set changes neither the prompt nor the completion that is compared."""
    assert prompt_text("2+2?") == prompt_text([user("2+2?")]) == "2+2?"
    assert completion_text("4") == completion_text([assistant("4")]) == "4"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        pytest.param([assistant(None, tool_calls=MULTIPLY), tool("156"), assistant("156")], "156", id="FC-027"),
        pytest.param([assistant(None, tool_calls=MULTIPLY)], "", id="FC-027 a tool call alone is no text, not 'None'"),
        pytest.param(
            [{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "ok"}, {"role": "assistant"}],
            "",
            id="FC-028 no content key",
        ),
        pytest.param([assistant("early"), tool("x"), assistant("late")], "late", id="earlier turns do not count"),
        pytest.param([assistant("early"), user("and?"), assistant("late")], "late", id="a user turn between"),
        pytest.param([assistant("its text"), tool("156")], "its text", id="tool output at the end does not count"),
        pytest.param([assistant("one"), assistant("two")], "one\ntwo", id="one turn, in order"),
        pytest.param([assistant("one"), assistant(None), assistant("two")], "one\ntwo", id="an empty one"),
        pytest.param([tool("156")], "", id="no assistant message"),
        pytest.param([], "", id="nothing at all"),
        pytest.param([assistant(["Plan", {"type": "text", "text": "A"}])], "Plan\nA", id="bare strings as parts"),
        pytest.param([assistant([{"type": "text", "text": None}])], "", id="a part that holds None"),
        pytest.param([assistant([])], "", id="no parts"),
    ],
)
def test_text_of_the_last_assistant_turn(completion: list[dict[str, Any]], expected: str) -> None:
    assert completion_text(completion) == expected


def test_fc_030_all_text_parts_are_compared() -> None:
    """FC-030: not 'done' against 'done'. An image between the parts adds nothing."""
    first, second = completion_text([assistant(PLAN_A)]), completion_text([assistant(PLAN_B)])
    assert first.split() == ["Plan", "A", "done"]
    assert second.split() == ["Plan", "B", "done"]


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_parsed_reasoning_gives_the_text_of_an_unparsed_completion(key: str) -> None:
    """A response parser must not change what is compared. The three names are those that transformers reads."""
    parsed = completion_text([assistant("Paris", **{key: "It is in France."})])
    raw = "<think>\nIt is in France.\n</think>\n\nParis"
    assert parsed == raw
    assert narrow_text(parsed, "after_think") == "Paris"


def test_parsed_reasoning_without_an_answer_leaves_nothing_after_it() -> None:
    text = completion_text([assistant(None, reasoning_content="still thinking")])
    assert "still thinking" in text
    assert narrow_text(text, "after_think") == ""


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("plain", "plain"),
        ([{"role": "system", "content": "Be brief."}, user("first"), assistant("yes"), user("second")], "second"),
        ([user("question"), assistant("a prefilled start")], "question"),
        ([user([{"type": "image"}, {"type": "text", "text": "what is it?"}])], "what is it?"),
        ([user("old"), {"role": "user"}], ""),
        ([{"role": "system", "content": "no user here"}], ""),
    ],
)
def test_prompt_text_is_the_last_user_turn(prompt: Any, expected: str) -> None:
    assert prompt_text(prompt) == expected


def test_message_text_of_none_is_empty() -> None:
    assert message_text(None) == ""


THINKING = "<think>\nLet me see.\n</think>\n\nParis"


@pytest.mark.parametrize(
    ("text", "part", "expected"),
    [
        (THINKING, "full", THINKING),
        (THINKING, "after_think", "Paris"),
        ("opened by the prompt</think> Paris", "after_think", "Paris"),
        ("<think>never closed, Paris", "after_think", ""),
        ("<think>a</think>b<think>c</think>d", "after_think", "d"),
        ("no tags", "after_think", "no tags"),
        ("", "after_think", ""),
        ("<think>x</think>", "after_think", ""),
        ("so <answer> 7 </answer>.", "answer", "7"),
        ("<answer>1</answer> no, <answer>2</answer>", "answer", "2"),
        ("<answer>cut off at the lim", "answer", "cut off at the lim"),
        ("<answer>a\nb</answer>", "answer", "a\nb"),
        ("\\boxed{1} <answer>2</answer>", "answer", "2"),
        ("<answer></answer>", "answer", ""),
        ("\\boxed{1}, rather \\boxed{2}", "answer", "2"),
        ("no answer", "answer", ""),
        ("a box without braces: \\boxed 3", "answer", ""),
    ],
)
def test_narrow_text(text: str, part: str, expected: str) -> None:
    assert narrow_text(text, part) == expected


def test_fc_036_and_037_answers_with_half_a_think_block_or_none() -> None:
    """FC-036: the prompt opened the block. FC-037: the model never thinks. The answer is found in both."""
    opened_by_prompt = "2 plus 2 is 4.\n</think>\n<answer>4</answer>"
    assert narrow_text(opened_by_prompt, "answer") == "4"
    assert narrow_text(opened_by_prompt, "after_think") == "<answer>4</answer>"
    assert narrow_text("<answer>olleh</answer>", "answer") == "olleh"


def test_the_last_answer_tag_counts_when_an_earlier_one_is_only_mentioned() -> None:
    """Reasoning that speaks of the tag does not become a part of the answer."""
    text = "<think>I must put it in <answer> tags.</think> <answer>7</answer>"
    assert final_answer(text) == "7"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("so \\boxed{\\frac{3}{7}}.", "\\frac{3}{7}", id="FC-122"),
        pytest.param("so \\boxed{\\frac{3}{8}}.", "\\frac{3}{8}", id="FC-122 the other one is another answer"),
        pytest.param("\\boxed{\\sqrt{\\frac{a}{{b}}}} {tail}", "\\sqrt{\\frac{a}{{b}}}", id="braces after the box"),
        pytest.param("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}", id="a set"),
        pytest.param("\\boxed{\\left\\{x + 1\\right.}", "\\left\\{x + 1\\right.", id="an escaped brace opens nothing"),
        pytest.param("\\boxed{\\left.x\\right\\}}", "\\left.x\\right\\}", id="an escaped brace closes nothing"),
        pytest.param("\\boxed{}", "", id="an empty box"),
        pytest.param("\\boxed{\\frac{3}{7}", None, id="never closed"),
        pytest.param("\\boxed{", None, id="cut off at once"),
    ],
)
def test_boxed_answers(text: str, expected: str | None) -> None:
    assert final_answer(text) == expected


def test_last_tokens_are_cut_by_the_given_function() -> None:
    assert narrow_text("one two three", "last_tokens", lambda text: text[-5:]) == "three"


def test_last_tokens_without_a_cutter_says_what_is_missing() -> None:
    """`"last_tokens"` is an accepted value: the error must not call it unknown."""
    with pytest.raises(ValueError, match="keep_last_tokens"):
        narrow_text("one two three", "last_tokens")


def test_unknown_part_is_refused_with_the_accepted_ones() -> None:
    with pytest.raises(ValueError, match="'anwser'") as error:
        narrow_text("text", "anwser")
    assert all(repr(part) in str(error.value) for part in DIVERSITY_TEXTS)


@pytest.mark.parametrize(("text", "expected"), [("", True), (" \n\t\u00a0", True), (" x ", False), ("0", False)])
def test_white_space_alone_is_empty(text: str, expected: bool) -> None:
    assert is_empty(text) is expected


def test_make_groups_keeps_order_and_log_probabilities() -> None:
    rows = [("p", "a", -1.0), ("p", "b", -2.0), ("q", "c", -3.0), ("q", "d", 0.0)]
    assert make_groups(rows, 2) == [
        CompletionGroup("p", ["a", "b"], [-1.0, -2.0]),
        CompletionGroup("q", ["c", "d"], [-3.0, 0.0]),
    ]


@pytest.mark.parametrize("logprobs", [(None, None), (-1.0, None)])
def test_make_groups_without_all_log_probabilities_has_none(logprobs: tuple[float | None, float | None]) -> None:
    rows = [("p", "a", logprobs[0]), ("p", "b", logprobs[1])]
    assert make_groups(rows, 2) == [CompletionGroup("p", ["a", "b"], None)]


def test_make_groups_of_one_and_of_nothing() -> None:
    assert make_groups([("p", "a", None), ("q", "b", None)], 1) == [
        CompletionGroup("p", ["a"]),
        CompletionGroup("q", ["b"]),
    ]
    assert make_groups([], 8) == []


def test_a_batch_of_broken_groups_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"3 completions.*groups of 2"):
        make_groups([("p", "a", None)] * 3, 2)


def test_groups_and_their_diversity_are_immutable() -> None:
    for value in (CompletionGroup("p", ["a"]), GroupDiversity([1.0])):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)
