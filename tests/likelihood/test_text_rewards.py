# SPDX-License-Identifier: Apache-2.0
"""Format and repetition: the released rules on ordinary, empty and adversarial text."""

import pytest

from trl_diversity.likelihood.text_rewards import format_reward, repetition_penalty


R1 = "<think>x</think><answer>7</answer>"


@pytest.mark.parametrize(
    ("text", "r1", "nothink"),
    [
        (R1, 1, 1),
        ("a <think>x</think>\n\n<answer>7</answer> b", 1, 1),
        ("<answer>7</answer>", 0, 1),
        ("", 0, 0),
        ("7", 0, 0),
        ("<think>x</think><answer>7", 0, 0),
        ("<think>x<answer>7</answer>", 0, 1),
        ("x</think><answer>7</answer>", 0, 1),
        ("<answer>7</answer><think>x</think>", 0, 1),
        ("</answer>7<answer>", 0, 0),
        (R1 + R1, 0, 0),
        (R1 + "<answer>", 0, 0),
        ("<think><think>x</think></think><answer>7</answer>", 0, 1),
        ("<answer></answer>", 0, 1),
    ],
)
def test_format_reward(text, r1, nothink):
    assert format_reward(text) == format_reward(text, "r1") == r1
    assert format_reward(text, "r1_nothink") == nothink


def test_the_prompt_may_open_the_thinking():  # FC-036
    completion = "2 plus 2 is 4.\n</think>\n<answer>4</answer>"
    assert format_reward(completion) == 0
    assert format_reward(completion, prompt_tail="<think>\n") == 1
    assert format_reward("<think>\n" + completion, prompt_tail="<think>\n") == 0


def test_an_unknown_style_names_the_known_ones():
    with pytest.raises(ValueError, match="r1, r1_nothink"):
        format_reward("", "R2")


WINDOW = "a b c d e f g h i j"


@pytest.mark.parametrize(
    ("text", "penalty"),
    [
        (" ".join([WINDOW] * 10), -1),
        (" ".join([WINDOW] * 9), 0),
        (" | ".join([WINDOW] * 10), -1),
        (" ".join(["no"] * 19), -1),  # ten windows of ten
        (" ".join(["no"] * 18), 0),
        ("_".join([WINDOW.replace(" ", "_")] * 10), -1),
        (" ".join(str(number) for number in range(1000)), 0),
        ("no", 0),
        ("", 0),
        (WINDOW, 0),
    ],
)
def test_repetition_penalty(text, penalty):
    assert repetition_penalty(text) == penalty


def test_window_and_limit():
    assert repetition_penalty("a b a b", window=2, limit=2) == -1
    assert repetition_penalty("a b a b", window=3, limit=2) == 0
    with pytest.raises(ValueError, match="window=0"):
        repetition_penalty("a", window=0)
