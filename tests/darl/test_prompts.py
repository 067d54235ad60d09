# SPDX-License-Identifier: Apache-2.0
"""Prompts and completions of every shape: what is scored is the reference after the sampled ids before it."""

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests import tiny
from tests.darl.helpers import (
    ANSWERED,
    make_trainer,
    reference_likelihood,
    references_dataset,
    rewards_of_one_step,
    serve,
    serve_cases,
    serve_texts,
)
from tests.darl.rollouts import CASES, Case, encoded, expected_case
from tests.darl.taught import LESSONS, teach
from tests.trainers.helpers import logged, record_outputs
from trl_diversity.trainers.references import row_key


@pytest.mark.parametrize("debias", [False, True])
def test_plain_and_conversational_prompts_with_the_same_ids_have_the_same_rewards(
    tmp_path, policy_path, tokenizer, debias
):
    rewards = []
    conversations = references_dataset(conversational=True)
    templated = [
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        for prompt in conversations["prompt"]
    ]
    for data in (conversations, Dataset.from_dict({"prompt": templated, "answer": list(conversations["answer"])})):
        trainer = make_trainer(
            tmp_path,
            policy_path,
            train_dataset=data,
            per_device_train_batch_size=16,
            shuffle_dataset=False,
            debias=debias,
        )
        serve_cases(trainer)
        rewards.append(rewards_of_one_step(trainer))
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-6)
    assert len(set(rewards[0])) > 5


def test_conversational_prompts_are_scored_as_the_oracle_says(tmp_path, policy_path, policy, tokenizer):
    """The prefix holds all ids of the templated prompt (the case FC-107)."""
    data = references_dataset(conversational=True)
    trainer = make_trainer(
        tmp_path, policy_path, train_dataset=data, per_device_train_batch_size=16, shuffle_dataset=False
    )
    serve_cases(trainer)
    expected = []
    for prompt, group in CASES.items():
        ids = tokenizer(f"<|user|>{prompt}<|end|><|assistant|>", add_special_tokens=False)["input_ids"]
        expected += [expected_case(case, ids, policy, tokenizer).reward for case in group]
    assert rewards_of_one_step(trainer) == pytest.approx(expected, abs=1e-5)
    assert [len(ids) for ids in trainer._sampled_ids[0]] == [3 + len("p0")] * 16


def test_conversations_and_plain_texts_in_one_run(tmp_path, policy_path, policy, tokenizer):
    """The baseline of the train set and that of another kind of evaluation set."""
    trainer = make_trainer(
        tmp_path,
        policy_path,
        train_dataset=references_dataset(conversational=True),
        trainer={"eval_dataset": references_dataset()},
        debias=True,
        per_device_eval_batch_size=4,
    )
    serve_texts(trainer, ANSWERED)
    trainer.train()
    trainer.evaluate()
    assert len(trainer.darl_state.baseline) == 8
    expected = reference_likelihood(policy, tokenizer, tokenizer("p1")["input_ids"], "<answer>", "Paris")
    assert trainer.darl_state.baseline[row_key("p1", "Paris")] == pytest.approx(expected, abs=1e-5)
    assert logged(trainer, "eval_darl/reference_prob")


def test_a_prompt_that_opens_the_thinking(tmp_path, policy_path, policy):
    """The case FC-036: the opening tag counts for the format, once, and the reference follows the answer's tag."""
    tokenizer = AutoTokenizer.from_pretrained(policy_path)
    tokenizer.chat_template = tokenizer.chat_template.replace("<|assistant|>", "<|assistant|><think>\n")
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": "p0"}]], "answer": ["4"]})
    trainer = make_trainer(
        tmp_path,
        policy_path,
        train_dataset=data,
        trainer={"processing_class": tokenizer},
        log_completions=True,
        num_completions_to_print=0,
        debias=True,
        delta_weight=0.0,
    )
    well_formed = "2 plus 2 is 4.\n</think>\n<answer>4</answer>"
    serve_texts(trainer, {"p0": [well_formed, "<think>" + well_formed, "no end", well_formed]})
    rewards = rewards_of_one_step(trainer)
    prompt_ids = tokenizer("<|user|>p0<|end|><|assistant|><think>\n", add_special_tokens=False)["input_ids"]
    likelihood = reference_likelihood(policy, tokenizer, prompt_ids, "2 plus 2 is 4.\n</think>\n<answer>", "4")
    # Without reasoning, the thinking that the prompt has opened is closed first.
    baseline = reference_likelihood(policy, tokenizer, prompt_ids, "</think>\n\n<answer>", "4")
    expected = 0.9 * max(likelihood - baseline, 0.0) + 0.1
    assert [rewards[0], rewards[3]] == pytest.approx([expected] * 2, abs=1e-5)
    assert list(trainer.darl_state.baseline.values()) == pytest.approx([baseline], abs=1e-5)
    assert rewards[2] == 0  # malformed, and no format
    assert logged(trainer, "darl/format_score") == [0.5]  # two opening tags are no format
    assert logged(trainer, "darl/malformed_fraction") == [0.25]


def test_tags_that_are_special_tokens(tmp_path, policy_path, policy, tokenizer):
    """The case FC-034: TRL decodes without special tokens, the answer is found all the same."""
    path = tiny.save_tiny_causal_lm(tmp_path / "tagged", words=("<answer>", "</answer>"))
    special = AutoTokenizer.from_pretrained(path)
    special.add_special_tokens({"additional_special_tokens": ["<answer>", "</answer>"]})
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with tiny.seeded(0):
        teach(model, special, LESSONS)
    trainer = make_trainer(
        tmp_path,
        model,
        train_dataset=references_dataset(["p2"]),
        trainer={"processing_class": special},
        log_completions=True,
        num_completions_to_print=0,
        format_style="r1_nothink",
        delta_weight=0.0,
    )
    before = model.eval()
    prompt_ids = special("p2")["input_ids"]
    expected = 0.9 * reference_likelihood(before, special, prompt_ids, "ok <answer>", "7") + 0.1
    serve_texts(trainer, {"p2": ["ok <answer>7</answer>", "ok 7"] * 2})
    outputs = record_outputs(trainer)
    trainer.train()
    assert outputs[0]["completions"][0] == "ok 7"  # what reward functions see
    assert outputs[0]["rewards_per_func"][:, -1].tolist() == pytest.approx([expected, 0.0] * 2, abs=1e-5)


def test_a_model_that_does_not_think(tmp_path, policy_path, policy, tokenizer):
    """The case FC-037: only the format reward asks for a think block, and only with the style `"r1"`."""
    data = Dataset.from_dict({"prompt": ["p0"], "answer": ["olleh"]})
    rewards = {}
    for style in ("r1", "r1_nothink"):
        trainer = make_trainer(tmp_path, policy_path, train_dataset=data, format_style=style)
        serve_texts(trainer, {"p0": ["<answer>olleh</answer>"]})
        rewards[style] = rewards_of_one_step(trainer)
    likelihood = reference_likelihood(policy, tokenizer, tokenizer("p0")["input_ids"], "<answer>", "olleh")
    assert rewards["r1"] == pytest.approx([0.9 * likelihood] * 4, abs=1e-5)
    assert rewards["r1_nothink"] == pytest.approx([0.9 * likelihood + 0.1] * 4, abs=1e-5)


def test_reference_column(tmp_path, policy_path, policy, tokenizer):
    data = Dataset.from_dict({"prompt": ["p0"], "answer": ["Paris"], "gold": ["42"]})
    trainer = make_trainer(tmp_path, policy_path, train_dataset=data, reference_column="gold", format_weight=0.0)
    serve_texts(trainer, {"p0": ["<answer>42</answer>"]})
    likelihood = reference_likelihood(policy, tokenizer, tokenizer("p0")["input_ids"], "<answer>", "42")
    assert rewards_of_one_step(trainer) == pytest.approx([likelihood] * 4, abs=1e-5)


def test_tags_in_the_prompt_and_an_end_that_is_written_out(tmp_path, policy_path, policy, tokenizer):
    """The case FC-101: nothing is found in the prompt's own example, and the closing tag may be missing."""
    prompt = "2+5? Like <think>1+1</think><answer>2</answer>"
    data = Dataset.from_dict({"prompt": [prompt], "answer": ["7"]})
    trainer = make_trainer(
        tmp_path,
        policy_path,
        train_dataset=data,
        format_weight=0.0,
        delta_weight=0.0,
        log_completions=True,
        num_completions_to_print=0,
    )
    texts = ["<think>never ends ...", "<think>x</think><answer>7", "<think>x</think><answer>7<|endoftext|>", "7"]
    serve_texts(trainer, {prompt: texts})
    likelihood = reference_likelihood(
        policy, tokenizer, tokenizer(prompt)["input_ids"], "<think>x</think><answer>", "7"
    )
    assert rewards_of_one_step(trainer) == pytest.approx([0.0, likelihood, likelihood, 0.0], abs=1e-5)
    assert list(trainer._logs["extra"]["malformed"]) == ["truncated", None, None, "no_tag"]
    assert list(trainer._logs["extra"]["answer"]) == ["", "7", "7", ""]


# Length


@pytest.mark.parametrize("debias", [False, True])
def test_a_reference_that_is_longer_than_the_room_left(tmp_path, policy, tokenizer, policy_path, debias):
    """It is malformed, not cut: with one token more in the reasoning there is one too few for it."""
    model = AutoModelForCausalLM.from_pretrained(policy_path, dtype=torch.float32)
    model.config.max_position_embeddings = 40
    room = 39 - len("p0") - len("<think>") - len("</think><answer>")
    data = Dataset.from_dict({"prompt": ["p0", "p1"], "answer": ["abcde", "x" * 30]})
    trainer = make_trainer(
        tmp_path,
        model,
        train_dataset=data,
        per_device_train_batch_size=4,
        num_generations=2,
        log_completions=True,
        num_completions_to_print=0,
        shuffle_dataset=False,
        debias=debias,
        delta_weight=0.0,
        format_weight=0.0,
    )
    thoughts = ["y" * (room - 5), "y" * (room - 4)]
    serve_texts(trainer, {p: [f"<think>{t}</think><answer>7" for t in thoughts] for p in ("p0", "p1")})
    rewards = rewards_of_one_step(trainer)
    ids = tokenizer("p0")["input_ids"]
    fits = reference_likelihood(policy, tokenizer, ids, f"<think>{thoughts[0]}</think><answer>", "abcde")
    baseline = reference_likelihood(policy, tokenizer, ids, "<answer>", "abcde") if debias else 0.0
    assert rewards == pytest.approx([max(fits - baseline, 0.0), 0.0, 0.0, 0.0], abs=1e-5)
    assert list(trainer._logs["extra"]["malformed"]) == [None, "too_long", "too_long", "too_long"]
    # The second reference does not even fit without any reasoning
    assert trainer.darl_state.baseline == ({} if not debias else {
        row_key("p0", "abcde"): pytest.approx(baseline, abs=1e-5), row_key("p1", "x" * 30): 0.0
    })  # fmt: skip


def test_case_ids_are_those_that_are_sampled(tmp_path, policy_path):
    """The prefix of a completion is scored as it was sampled, also where encoding its text would give other ids."""
    tokenizer = AutoTokenizer.from_pretrained(policy_path)
    trainer = make_trainer(tmp_path, policy_path, train_dataset=references_dataset(["p0"]))
    spelled = [*encoded(["<think>", " ", "4", "2", "</think><answer>", "7"], tokenizer), tokenizer.eos_token_id]
    merged = [*encoded(["<think>", " 42", "</think><answer>", "7"], tokenizer), tokenizer.eos_token_id]
    assert tokenizer.decode(spelled) == tokenizer.decode(merged) and spelled != merged
    serve(trainer, {"p0": [spelled, merged]})
    policy = AutoModelForCausalLM.from_pretrained(policy_path, dtype=torch.float32).eval()
    expected = [
        expected_case(Case(before, ["7"], [], "7", ("4", "2")), tokenizer("p0")["input_ids"], policy, tokenizer).reward
        for before in (["<think>", " ", "4", "2", "</think><answer>"], ["<think>", " 42", "</think><answer>"])
    ]
    assert abs(expected[0] - expected[1]) > 1e-4
    assert rewards_of_one_step(trainer) == pytest.approx(expected * 2, abs=1e-5)
