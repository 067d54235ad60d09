# SPDX-License-Identifier: Apache-2.0
"""pass@k over problems: which count, what is refused, and figures that open."""

import pytest

from trl_diversity.evaluation.answer_checking import AnswerChecker
from trl_diversity.evaluation.plots import draw_fronts, draw_pass_at_k
from trl_diversity.evaluation.problems import benchmark_curve, default_ks, mean_curve, parse_problems


def graded(*counts: tuple[int, int]) -> list:
    rows = [{"id": i, "correct": [True] * c + [False] * (n - c)} for i, (n, c) in enumerate(counts)]
    return parse_problems(rows)


def test_problems_with_too_few_samples_are_left_out_and_counted():
    """FC-143: pass@4 does not vanish; it tells over how many problems it is."""
    result = benchmark_curve(graded((4, 1), (2, 0)), [1, 4])
    assert result["pass_at_k"]["1"]["value"] == 0.125 and result["pass_at_k"]["1"]["problems"] == 2
    assert result["pass_at_k"]["4"] == {"value": 1.0, "problems": 1, "ci": [1.0, 1.0]}
    assert result["problems"] == 2 and result["samples"] == [2, 4]
    with pytest.raises(ValueError, match="pass@5 needs 5 samples of a problem; no problem has more than 4"):
        benchmark_curve(graded((4, 1), (2, 0)), [5])


def test_default_ks_are_those_that_every_problem_has():
    assert default_ks(graded((300, 1), (256, 0))) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert default_ks(graded((300, 1), (5, 0))) == [1, 2, 4]


def test_mean_counts_each_benchmark_once():
    benchmarks = {
        "a": benchmark_curve(graded((2, 2)), [1, 2]),
        "b": benchmark_curve(graded((1, 0), (1, 0), (1, 0)), [1]),
    }
    assert mean_curve(benchmarks) == {"1": 0.5}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no problems"),
        ([{"question": "q"}], "row 1: expected a reference as one of 'answer'"),
        ([{"question": "q", "answer": " "}], "row 1: expected a reference"),
        ([{"answer": 1, "completions": "text"}], "`completions` is a list"),
        ([{"answer": 1, "correct": [2]}], "`correct` is a list of true and false"),
        ([{"id": 1, "answer": 1}, {"id": "1", "answer": 2}], "row 2: the id '1' occurs twice"),
    ],
)
def test_rows_that_are_no_problems(rows, message):
    with pytest.raises(ValueError, match=message):
        parse_problems(rows)


def test_keys_of_hub_data_sets():
    (problem,) = parse_problems([{"problem": "p", "solution": "long", "answer": 5, "generations": ["a"]}])
    assert (problem.question, problem.answer, problem.completions) == ("p", 5, ["a"])


def test_a_list_of_answers_is_one_answer_with_all_of_them():
    """OlympiadBench has lists, nearly all of one answer, in dollars."""
    lists = [["$5$"], ["$x=2$", "\\boxed{3}"], [7], "[1, 2]"]
    problems = parse_problems([{"problem": "p", "final_answer": answers} for answers in lists])
    assert [problem.answer for problem in problems] == ["$5$", "x=2, 3", 7, "[1, 2]"]
    pytest.importorskip("math_verify")
    checker = AnswerChecker()
    completions = ["\\boxed{5}", "\\boxed{2, 3}", "\\boxed{3, 2}", "\\boxed{2}", "\\boxed{2, 4}"]
    references = ["$5$", *[parse_problems([{"answer": ["$2$", "$3$"]}])[0].answer] * 4]
    assert checker.check(references, completions) == [True, True, True, False, False]
    checker.close()


@pytest.mark.parametrize("answer", [{"value": 5}, [["a"], {"b": 1}], [], [""]])
def test_answers_of_other_types_are_refused(answer):
    with pytest.raises(ValueError, match="row 1: "):
        parse_problems([{"question": "q", "answer": answer}])


def image_size(path) -> tuple[int, ...]:
    from matplotlib.image import imread

    return imread(path).shape


def test_figures_open(tmp_path):
    pytest.importorskip("matplotlib")
    benchmarks = {name: benchmark_curve(graded((8, 2), (8, c)), [1, 2, 4, 8]) for name, c in (("a", 1), ("b", 5))}
    result = {"benchmarks": benchmarks, "mean": mean_curve(benchmarks)}
    draw_pass_at_k(
        {"one": result, "two": {"benchmarks": {"a": benchmarks["b"]}, "mean": {"1": 0.5}}}, tmp_path / "k.png"
    )
    height, width, _ = image_size(tmp_path / "k.png")
    assert width > 2 * height  # three panels
    points = [
        {"model": "m", "temperature": t, "quality": 1 - t, "distinct": 1 + t, "dominated": t > 0.5} for t in (0.2, 0.8)
    ]
    draw_fronts(points, tmp_path / "fronts.png")
    assert image_size(tmp_path / "fronts.png")[0] > 300
