# SPDX-License-Identifier: Apache-2.0
"""Darl's demo: its questions and recipes, its measurements, and whole runs with a tiny model."""

import json
import math
from pathlib import Path

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo import models
from demo.darl import __main__ as command
from demo.darl import evaluate, experiment, plots, questions, report, warm_up
from demo.darl.questions import messages, read_questions
from trl_diversity.likelihood import find_answer, format_reward
from trl_diversity.scripts.darl import make_parser


ROOT = Path(__file__).parents[1]
QUESTION_FILES = {"warm_up": 40, "train": 48, "development": 12, "held_out": 16}


def test_questions_are_distinct_and_have_references():
    rows = {name: read_questions(name) for name in QUESTION_FILES}
    assert {name: len(found) for name, found in rows.items()} == QUESTION_FILES
    prompts = [row["prompt"].casefold() for found in rows.values() for row in found]
    assert len(set(prompts)) == len(prompts)
    for row in (row for found in rows.values() for row in found):
        assert row["answer"] == row["answer"].strip() != ""
        assert row["answer"].casefold() not in row["prompt"].casefold().split()


def test_no_pair_of_opposites_returns():
    """Whoever has learnt that the opposite of hot is cold has also learnt what the opposite of cold is."""
    pairs = [
        frozenset((row["prompt"].split()[-1].rstrip("?"), row["answer"]))
        for name in QUESTION_FILES
        for row in read_questions(name)
        if "opposite" in row["prompt"]
    ]
    assert len(pairs) > 10
    assert len(set(pairs)) == len(pairs)


def test_sums_are_right():
    signs = {"plus": 1, "minus": -1}
    checked = 0
    for row in (row for name in QUESTION_FILES for row in read_questions(name)):
        words = row["prompt"].rstrip("?").split()
        if len(words) > 3 and words[3] in signs:
            assert int(words[2]) + signs[words[3]] * int(words[4]) == int(row["answer"])
            checked += 1
    assert checked >= 10


def test_warm_up_shows_the_format_that_the_reward_asks_for(causal_lm_path):
    tokenizer = AutoTokenizer.from_pretrained(causal_lm_path)
    rows = warm_up.training_rows()
    assert rows == warm_up.training_rows()  # the same order every time
    answers = {row["prompt"]: row["answer"] for row in read_questions("warm_up")}
    for row in rows:
        text = row["completion"][0]["content"]
        span = find_answer(tokenizer.encode(text), tokenizer, "tags")
        assert span.answer == answers[row["prompt"][-1]["content"]]
        assert span.answer in text.split("<answer>")[0]  # the reasoning leads to the answer
        assert format_reward(text, "r1_nothink") == 1.0


def test_recipes_differ_in_the_threshold_alone():
    dynamic, static = (
        yaml.safe_load((experiment.RECIPES / name).read_text()) for name in experiment.THRESHOLDS.values()
    )
    assert (dynamic.pop("threshold_type"), static.pop("threshold_type")) == ("dynamic", "static")
    assert dynamic.pop("gamma") > 0 and static.pop("tau") > 0
    assert dynamic.pop("output_dir") != static.pop("output_dir")
    assert dynamic == static
    assert dynamic["format_style"] == "r1_nothink"
    assert Path(dynamic["model_name_or_path"]) == models.CACHE / warm_up.POLICY
    assert experiment.fingerprint("DAD") != experiment.fingerprint("SAD")


def test_questions_are_put_to_the_policy_as_the_recipe_puts_them(monkeypatch):
    from trl_diversity.scripts.training_data import load_splits

    monkeypatch.chdir(ROOT)
    recipe = str(experiment.RECIPES / experiment.THRESHOLDS["DAD"])
    script_args, args, _ = make_parser().parse_args_and_config(["--config", recipe])
    rows = load_splits(script_args, with_eval=False)[0]
    assert [row["prompt"] for row in rows] == [messages(row["prompt"]) for row in read_questions("train")]
    assert args.temperature == 1.0 and args.num_generations == 8


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Paris", "paris"),
        (" the  Color. ", "color"),
        ("A", "a"),
        ("An", "an"),
        ("a puppy!", "puppy"),
        ("", ""),
        ("South  America", "south america"),
        ("thermal", "thermal"),
    ],
)
def test_normalised(answer, expected):
    assert evaluate.normalised(answer) == expected


def test_up_to_end():
    assert evaluate.up_to_end([5, 6, 2, 2, 2], 2) == [5, 6, 2]
    assert evaluate.up_to_end([5, 6], 2) == [5, 6]


@pytest.fixture
def tiny_policy(causal_lm_path):
    """A tiny policy whose adapter has an effect, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(causal_lm_path)
    torch.manual_seed(0)
    model = get_peft_model(model, LoraConfig(target_modules="all-linear", init_lora_weights=False))
    return model, AutoTokenizer.from_pretrained(causal_lm_path)


def naive_likelihood(model, tokenizer, prompt, before, text):
    """Mean probability of the bytes of `text`, one token at a time, without batches, masks or caches."""
    ids = tokenizer.apply_chat_template(messages(prompt), add_generation_prompt=True, return_dict=False)
    ids = ids + tokenizer.encode(before, add_special_tokens=False)
    probabilities = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        probabilities.append(math.exp(logits[token]) / sum(math.exp(value) for value in logits.tolist()))
        ids = [*ids, token]
    return sum(probabilities) / len(probabilities)


def test_evaluate_measures_every_completion(tiny_policy, monkeypatch):
    model, tokenizer = tiny_policy
    texts = [
        "It is red. <answer>Blue.</answer>",
        "It is blue. <answer>green</answer>",
        "It is blue.",  # no tag
        "<answer>a</answer><answer>b</answer>",  # several
    ]
    prompt = tokenizer.apply_chat_template(messages("Color?"), add_generation_prompt=True, return_dict=False)
    drawn = [(prompt, tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    monkeypatch.setattr(evaluate, "sample", lambda *args, **sampling: drawn)
    model.eval()
    rows = evaluate.evaluate(model, tokenizer, [{"prompt": "Color?", "answer": "blue"}], 4, seed=0)
    assert [row["completion"] for row in rows] == texts
    assert [row["malformed"] for row in rows] == [0, 0, 1, 1]
    assert [row["exact_match"] for row in rows] == [1, 0, 0, 0]
    assert [row["format_score"] for row in rows] == [1, 1, 0, 0]
    assert rows[0]["answer"] == "Blue."
    for row, text in zip(rows[:2], texts, strict=False):
        before = text[: text.index(">") + 1]
        expected = naive_likelihood(model, tokenizer, "Color?", before, "blue")
        assert row["reference_prob"] == pytest.approx(expected, abs=1e-5)
        assert row["answer_prob"] == pytest.approx(
            naive_likelihood(model, tokenizer, "Color?", before, row["answer"]), abs=1e-5
        )
        with model.disable_adapter():
            initial = naive_likelihood(model, tokenizer, "Color?", before, "blue")
        assert row["initial_reference_prob"] == pytest.approx(initial, abs=1e-5)
        assert abs(initial - expected) > 1e-5  # the two policies differ
    assert all(row[name] == 0 for row in rows[2:] for name in evaluate.MEASURES if name != "malformed")
    means = evaluate.summary(rows)
    assert means["malformed"] == 0.5 and means["exact_match"] == 0.25
    total = rows[0]["reference_prob"] + rows[1]["reference_prob"]
    assert means["reference_prob"] == pytest.approx(total / 4)
    assert means["well_formed_reference_prob"] == pytest.approx(total / 2)
    assert evaluate.summary(rows[2:])["well_formed_reference_prob"] == 0


def test_sample_reads_the_whole_prompt_and_leaves_everything_as_it_was(tiny_policy, monkeypatch):
    model, tokenizer = tiny_policy
    monkeypatch.setattr(evaluate, "BATCH_SIZE", 2)  # prompts of unequal length share a batch
    model.train()
    state = torch.get_rng_state()

    def draw(seed):
        return evaluate.sample(model, tokenizer, ["one", "much longer", "two"], seed, max_new_tokens=5)

    drawn = draw(3)
    assert model.training and torch.equal(torch.get_rng_state(), state)
    for (prompt, completion), question in zip(drawn, ["one", "much longer", "two"], strict=True):
        assert prompt == tokenizer.apply_chat_template(
            messages(question), add_generation_prompt=True, return_dict=False
        )
        assert 1 <= len(completion) <= 5
        assert tokenizer.eos_token_id not in completion[:-1]
    assert draw(3) == drawn
    assert draw(4) != drawn


def test_curve_and_mean_curve():
    logs = [
        {"step": 1, "darl/malformed_fraction": 1.0, "entropy": 2.0, "reward": 0.0},
        {"step": 2, "darl/malformed_fraction": 0.5, "entropy": 1.0, "darl/reference_prob": 0.25},
        {"step": 2, "train_runtime": 3.0},
    ]
    curve = experiment.training_curve(logs)
    assert curve == [
        {"step": 1, "malformed": 1.0, "entropy": 2.0},
        {"step": 2, "reference_prob": 0.25, "malformed": 0.5, "entropy": 1.0},
    ]
    assert experiment.latest_likelihood(logs[:2]) == "r(y*) 0.25, malformed 50%"
    assert experiment.latest_likelihood(logs[:1]) == "r(y*) 0.00, malformed 100%"
    assert experiment.latest_likelihood(logs) == experiment.latest_likelihood([]) == ""
    other = [
        {"step": 1, "malformed": 0.0, "entropy": 1.0, "reference_prob": 0.5},
        {"step": 2, "malformed": 0.0, "entropy": 1.0, "reference_prob": 0.75},
    ]
    assert plots.mean_curve([curve, other]) == [
        {"step": 1, "malformed": 0.5, "entropy": 1.5, "reference_prob": 0.5},
        {"step": 2, "malformed": 0.25, "entropy": 1.0, "reference_prob": 0.5},
    ]


def test_report_shows_mean_and_range(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")

    def run(threshold, seed, value):
        measured = dict.fromkeys(report.LABELS, 0.0) | {"reference_prob": value}
        before = dict.fromkeys(report.LABELS, 0.125)
        return {"threshold": threshold, "seed": seed, "questions": "held_out", "before": before, "after": measured}

    report.print_runs([run("DAD", 0, 0.5), run("DAD", 1, 0.75), run("SAD", 0, 0.25), run("SAD", 1, 0.25)])
    shown = capsys.readouterr().out
    assert "0.625 (0.500 to 0.750)" in shown and "0.250 (0.250 to 0.250)" in shown and "0.125" in shown


@pytest.fixture
def tiny_demo(tmp_path, monkeypatch, causal_lm_path):
    """The demo with a tiny policy, in sizes that take seconds."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(command, "prepare_environment", lambda: None)
    monkeypatch.setattr(warm_up, "warm_policy", lambda *args, **kwargs: Path(causal_lm_path))
    monkeypatch.setattr(
        command, "SMOKE_OVERRIDES", [*command.SMOKE_OVERRIDES, "--learning_rate", "0.01", "--disable_tqdm", "true"]
    )
    return tmp_path


def test_one_run_leaves_everything_behind(tiny_demo, capsys):
    output = tiny_demo / "demo"
    command.main(["--smoke", "--output", str(output)])
    assert {path.name for path in output.iterdir()} >= {
        "adapter_model.safetensors",
        "README.md",
        "metrics.json",
        "curves.png",
        "completions_before.jsonl",
        "completions_after.jsonl",
    }
    metrics = json.loads((output / "metrics.json").read_text())
    assert [point["step"] for point in metrics["curve"]] == [1, 2]
    assert all("entropy" in point and "malformed" in point for point in metrics["curve"])
    rows = [json.loads(line) for line in (output / "completions_after.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == [q["prompt"] for q in read_questions("held_out")[:2] for _ in range(2)]
    assert metrics["after"]["malformed"] == sum(row["malformed"] for row in rows) / 4
    assert "2601.14700" in (output / "README.md").read_text()
    assert "held-out questions, seed 0" in capsys.readouterr().out


def test_thresholds_share_their_start_and_a_complete_run_is_not_repeated(tiny_demo, monkeypatch):
    arguments = ["--smoke", "--compare-thresholds", "--output", str(tiny_demo)]
    command.main(arguments)
    assert (tiny_demo / "thresholds.png").stat().st_size > 1000
    dad, sad = json.loads((tiny_demo / "thresholds.json").read_text())["runs"]
    assert (dad["threshold"], sad["threshold"]) == ("DAD", "SAD")
    assert dad["curve"][0]["entropy"] == sad["curve"][0]["entropy"]  # same seed, same policy, same first rollout
    assert dad["before"] == sad["before"]
    monkeypatch.setattr(experiment, "run", lambda *args, **kwargs: pytest.fail("the run was repeated"))
    command.main(arguments)
    command.main(["--smoke", "--seeds", "0", "--output", str(tiny_demo)])  # the two commands share their runs
    assert (tiny_demo / "seeds.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="'development'"):
        command.main([*arguments, "--questions", "development"])
    monkeypatch.setattr(experiment, "fingerprint", lambda threshold: "0" * 64)
    with pytest.raises(ValueError, match="Choose another --output"):
        command.main(arguments)


def test_unknown_questions_are_an_error():
    with pytest.raises(FileNotFoundError):
        questions.read_questions("other")
