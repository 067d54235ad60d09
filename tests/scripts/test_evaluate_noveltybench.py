# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity evaluate noveltybench`: from prompts to a summary, interrupted and taken up again."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.evaluation.test_noveltybench import scored_file
from tests.scripts.conftest import read_lines, write_lines
from tests.scripts.test_partition import SameFirstWord
from trl_diversity import cli
from trl_diversity.evaluation import novelty_utility
from trl_diversity.scripts.generation_arguments import GenerationArguments
from trl_diversity.scripts.quality import load_quality


def run(*argv: str) -> None:
    cli.main(["evaluate", "noveltybench", *argv])


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> SameFirstWord:
    model = SameFirstWord()
    monkeypatch.setattr("trl_diversity.equivalence.load_equivalence_model", lambda *arguments, **options: model)
    return model


def test_json_is_one_object(tmp_path, capsys):
    rows = scored_file()
    write_lines(tmp_path / "scores.jsonl", rows)
    (tmp_path / "summary.json").write_text(json.dumps({"mean_distinct": sum(row["distinct"] for row in rows) / 100}))
    run("--input", str(tmp_path / "scores.jsonl"), "--published", str(tmp_path / "summary.json"), "--json")
    summary = json.loads(capsys.readouterr().out)
    assert summary["prompts"] == 100 and {"mean_distinct", "mean_utility"} <= set(summary["ci"])
    assert summary["mean_utility"] == pytest.approx(sum(row["utility"] for row in rows) / 100, abs=1e-12)
    assert ["largest label" in warning for warning in summary["warnings"]] == [True, True]
    assert summary["settings"] == {"input": "scores.jsonl", "partition": "of the file", "scores": "of the file"}
    run("--input", str(tmp_path / "scores.jsonl"))
    shown = capsys.readouterr().out
    assert "100 prompts x 10 generations" in shown and f"utility            {summary['mean_utility']:.3f}" in shown


def test_generations_are_partitioned_and_scored(working_directory, model, capsys):
    """FC-134: with another reward model the thresholds are its user's, else it is said."""
    rows = [
        {"prompt": "p", "generations": ["a x", "b", "a y", ""]},
        {"prompt": "q", "completions": ["c", "c", "c d", "e"]},
    ]
    write_lines(Path("generations.jsonl"), rows)
    arguments = ["--input", "generations.jsonl", "--reward_model", "script_rewards.brevity", "--json"]
    run(*arguments, "--quality_thresholds", "0.3", "0.4", "--output_dir", "out")
    summary = json.loads(capsys.readouterr().out)
    partitions = [[0, 1, 0, 2], [0, 0, 0, 1]]
    assert [row["partition"] for row in read_lines(Path("out/partitions.jsonl"))] == partitions
    qualities = [[1, 3, 1, 3], [3, 3, 1, 3]]  # 1 / (1 + length): 1/4, 1/2, 1/4, 1 and 1/2, 1/2, 1/4, 1/2
    utilities = [novelty_utility(*group) for group in zip(partitions, qualities, strict=True)]
    assert summary["mean_utility"] == pytest.approx(sum(utilities) / 2) and summary["mean_distinct"] == 2.5
    assert [row["utility"] for row in read_lines(Path("out/scores.jsonl"))] == pytest.approx(utilities)
    assert summary["settings"]["quality_thresholds"] == [0.3, 0.4] and summary["empty_generations"] == 1
    assert summary["warnings"] == [] and json.loads(Path("out/summary.json").read_text()) == summary
    run(*arguments)
    assert "thresholds were made for Skywork" in json.loads(capsys.readouterr().out)["warnings"][0]
    model.batches.clear()
    run(*arguments, "--quality_thresholds", "0.3", "0.4", "--output_dir", "out")
    assert json.loads(capsys.readouterr().out) == summary and model.batches == []  # nothing is judged again


def test_interrupted_run_goes_on(tmp_path, causal_lm_path, model, monkeypatch, capsys):
    write_lines(tmp_path / "prompts.jsonl", [{"id": f"p{i}", "prompt": f"Say {i}."} for i in range(4)])
    options = ["--num_generations", "3", "--max_tokens", "4", "--device", "cpu", "--generation_batch_size", "1"]
    command = ["--prompts", str(tmp_path / "prompts.jsonl"), "--model", causal_lm_path, *options, "--json"]
    run(*command, "--output_dir", str(tmp_path / "whole"))
    whole = json.loads(capsys.readouterr().out)
    assert whole["prompts"] == 4 and whole["generations_per_prompt"] == 3 and whole["mean_utility"] is None

    from trl_diversity.evaluation.generation import TransformersGenerator

    draw, drawn = TransformersGenerator._draw, []

    def failing(self, prompt, sampling):
        if len(drawn) == 2:
            raise KeyboardInterrupt
        drawn.append(prompt)
        return draw(self, prompt, sampling)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TransformersGenerator, "_draw", failing)
        run(*command, "--output_dir", str(tmp_path / "parts"))
    assert len(read_lines(tmp_path / "parts" / "generations.jsonl")) == 2
    run(*command, "--output_dir", str(tmp_path / "parts"))
    assert json.loads(capsys.readouterr().out) == whole
    files = [tmp_path / name / "generations.jsonl" for name in ("whole", "parts")]
    assert files[0].read_text() == files[1].read_text()
    with pytest.raises(SystemExit, match="temperature was 1.0, is 0.5"):
        run(*command, "--output_dir", str(tmp_path / "parts"), "--temperature", "0.5")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give either `input`"),
        (["--input", "absent"], "there is no file 'absent'"),
        (["--prompts", "{file}"], "`prompts` needs an `output_dir`"),
        (["--input", "{file}", "--model", "m"], "`model` draws completions for `prompts`"),
        (["--input", "{file}", "--patience", "0"], "`patience` lies in (0, 1]"),
        (["--input", "{file}", "--quality_thresholds", "2", "1"], "must ascend"),
        (["--input", "{file}", "--clustring", "greedy"], "The nearest is `--clustering`"),
        (["--input", "{file}", "--base_url", "http://x/v1", "--backend", "vllm"], "belongs to the backend `server`"),
    ],
)
def test_wrong_arguments(tmp_path, capsys, argv, message):
    (tmp_path / "file.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit) as stopped:
        run(*(word.replace("{file}", str(tmp_path / "file.jsonl")) for word in argv))
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_wrong_row_ends_with_a_message(tmp_path):
    (tmp_path / "file.jsonl").write_text('{"prompt": "p"}\n')
    with pytest.raises(SystemExit, match="row 1: expected `generations` or a `partition`"):
        run("--input", str(tmp_path / "file.jsonl"))
    with pytest.raises(SystemExit, match="row 1: expected a text or a conversation as `prompt`"):
        (tmp_path / "file.jsonl").write_text('{"question": "p"}\n')
        run("--prompts", str(tmp_path / "file.jsonl"), "--model", "m", "--output_dir", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("reward", "needed"),
    [
        ("accuracy_reward", "solution"),
        ("get_soft_overlong_punishment", "completion_ids"),
        ("script_rewards.Length", "completion_ids"),
    ],
)
@pytest.mark.parametrize("command", ["noveltybench", "sweep"])
def test_a_reward_that_needs_more_is_refused_before_anything_is_drawn(
    working_directory, reward, needed, command, monkeypatch
):
    monkeypatch.setattr("trl_diversity.evaluation.generation.make_generator", lambda *a, **k: pytest.fail("drawn"))
    write_lines(Path("prompts.jsonl"), [{"prompt": "p"}])
    model = ["--models", "m"] if command == "sweep" else ["--model", "m"]
    with pytest.raises(SystemExit, match=f"{reward!r} needs {needed}"):
        cli.main(
            ["evaluate", command, "--prompts", "prompts.jsonl", *model, "--output_dir", "out"]
            + ["--reward_model", reward]
        )
    with pytest.raises(ValueError, match=f"needs {needed}"):
        load_quality(reward)


def test_arguments_of_the_template_reach_a_reward_model(tmp_path, reward_model_path):
    tokenizer = AutoTokenizer.from_pretrained(reward_model_path)
    tokenizer.chat_template = "{{ mood }}" + tokenizer.chat_template
    path = str(shutil.copytree(reward_model_path, tmp_path / "moody"))
    tokenizer.save_pretrained(path)
    scores = [
        GenerationArguments(device="cpu", dtype="float32", chat_template_kwargs=kwargs).load_quality(path)(
            ["p"], ["x"]
        )
        for kwargs in (None, {"mood": "calm"}, {"mood": "calm"})
    ]
    assert scores[0] != scores[1] == scores[2]


def test_a_reward_model_scores_the_conversation(reward_model_path):
    quality = load_quality(reward_model_path, device="cpu")
    found = quality(["hello", [{"role": "user", "content": "hello"}]], ["x", "a longer answer"])
    tokenizer = AutoTokenizer.from_pretrained(reward_model_path)
    model = AutoModelForSequenceClassification.from_pretrained(reward_model_path, num_labels=1).eval()
    for reward, answer in zip(found, ["x", "a longer answer"], strict=True):
        text = f"<|user|>hello<|end|><|assistant|>{answer}<|end|>"
        with torch.no_grad():
            expected = model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits.item()
        assert reward == pytest.approx(expected, abs=1e-4)
