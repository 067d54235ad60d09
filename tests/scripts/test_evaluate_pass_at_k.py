# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity evaluate pass-at-k`: graded files, completions to verify, problems to draw for."""

import json

import pytest

from tests.scripts.conftest import read_lines, write_lines
from trl_diversity import cli
from trl_diversity.evaluation import pass_at_k


def run(*argv: str) -> None:
    cli.main(["evaluate", "pass-at-k", *argv])


def test_graded_file_and_figure(tmp_path, capsys):
    counts = {"one": [(8, 2), (8, 0)], "two": [(8, 8)]}
    for name, pairs in counts.items():
        rows = [{"id": i, "correct": [1] * c + [0] * (n - c)} for i, (n, c) in enumerate(pairs)]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    files = [str(tmp_path / f"{name}.jsonl") for name in counts]
    run("--input", *files, "--json", "--figure", str(tmp_path / "curve.png"))
    result = json.loads(capsys.readouterr().out)
    assert list(result["mean"]) == ["1", "2", "4", "8"]
    for k in (1, 2, 4, 8):
        values = {name: sum(pass_at_k(n, c, k) for n, c in pairs) / len(pairs) for name, pairs in counts.items()}
        for name, value in values.items():
            assert result["benchmarks"][name]["pass_at_k"][str(k)]["value"] == pytest.approx(value)
        assert result["mean"][str(k)] == pytest.approx(sum(values.values()) / 2)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    run("--input", *files, "--k", "1", "8")
    shown = capsys.readouterr().out
    assert "one    0.125   0.500   2 x 8" in shown and "mean   0.562   0.750" in shown


def test_completions_are_verified(tmp_path, capsys):
    pytest.importorskip("math_verify")
    rows = [
        {
            "id": 1,
            "answer": "\\frac{1}{2}",
            "completions": ["\\boxed{0.5}", "\\boxed{2}", "it is 0.5", "\\boxed{0.5}"],
        },
        {"id": 2, "answer": "70", "completions": ["\\boxed{70}", "<answer>70</answer>"]},
    ]
    write_lines(tmp_path / "math.jsonl", rows)
    run("--input", str(tmp_path / "math.jsonl"), "--k", "1", "4", "--json", "--output_dir", str(tmp_path / "out"))
    result = json.loads(capsys.readouterr().out)
    assert [row["correct"] for row in read_lines(tmp_path / "out" / "math.graded.jsonl")] == [
        [True, False, False, True],
        [True, True],
    ]
    assert result["benchmarks"]["math"]["pass_at_k"]["1"]["value"] == 0.75
    assert result["statistics"] == {
        "completions": 6,
        "without_answer": 1,
        "verifications": 2,
        "failed_verifications": 0,
    }
    assert "pass@4 of math counts only the 1 of 2 problems" in result["warnings"][0]
    assert "1 of 6 completions have no \\boxed{}" in result["warnings"][1]
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == result


def test_problems_are_sampled_once(tmp_path, causal_lm_path, capsys, monkeypatch):
    pytest.importorskip("math_verify")
    write_lines(tmp_path / "tiny.jsonl", [{"id": i, "question": f"What is {i}?", "answer": str(i)} for i in range(2)])
    command = ["--problems", str(tmp_path / "tiny.jsonl"), "--model", causal_lm_path, "--num_generations", "4"]
    command += ["--max_tokens", "5", "--device", "cpu", "--output_dir", str(tmp_path / "out"), "--json"]
    run(*command)
    first = json.loads(capsys.readouterr().out)
    assert first["benchmarks"]["tiny"]["samples"] == [4, 4] and first["settings"]["temperature"] == 0.6
    monkeypatch.setattr("trl_diversity.evaluation.generation.make_generator", None)  # nothing is drawn again
    run(*command)
    assert json.loads(capsys.readouterr().out) == first
    assert (tmp_path / "out" / "pass_at_k.png").is_file()
    run(
        "--input",
        str(tmp_path / "out" / "tiny.samples.jsonl"),
        "--json",
        "--compare",
        str(tmp_path / "out" / "results.json"),
        "--figure",
        str(tmp_path / "two.png"),
    )
    assert json.loads(capsys.readouterr().out)["benchmarks"] == first["benchmarks"]


def test_problems_of_a_hub_data_set(tmp_path, causal_lm_path, capsys, monkeypatch):
    """A name that is no file is a data set, with `problem` and a number as `answer`."""
    pytest.importorskip("math_verify")
    asked = []

    def load_dataset(name, split):
        asked.append((name, split))
        return [{"problem": "What is 1 + 1?", "answer": 2, "solution": "..."}]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    command = ["--problems", "owner/maths", "--split", "train", "--model", causal_lm_path, "--num_generations", "2"]
    run(*command, "--max_tokens", "3", "--device", "cpu", "--output_dir", str(tmp_path), "--json")
    result = json.loads(capsys.readouterr().out)
    assert asked == [("owner/maths", "train")] and result["benchmarks"]["maths"]["samples"] == [2, 2]
    (row,) = read_lines(tmp_path / "maths.samples.jsonl")
    assert row["question"] == "What is 1 + 1?" and row["answer"] == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give either `input`"),
        (["--input", "absent"], "there is no file 'absent'"),
        (["--problems", "x"], "`problems` needs an `output_dir`"),
        (["--input", "{file}", "{file}"], "two benchmarks have the same name"),
        (["--input", "{file}", "--k", "0"], "`k` is at least 1"),
        (["--input", "{file}", "--time_limit", "0"], "`time_limit` must be above 0"),
    ],
)
def test_wrong_arguments(tmp_path, capsys, argv, message):
    (tmp_path / "file.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit) as stopped:
        run(*(word.replace("{file}", str(tmp_path / "file.jsonl")) for word in argv))
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_wrong_rows_end_with_a_message(tmp_path):
    write_lines(tmp_path / "file.jsonl", [{"id": 1, "answer": "2"}])
    with pytest.raises(SystemExit, match="the problem '1' has neither `completions` nor `correct`"):
        run("--input", str(tmp_path / "file.jsonl"))
    with pytest.raises(SystemExit, match="there is no file 'absent.jsonl'"):
        run("--problems", "absent.jsonl", "--model", "m", "--output_dir", str(tmp_path / "out"))
