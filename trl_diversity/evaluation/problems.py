# SPDX-License-Identifier: Apache-2.0
"""Problems with reference answers and graded samples, and pass@k over them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trl_diversity.evaluation.answer_checking import reference_answer
from trl_diversity.evaluation.intervals import bootstrap_interval
from trl_diversity.evaluation.metrics import pass_at_k


LARGEST_K = 128
QUESTION_KEYS = ("question", "problem", "prompt")
ANSWER_KEYS = ("answer", "final_answer", "reference")


@dataclass(frozen=True)
class Problem:
    """One problem: its samples are graded already (`correct`), to be graded (`completions`), or to be drawn."""

    id: str
    question: Any
    answer: Any
    completions: list[str] | None = None
    correct: list[bool] | None = None


def parse_problems(rows: Iterable[dict[str, Any]], source: str = "the file") -> list[Problem]:
    """
    Problems from rows with a question and an answer, with `completions` or `correct` if there are samples.

    Args:
        rows (`Iterable[dict]`):
            The question is in the first of the keys `question`, `problem`, `prompt`, the answer in that of `answer`,
            `final_answer`, `reference`. A list of answers is one answer that has all of them, such as both roots.
        source (`str`, *optional*):
            Named in errors.

    Raises:
        `ValueError`: naming the row, if it is no problem or its id occurs twice.
    """
    problems: dict[str, Problem] = {}
    for number, row in enumerate(rows, start=1):
        try:
            problem = _parse_problem(row, number)
        except ValueError as error:
            raise ValueError(f"{source}, row {number}: {error}") from None
        if problem.id in problems:
            raise ValueError(f"{source}, row {number}: the id {problem.id!r} occurs twice; merge its samples first.")
        problems[problem.id] = problem
    if not problems:
        raise ValueError(f"{source} has no problems.")
    return list(problems.values())


def _parse_problem(row: dict[str, Any], number: int) -> Problem:
    completions = row.get("completions", row.get("generations"))
    correct = row.get("correct")
    answer = next((row[key] for key in ANSWER_KEYS if row.get(key) is not None), None)
    answer = _one_answer(answer)
    if correct is None and (answer is None or not str(answer).strip()):
        keys = ", ".join(map(repr, row)) or "none"
        raise ValueError(f"expected a reference as one of {', '.join(map(repr, ANSWER_KEYS))}; the keys are {keys}")
    if completions is not None and not (
        isinstance(completions, list) and completions and all(isinstance(text, str) for text in completions)
    ):
        raise ValueError(f"`completions` is a list of at least one text, got {completions!r:.80}")
    if correct is not None and not (
        isinstance(correct, list) and correct and all(value in (0, 1) for value in correct)
    ):
        raise ValueError(f"`correct` is a list of true and false, got {correct!r:.80}")
    question = next((row[key] for key in QUESTION_KEYS if row.get(key) is not None), None)
    return Problem(
        str(row.get("id", number)),
        question,
        answer,
        completions,
        None if correct is None else list(map(bool, correct)),
    )


def _one_answer(answer: Any) -> Any:
    """The answer as a text or a number; of a list the answers without dollars and boxes, separated by commas."""
    if isinstance(answer, list):
        answers = [_one_answer(part) for part in answer]
        return answers[0] if len(answers) == 1 else ", ".join(map(reference_answer, answers))
    if answer is None or isinstance(answer, str | int | float):
        return answer
    raise ValueError(f"an answer is a text, a number or a list of them, got {type(answer).__name__} {answer!r:.80}")


def default_ks(problems: Sequence[Problem]) -> list[int]:
    """1, 2, 4, ... 128, as far as every problem has so many samples."""
    fewest = min(len(problem.correct or []) for problem in problems)
    return [k for k in (2**power for power in range(8)) if k <= min(fewest, LARGEST_K)]


def benchmark_curve(problems: Sequence[Problem], ks: Sequence[int], confidence: float = 0.95) -> dict[str, Any]:
    """
    pass@k of one benchmark.

    Args:
        problems (`Sequence[Problem]`):
            Graded ones.
        ks (`Sequence[int]`):
            Values of k. A problem with fewer samples than k is left out of pass@k; how many count is told.
        confidence (`float`, *optional*, defaults to 0.95):
            Of the bootstrap intervals over problems.

    Returns:
        `dict`: `problems`, `samples` (fewest and most of a problem) and `pass_at_k`: for every k its `value`, the
        number of `problems` that count, and `ci`.

    Raises:
        `ValueError`: if no problem has `k` samples.
    """
    counts = [(len(problem.correct or []), sum(problem.correct or [])) for problem in problems]
    curve = {}
    for k in sorted(set(ks)):
        values = [pass_at_k(n, c, k) for n, c in counts if n >= k]
        if not values:
            raise ValueError(
                f"pass@{k} needs {k} samples of a problem; no problem has more than {max(n for n, _ in counts)}."
            )
        interval = list(bootstrap_interval(values, confidence))
        curve[str(k)] = {"value": fmean(values), "problems": len(values), "ci": interval}
    sizes = [n for n, _ in counts]
    return {"problems": len(problems), "samples": [min(sizes), max(sizes)], "pass_at_k": curve}


def mean_curve(benchmarks: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Mean of the benchmarks' pass@k, each benchmark counting once, for every k that all of them have."""
    shared = set.intersection(*(set(result["pass_at_k"]) for result in benchmarks.values()))
    return {
        k: fmean(result["pass_at_k"][k]["value"] for result in benchmarks.values()) for k in sorted(shared, key=int)
    }
