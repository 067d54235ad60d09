# SPDX-License-Identifier: Apache-2.0
"""Answers against references by Math-Verify: the shared mathematics data, hostile answers, threads and processes."""

import json
import multiprocessing
import random
import threading
import time

import pytest


pytest.importorskip("math_verify")

from trl_diversity.evaluation.answer_checking import AnswerChecker, reference_answer  # noqa: E402


HANGING = "\\frac{7^{7^{7^{7^{7}}}} - 7}{12}"


@pytest.fixture(scope="module")
def checker():
    checker = AnswerChecker()
    yield checker
    checker.close()


def test_all_references_of_the_shared_data(shared_data, checker):
    """Every reference is its own answer, without exception; of 90 shuffled ones those are accepted that are equal."""
    references = [
        str(json.loads(line)["answer"])
        for path in sorted((shared_data / "math").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert len(references) == 90
    assert checker.check(references, [f"So it is \\boxed{{{answer}}}." for answer in references]) == [True] * 90
    # Not equal as text, so that Math-Verify is what accepts them
    spaced = [f"So it is \\boxed{{ ({answer}) + 0 }}" for answer in references if "," not in answer]
    assert sum(checker.check([answer for answer in references if "," not in answer], spaced)) >= 0.9 * len(spaced)
    shuffled = random.Random(0).sample(references, 90)
    accepted = checker.check(references, [f"\\boxed{{{answer}}}" for answer in shuffled])
    assert accepted == [gold == answer for gold, answer in zip(references, shuffled, strict=True)]
    assert "2,3,\\frac{3+i\\sqrt{3}}{2},\\frac{3-i\\sqrt{3}}{2}" in references  # a list is not met by its members
    assert checker.check(
        [references[references.index("2,3,\\frac{3+i\\sqrt{3}}{2},\\frac{3-i\\sqrt{3}}{2}")]] * 2,
        ["\\boxed{2}", "\\boxed{2,3}"],
    ) == [False, False]


def test_percent_sign(checker):
    """FC-117: a percent sign in the reference is read both ways, a number without it is only itself."""
    answers = [f"\\boxed{{{answer}}}" for answer in ("35", "0.35", "35\\%")]
    assert checker.check(["$35\\%$"] * 3, answers) == [True] * 3
    assert checker.check(["$0.35$"], ["\\boxed{35}"]) == [False]


def test_an_answer_outside_of_a_box_is_not_found(checker):
    """FC-120: Math-Verify itself would accept it, so the prompt must ask for the box."""
    before = checker.statistics["without_answer"]
    assert checker.check(["$41$"] * 2, ["sum is 12, so **41**", "sum is 12, so \\boxed{**41**}"])[0] is False
    assert checker.statistics["without_answer"] == before + 1


def test_words_are_no_products_of_letters(checker):
    assert checker.check(
        ["silent", "Paris", "Paris"], ["\\boxed{listen}", "\\boxed{paris}", "<answer>Rome</answer>"]
    ) == [
        False,
        True,
        False,
    ]


def test_each_pair_is_verified_once(checker, monkeypatch):
    asked = []
    verify = checker._verifier.verify
    monkeypatch.setattr(checker._verifier, "verify", lambda pairs: asked.append(len(pairs)) or verify(pairs))
    completions = ["\\boxed{\\frac{2}{4}}", "so \\boxed{\\frac{2}{4}}", "\\boxed{\\frac12}", "\\boxed{1/2}", "none"]
    assert checker.check(["\\frac{1}{2}"] * 5, completions) == [True, True, True, True, False]
    assert checker.check(["$\\frac{1}{2}$"] * 5, completions) == [True, True, True, True, False]
    assert asked == [3, 0]


def test_references_in_any_dress():
    assert {reference_answer(text) for text in ("7", " $7$ ", "\\boxed{7}", 7)} == {"7"}
    for empty in ("", None, " "):
        with pytest.raises(ValueError, match="is empty"):
            reference_answer(empty)


def _graded_in_time(results) -> None:
    checker = AnswerChecker(num_workers=1, time_limit_seconds=1.0)
    checker.check(["1"], ["\\boxed{1.0}"])  # the child is up
    started = time.monotonic()
    graded = checker.check(["8"] * 2, [f"\\boxed{{{HANGING}}}", "\\boxed{4+4}"])
    results.put((graded, checker.statistics["failed_verifications"], time.monotonic() - started))
    checker.close()


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_hanging_answer_is_cut_off(kind):
    """FC-110, FC-112: in a thread and in a worker process, where no alarm could."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    worker = (threading.Thread if kind == "thread" else context.Process)(target=_graded_in_time, args=(results,))
    worker.start()
    graded, failed, seconds = results.get(timeout=100)
    worker.join(timeout=20)
    assert graded == [False, True] and failed == 1
    assert seconds < 30  # the limit is 1 s; a new child takes a few on a busy machine
