# SPDX-License-Identifier: Apache-2.0
"""Data sets of every shape: what is refused, what is dropped, and which baseline each row has."""

import math
import re
import statistics
from typing import Any

import pytest
from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer

from tests.darl.helpers import (
    ANSWERED,
    make_trainer,
    reference_likelihood,
    references_dataset,
    rewards_of_one_step,
    serve_cases,
    serve_texts,
)
from tests.darl.rollouts import REFERENCES
from tests.trainers.helpers import record_outputs
from trl_diversity.trainers.references import row_key


# What is refused


@pytest.mark.parametrize("kind", [Dataset, IterableDataset])
def test_missing_column(tmp_path, policy_path, kind):
    data = Dataset.from_dict({"prompt": ["p0"] * 4, "solution": ["42"] * 4})
    data = data.to_iterable_dataset() if kind is IterableDataset else data
    message = "`train_dataset` has no column 'answer' with the references; it has prompt, solution"
    with pytest.raises(ValueError, match=re.escape(message)):
        make_trainer(tmp_path, policy_path, train_dataset=data)
    make_trainer(tmp_path, policy_path, train_dataset=data, reference_column="solution")


@pytest.mark.parametrize("named", [False, True])
def test_missing_column_of_an_evaluation_set(tmp_path, policy_path, named):
    data = Dataset.from_dict({"prompt": ["p0"]})
    name = "`eval_dataset['hard']`" if named else "`eval_dataset`"
    with pytest.raises(ValueError, match=re.escape(f"{name} has no column 'answer'")):
        make_trainer(tmp_path, policy_path, trainer={"eval_dataset": {"hard": data} if named else data})


@pytest.mark.parametrize("empty", ["", " \n", None])
def test_empty_references_are_refused_with_the_first_rows(tmp_path, policy_path, empty):
    data = Dataset.from_dict({"prompt": ["p0"] * 14, "answer": ["42", empty] * 7})
    message = "7 of 14 rows of `train_dataset` have an empty reference in the column 'answer', the first are"
    with pytest.raises(ValueError, match=re.escape(f"{message} [1, 3, 5, 7, 9].")):
        make_trainer(tmp_path, policy_path, train_dataset=data)


def test_empty_references_are_dropped_if_asked_for(tmp_path, policy_path):
    data = Dataset.from_dict({"prompt": ["p0", "p1"] * 4, "answer": ["42", " "] * 4})
    trainer = make_trainer(
        tmp_path, policy_path, train_dataset=data, trainer={"eval_dataset": data}, drop_empty_references=True
    )
    assert trainer.train_dataset["prompt"][:] == trainer.eval_dataset["prompt"][:] == ["p0"] * 4
    serve_texts(trainer, ANSWERED)
    trainer.train()


def test_a_reference_that_is_no_text_is_refused_with_its_row(tmp_path, policy_path):
    data = Dataset.from_dict({"prompt": ["p0", "p1"], "answer": [["42"], ["43"]]})
    message = "Row 0 of `train_dataset`, column 'answer': a reference must be a text"
    with pytest.raises(ValueError, match=re.escape(message)):
        make_trainer(tmp_path, policy_path, train_dataset=data)


def test_debias_refuses_a_streamed_train_set(tmp_path, policy_path):
    data = references_dataset().to_iterable_dataset()
    with pytest.raises(ValueError, match="`debias=True` scores the whole train set .* Load it as a `Dataset`"):
        make_trainer(tmp_path, policy_path, train_dataset=data, debias=True)


def test_no_chat_template(tmp_path, policy_path):
    tokenizer = AutoTokenizer.from_pretrained(policy_path)
    tokenizer.chat_template = None
    trainer = make_trainer(
        tmp_path,
        policy_path,
        train_dataset=references_dataset(conversational=True),
        trainer={"processing_class": tokenizer},
    )
    with pytest.raises(ValueError, match="chat_template"):
        trainer.train()


# Streams


def streamed(rows):
    return IterableDataset.from_generator(lambda: iter(rows))


def test_a_stream_is_scored_as_a_data_set_is(tmp_path, policy_path):
    rewards = []
    for data in (references_dataset(), references_dataset().to_iterable_dataset()):
        trainer = make_trainer(
            tmp_path, policy_path, train_dataset=data, per_device_train_batch_size=16, shuffle_dataset=False
        )
        serve_cases(trainer)
        rewards.append(rewards_of_one_step(trainer))
    assert len(set(rewards[0])) > 8
    assert rewards[0] == pytest.approx(rewards[1])


def test_rows_of_a_stream_are_dropped_if_asked_for(tmp_path, policy_path):
    rows = [{"prompt": "p0", "answer": ""}, {"prompt": "p1", "answer": "Paris"}, {"prompt": "p2", "answer": None}]
    trainer = make_trainer(tmp_path, policy_path, train_dataset=streamed(rows), drop_empty_references=True)
    serve_texts(trainer, ANSWERED)
    outputs = record_outputs(trainer)
    trainer.train()
    assert set(outputs[0]["prompts"]) == {"p1"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p0", "answer": "  "}, "The reference in the column 'answer' is empty for the prompt 'p0'"),
        (
            {"prompt": "p0", "solution": "42"},
            "A row has no column 'answer' with the reference; it has prompt, solution",
        ),
    ],
)
def test_rows_of_a_stream_are_checked_as_they_come(tmp_path, policy_path, row, message):
    trainer = make_trainer(tmp_path, policy_path, train_dataset=streamed([row]))
    serve_texts(trainer, ANSWERED)
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer.train()


# Numbers


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([42, 7, 0, -1], ["42", "7", "0", "-1"]),
        # The case FC-045: one fraction makes the column one of floats.
        ([42, 0.25, 1, -3], ["42", "0.25", "1", "-3"]),
        ([True, False, True, True], ["True", "False", "True", "True"]),
    ],
)
@pytest.mark.parametrize("debias", [False, True])
def test_numeric_references(tmp_path, policy_path, policy, tokenizer, values, texts, debias):
    prompts = ["p0", "p1", "p2", "p3"]
    trainer = make_trainer(
        tmp_path,
        policy_path,
        train_dataset=Dataset.from_dict({"prompt": prompts, "answer": values}),
        per_device_train_batch_size=16,
        shuffle_dataset=False,
        delta_weight=0.0,
        format_weight=0.0,
        debias=debias,
    )
    serve_texts(trainer, {prompt: ["<think>x</think><answer>7</answer>"] * 4 for prompt in prompts})
    expected = []
    for prompt, text in zip(prompts, texts, strict=True):
        ids = tokenizer(prompt)["input_ids"]
        value = reference_likelihood(policy, tokenizer, ids, "<think>x</think><answer>", text)
        baseline = reference_likelihood(policy, tokenizer, ids, "<answer>", text) if debias else 0.0
        expected += [max(value - baseline, 0.0)] * 4
    assert rewards_of_one_step(trainer) == pytest.approx(expected, abs=1e-5)


def test_a_gap_in_a_column_of_numbers_is_an_empty_reference(tmp_path, policy_path):
    """The third row of the case FC-045."""
    data = Dataset.from_dict({"prompt": ["6*7?", "1/4?", "first?"], "answer": [42, 0.25, None]})
    with pytest.raises(ValueError, match=re.escape("1 of 3 rows")):
        make_trainer(tmp_path, policy_path, train_dataset=data)
    trainer = make_trainer(tmp_path, policy_path, train_dataset=data, drop_empty_references=True)
    assert trainer.train_dataset["prompt"][:] == ["6*7?", "1/4?"]


# Evaluation


def test_several_evaluation_sets(tmp_path, policy_path, policy, tokenizer):
    sets = {"easy": references_dataset(["p0", "p1"]), "hard": references_dataset(["p2"])}
    trainer = make_trainer(
        tmp_path,
        policy_path,
        trainer={"eval_dataset": sets},
        num_generations_eval=1,
        per_device_eval_batch_size=2,
        std_filter_beta=0.5,
    )
    serve_texts(trainer, {prompt: [f"<answer>{REFERENCES[prompt]}</answer>"] for prompt in REFERENCES})
    trainer.evaluate()
    # TRL logs each set in an entry of its own, without its name
    entries = [entry for entry in trainer.state.log_history if "eval_darl/reference_prob" in entry]
    for entry, (name, prompts) in zip(entries, (("easy", ["p0", "p1"]), ("hard", ["p2"])), strict=True):
        likelihoods = [
            reference_likelihood(policy, tokenizer, tokenizer(p)["input_ids"], "<answer>", REFERENCES[p])
            for p in prompts
        ]
        assert f"eval_{name}_loss" in entry
        assert entry["eval_darl/reference_prob"] == pytest.approx(statistics.fmean(likelihoods), abs=1e-5)
    # Evaluation neither filters nor counts as a step of the filter
    assert trainer.darl_state.std_filter.step == 0
    assert not any("filtered_fraction" in key for entry in trainer.state.log_history for key in entry)


@pytest.mark.parametrize("stream", [False, True])
def test_baseline_of_evaluation_sets(tmp_path, policy_path, stream):
    part = references_dataset(["p3", "p2"])
    trainer = make_trainer(
        tmp_path,
        policy_path,
        train_dataset=references_dataset(["p0", "p1"]),
        trainer={
            "eval_dataset": {"a": references_dataset(["p2"]), "b": part.to_iterable_dataset() if stream else part}
        },
        debias=True,
        per_device_eval_batch_size=4,
    )
    serve_texts(trainer, ANSWERED)
    trainer.evaluate()
    assert set(trainer.darl_state.baseline) == {row_key(prompt, text) for prompt, text in REFERENCES.items()}


def test_rows_that_were_in_no_data_set_have_no_baseline(tmp_path, policy_path):
    trainer = make_trainer(
        tmp_path, policy_path, train_dataset=references_dataset(["p0"]), debias=True, per_device_eval_batch_size=4
    )
    serve_texts(trainer, ANSWERED)
    trainer.train()
    with pytest.raises(ValueError, match="The likelihood of the reference 'Paris' without reasoning is not known"):
        trainer.evaluate(references_dataset(["p1"]))


def test_row_key_tells_prompts_and_references_apart():
    rows: list[tuple[Any, str]] = [
        ("p", "a"),
        ("p", "b"),
        ("q", "a"),
        ([{"role": "user", "content": "p"}], "a"),
        ([{"role": "system", "content": "p"}], "a"),
    ]
    assert len({row_key(*row) for row in rows}) == len(rows)
    assert row_key([{"role": "user", "content": "p"}], "a") == row_key([{"content": "p", "role": "user"}], "a")
    assert math.log2(16) * len(row_key("p", "a")) == 64  # bits: no collision among millions of rows
