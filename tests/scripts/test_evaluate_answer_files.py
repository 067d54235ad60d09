# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity evaluate answer-files` and `eq-bench-results`: the files that other harnesses read and write."""

import json
import re
from pathlib import Path

import pytest

from tests.scripts.conftest import read_lines, write_lines
from trl_diversity import cli
from trl_diversity.evaluation.answer_files import markdown_counts
from trl_diversity.evaluation.eq_bench import pairwise_win_rates, rubric_win_rates


@pytest.fixture
def answers(monkeypatch, tmp_path):
    """A model that answers with its reasoning, the prompt and the seed."""
    calls = []

    def make_generator(model, *options):
        def draw(prompts, sampling):
            calls.append((prompts, sampling))
            return [[f"<think>hm</think>{prompt} {sampling.seed}" + "x" * 300 * sampling.seed] for prompt in prompts]

        return draw

    monkeypatch.setattr("trl_diversity.evaluation.generation.make_generator", make_generator)
    monkeypatch.chdir(tmp_path)
    return calls


def write(benchmark: str, questions: str, *argv: str) -> None:
    command = ["evaluate", "answer-files", "--benchmark", benchmark, "--questions", questions, "--output_dir", "out"]
    cli.main([*command, "--model", "owner/policy", *argv])


def test_alpaca_eval(answers, capsys):
    rows = [
        {"dataset": "helpful_base", "instruction": f"q{i}", "output": "theirs", "generator": "gpt4"} for i in (0, 1)
    ]
    Path("alpaca_eval.json").write_text(json.dumps(rows))
    write("alpaca-eval", "alpaca_eval.json")
    assert json.loads(Path("out/policy.json").read_text()) == [
        {"dataset": "helpful_base", "instruction": f"q{i}", "output": f"q{i} 0", "generator": "policy"} for i in (0, 1)
    ]
    assert "alpaca_eval --model_outputs out/policy.json" in capsys.readouterr().out
    sampling = answers[0][1]
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.6, 0.9, 8192)
    drawn = len(answers)
    write("alpaca-eval", "alpaca_eval.json")
    assert len(answers) == drawn  # nothing is drawn again
    with pytest.raises(SystemExit, match="temperature was 0.6, is 1.0"):
        write("alpaca-eval", "alpaca_eval.json", "--temperature", "1.0")


@pytest.mark.parametrize("answer_text", ["after_think", "full"])
def test_arena_hard_since_2025(answers, answer_text):
    write_lines(Path("question.jsonl"), [{"uid": "u1", "category": "hard_prompt", "prompt": "p1"}])
    write("arena-hard", "question.jsonl", "--name", "mine", "--answer_text", answer_text)
    (row,) = read_lines(Path("out/mine.jsonl"))
    text = "p1 0" if answer_text == "after_think" else "<think>hm</think>p1 0"
    assert row["uid"] == "u1" and row["model"] == "mine" and row["ans_id"] and row["tstamp"] > 1e9
    assert row["messages"] == [
        {"role": "user", "content": "p1"},
        {"role": "assistant", "content": {"answer": text}},
    ]
    assert isinstance(row["metadata"], dict)


def test_arena_hard_before_2025(answers, monkeypatch):
    from trl_diversity.scripts import evaluate_answer_files

    monkeypatch.setattr(evaluate_answer_files, "_token_counter", lambda modern: lambda text: len(text.split()))
    write_lines(Path("question.jsonl"), [{"question_id": "a1", "category": "c", "turns": [{"content": "p1"}]}])
    write("arena-hard", "question.jsonl")
    (row,) = read_lines(Path("out/policy.jsonl"))
    assert (row["question_id"], row["model_id"]) == ("a1", "policy")
    assert row["choices"] == [{"index": 0, "turns": [{"content": "p1 0"}]}]
    assert row["conv_metadata"]["token_len"] == 2 and row["conv_metadata"]["bold_count"] == {"**": 0, "__": 0}


def test_style_is_counted_outside_of_code():
    text = "# Title\n## Sub\n- **a** and __b__\n1. **c**\n```\n# no\n- **no**\n```\n####### none\n"
    assert markdown_counts(text) == {
        "header_count": {"h1": 1, "h2": 1, "h3": 0, "h4": 0, "h5": 0, "h6": 0},
        "list_count": {"ordered": 1, "unordered": 1},
        "bold_count": {"**": 2, "__": 1},
    }


def test_eq_bench_runs_file(answers, capsys):
    """A piece below 500 characters is drawn again, three times at most."""
    prompts = {"7": {"writing_prompt": "Write about <SEED>." + " Long." * 5, "seed_modifiers": ["rain", "snow"]}}
    prompts["9"] = {"writing_prompt": "S", "seed_modifiers": ["x"]}
    Path("prompts.json").write_text(json.dumps(prompts))
    write("eq-bench", "prompts.json", "--iterations", "3", "--run_id", "r1", "--name", "a/b c")
    runs = json.loads(Path("out/a__b c.runs.json").read_text())
    (key,) = runs
    assert key == "r1__a_b_c" and runs[key]["test_model"] == "a/b c"
    tasks = runs[key]["creative_tasks"]
    assert list(tasks) == ["1", "2", "3"] and list(tasks["1"]) == ["7", "9"]
    assert [tasks[i]["7"]["seed_modifiers"] for i in "123"] == [["rain"], ["snow"], ["rain"]]
    task = tasks["2"]["7"]
    assert task["status"] == "generated" and task["iteration_index"] == 2
    (block,) = task["results_by_modifier"].values()
    assert block["model_response"].startswith("Write about snow.") and not block["generation_failed"]
    assert {sampling.seed for _, sampling in answers} == {0, 1, 2}  # 600 characters with seed 2
    assert answers[0][1].min_p == 0.1 and answers[0][1].max_tokens == 4096
    assert "--run-id r1 --iterations 3" in capsys.readouterr().out


def test_a_piece_that_stays_short_failed(answers):
    Path("prompts.json").write_text(json.dumps({"7": {"writing_prompt": "S", "seed_modifiers": ["x"]}}))
    from trl_diversity.evaluation.eq_bench import runs_file, writing_tasks

    tasks = writing_tasks(json.loads(Path("prompts.json").read_text()), 1)
    content = runs_file(tasks, ["short"], "m", "r")
    block = content["r__m"]["creative_tasks"]["1"]["7"]["results_by_modifier"]["x"]
    assert block["generation_failed"] and "model_response" not in block


def judged(model: str, scores: dict[str, dict[str, float]]) -> dict:
    """A judged runs file: scores by prompt."""
    tasks = {prompt: {"results_by_modifier": {"seed": {"judge_scores": values}}} for prompt, values in scores.items()}
    return {f"r__{model}": {"test_model": model, "creative_tasks": {"1": tasks}}}


def test_rubric_win_rates(tmp_path, capsys):
    ours = judged("ours", {"1": {"Imagery": 15, "Purple Prose": 3}, "2": {"Imagery": 10, "Purple Prose": 5}})
    theirs = judged("theirs", {"1": {"Imagery": 12, "Purple Prose": 8}, "2": {"Imagery": 10, "Purple Prose": 4}})
    theirs["r__theirs"]["creative_tasks"]["1"]["3"] = {"results_by_modifier": {"s": {"judge_scores": {"Imagery": 1}}}}
    for name, content in (("ours", ours), ("theirs", theirs)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "negative.txt").write_text("Purple Prose\n")
    command = ["evaluate", "eq-bench-results", "--input", str(tmp_path / "ours.json"), str(tmp_path / "theirs.json")]
    command += ["--models", "ours", "theirs"]
    cli.main([*command, "--negative_criteria", str(tmp_path / "negative.txt"), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["criteria"] == {
        "Imagery": {"win_rate": 0.75, "pairs": 2, "first": 12.5, "second": 11.0},
        "Purple Prose": {"win_rate": 0.5, "pairs": 2, "first": 4.0, "second": 6.0},
    }
    cli.main([*command, "--figure", str(tmp_path / "figure.png")])
    shown = capsys.readouterr().out
    assert "Imagery        75.0  of 2" in shown and "more was taken to be better" in shown
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="'x' has no judged piece; the models are 'ours', 'theirs'"):
        rubric_win_rates(ours | theirs, "ours", "x")


def test_pairwise_win_rates():
    def comparison(test: str, other: str, order: str, response: dict) -> dict:
        return {"pair": {"test_model": test, "neighbor_model": other}, "order": order, "judge_response": response}

    forward, backward = "A0493:test / A0488:other", "A0493:other / A0488:test"
    comparisons = [
        comparison("ours", "theirs", forward, {"coherence": "A0493++", "theory_of_mind": "A0493", "style": "A0488+"}),
        comparison("ours", "theirs", backward, {"coherence": "A0488+", "style": "A0488++++", "x": "neither"}),
        comparison("theirs", "ours", forward, {"coherence": "A0493+"}),
        comparison("ours", "third", forward, {"coherence": "A0488+"}),
        {"pair": {"test_model": "ours", "neighbor_model": "theirs"}, "judge_response": {}, "error": "Empty"},
    ]
    results = {"ours": {"elo_analysis": {"pairwise_comparisons": comparisons}}}
    assert pairwise_win_rates(results, "ours", "theirs") == {
        "coherence": {"win_rate": pytest.approx(2 / 3), "pairs": 3},
        "style": {"win_rate": 0.5, "pairs": 2},
    }
    flipped = pairwise_win_rates(results, "theirs", "ours")
    assert flipped["coherence"]["win_rate"] == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="no comparison of 'ours' with 'fourth'"):
        pairwise_win_rates(results, "ours", "fourth")


@pytest.mark.parametrize(
    ("benchmark", "content", "message"),
    [
        ("alpaca-eval", '[{"prompt": "p"}]', "row 1: expected a question as `instruction`"),
        ("arena-hard", '{"uid": 1, "turns": [{"content": "a"}, {"content": "b"}]}', "one turn of text"),
        ("arena-hard", "", "has no questions"),
        ("eq-bench", "[]", "expected an object of prompts by id"),
        ("eq-bench", '{"1": {"writing_prompt": "p"}}', "needs a `writing_prompt` and `seed_modifiers`"),
    ],
)
def test_questions_of_another_form(answers, benchmark, content, message):
    Path("questions").write_text(content)
    with pytest.raises(SystemExit, match=re.escape(message)):
        write(benchmark, "questions")
