# SPDX-License-Identifier: Apache-2.0
"""What of a published row is kept, row by row."""

import pytest

from tests.data.published import conversation, turn
from trl_diversity.data.sources import BOXED_INSTRUCTION, SOURCES, Kept, needs_image


def select(name, row, language="English"):
    return SOURCES[name].select(row, language)


@pytest.mark.parametrize(
    "text",
    [
        "In the figure, what is the angle?",
        "In the diagram, O is the centre.",
        "The area of the region shown below is",
        "Triangle ABC is right-angled, as shown.",
        "The figure below shows a square.",
        "[asy] draw((0,0)--(1,1)); [/asy] Find x.",
        "See ![graph](https://x.org/a)",
        "What is the slope? \\includegraphics{a}",
        "Look at https://x.org/plot.png and answer.",
        "What is the area of the shaded region in the following figure?",
    ],
)
def test_problems_that_need_a_picture(text):
    assert needs_image(text)


@pytest.mark.parametrize(
    "text",
    [
        "How many figures are needed to write 1000?",
        "A five-figure number is divisible by 9.",
        "Imagine a square. What is its area?",
        "A painter sells a picture for 40 dollars.",
        "It can be shown that x > 0. Find x.",
        "As is shown that n is even, prove that n^2 is.",
        "Find the image of the point (1, 2) under the map f.",
        "The prime number theorem: draw no diagram, compute pi(100).",
    ],
)
def test_problems_that_need_none(text):
    assert not needs_image(text)


def test_wildchat_takes_the_first_user_turn():
    assert select("wildchat", conversation("Write a poem.")) == Kept("Write a poem.", {})
    assert select("wildchat", conversation("Hi", role="assistant")) == "no first user turn"
    assert select("wildchat", conversation("  \n")) == "no first user turn"
    assert select("wildchat", {**conversation("x"), "conversation": []}) == "no first user turn"


def test_wildchat_language_and_toxicity():
    french = conversation("Bonjour", language="French")
    assert select("wildchat", french) == "other language"
    assert select("wildchat", french, "French") == select("wildchat", french, "all") == Kept("Bonjour", {})
    assert select("wildchat", conversation("x", toxic=True)) == "toxic"
    assert select("wildchat", {**conversation("x"), "conversation": [turn("x", toxic=True)]}) == "toxic"
    later = {**conversation("x"), "conversation": [turn("x"), turn("y", "assistant", toxic=True)]}
    assert select("wildchat", later) == Kept("x", {})


def test_deepscaler():
    pytest.importorskip("math_verify")
    kept = select("deepscaler", {"problem": "What is 1/2 of 3?", "answer": "\\frac{3}{2}"})
    assert isinstance(kept, Kept) and kept.text == f"What is 1/2 of 3? {BOXED_INSTRUCTION}"
    assert kept.columns == {"answer": "\\frac{3}{2}", "solution": "$\\frac{3}{2}$"}
    assert select("deepscaler", {"problem": "As shown, find x.", "answer": "1"}) == "needs an image"
    assert select("deepscaler", {"problem": "Find x.", "answer": None}) == "no problem or no answer"
    assert select("deepscaler", {"problem": "Find x.", "answer": "\\text{}"}) == "answer that Math-Verify cannot read"
    assert select("deepscaler", {"problem": "Find x.", "answer": 7}).columns == {"answer": "7", "solution": "$7$"}


def test_solutions_are_what_the_reward_reads():
    """FC-120: a number in bold is not found; a box is, and the prompt asks for it. FC-117: percent signs."""
    pytest.importorskip("math_verify")
    from trl.rewards import accuracy_reward

    solution = select("deepscaler", {"problem": "Sum?", "answer": "41"}).columns["solution"]
    answers = [[{"content": text}] for text in ("sum is 12, so **41**", "so \\boxed{41}")]
    assert accuracy_reward(answers, [solution] * 2) == [0.0, 1.0]
    percent = select("deepscaler", {"problem": "Share?", "answer": "35\\%"}).columns["solution"]
    answers = [[{"content": text}] for text in ("\\boxed{35}", "\\boxed{0.35}", "\\boxed{35\\%}")]
    assert accuracy_reward(answers, [percent] * 3) == [1.0, 1.0, 1.0]
    assert accuracy_reward([[{"content": "\\boxed{35}"}]], ["$0.35$"]) == [0.0]


def test_webinstruct_and_noveltybench():
    assert select("webinstruct", {"question": " Why? ", "answer": "So."}) == Kept("Why?", {"answer": "So."})
    assert select("webinstruct", {"question": "Why?", "answer": " "}) == "no question or no answer"
    assert select("webinstruct", {"question": "See the figure below.", "answer": "1"}) == "needs an image"
    assert select("noveltybench", {"id": "curated-0", "prompt": "Tell me."}) == Kept("Tell me.", {"id": "curated-0"})


def test_the_benchmarks_own_prompts(shared_data):
    import json

    lines = (shared_data / "noveltybench" / "curated.jsonl").read_text().splitlines()
    kept = [select("noveltybench", json.loads(line)) for line in lines]
    assert len(kept) == 100 and all(isinstance(row, Kept) for row in kept)
