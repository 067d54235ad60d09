# SPDX-License-Identifier: Apache-2.0
"""The policy's likelihood of its completions equals a forward pass by hand, and changes nothing else."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from tests.trainers.helpers import ExactText, fix_completions, length_reward, logged, make_trainer, record_outputs
from trl_diversity.diversity import GroupDiversity
from trl_diversity.trainers import darling_trainer
from trl_diversity.trainers.logprobs import mean_token_logprobs


class Recorder:
    """A measure that wants likelihoods, and keeps what it was given."""

    name, needs_logprobs = "recorder", True

    def __init__(self):
        self.groups, self.modes = [], []
        self.trainer = None

    def __call__(self, groups):
        self.groups += groups
        self.modes.append(self.trainer.model.training)
        return [GroupDiversity([1.0] * len(group.completions)) for group in groups]


def by_hand(model, prompt, completion, temperature):
    """Mean log-probability of a completion's tokens, one sequence at a time and without padding."""
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].double() / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    positions = range(len(prompt) - 1, len(prompt) + len(completion) - 1)
    values = [logprobs[position, ids[0, position + 1]].item() for position in positions]
    return sum(values) / len(values)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_likelihoods_are_those_of_a_forward_pass_by_hand(tmp_path, causal_lm_path, temperature):
    recorder = Recorder()
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        diversity=recorder,
        temperature=temperature,
        per_device_train_batch_size=8,
    )
    recorder.trainer = trainer
    fix_completions(trainer, {f"p{index}": ["a", "a longer one", "", f"number {index}"] for index in range(4)})
    policy = AutoModelForCausalLM.from_pretrained(causal_lm_path)  # as it is before the first step
    trainer.train()
    assert [len(group.completions) for group in recorder.groups] == [4, 4]
    prompts, completions = trainer._sampled_ids
    assert len({len(ids) for ids in completions}) > 1
    expected = [
        by_hand(policy, prompt, completion, temperature)
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    assert max(expected) < 0
    got = [value for group in recorder.groups for value in group.mean_logprobs]
    assert got == pytest.approx(expected, abs=1e-5)
    assert recorder.modes == [True]  # the policy is back in training mode


def test_likelihoods_of_prompts_of_different_lengths(tmp_path, causal_lm_path):
    recorder = Recorder()
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        diversity=recorder,
        train_dataset=Dataset.from_dict({"prompt": ["a", "a much longer prompt than the other one"]}),
        per_device_train_batch_size=8,
    )
    recorder.trainer = trainer
    policy = AutoModelForCausalLM.from_pretrained(causal_lm_path)
    trainer.train()
    prompts, completions = trainer._sampled_ids
    assert len({len(ids) for ids in prompts}) == 2
    expected = [by_hand(policy, *ids, 1.0) for ids in zip(prompts, completions, strict=True)]
    got = [value for group in recorder.groups for value in group.mean_logprobs]
    assert got == pytest.approx(expected, abs=1e-5)


def test_dropout_is_off_and_evaluation_stays_evaluation(tmp_path, causal_lm_path):
    recorder = Recorder()
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        diversity=recorder,
        trainer_settings={
            "peft_config": LoraConfig(r=2, lora_dropout=0.5, init_lora_weights="gaussian"),
            "eval_dataset": make_trainer(tmp_path, causal_lm_path).train_dataset.select([0]),
        },
        per_device_eval_batch_size=4,
    )
    recorder.trainer = trainer
    with torch.no_grad():  # an adapter that does something, so that dropout would show
        for name, parameter in trainer.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    trainer.evaluate()
    assert recorder.modes == [False]
    once = recorder.groups[-1].mean_logprobs
    prompts, completions = trainer._sampled_ids
    trainer.model.train()
    assert mean_token_logprobs(trainer, prompts, completions) == pytest.approx(once, abs=1e-6)
    assert trainer.model.training


def test_the_reward_is_scaled_by_rank(tmp_path, causal_lm_path):
    trainer = make_trainer(tmp_path, causal_lm_path, diversity_measure="unlikeliness", beta_rank=0.5)
    outputs = record_outputs(trainer)
    policy = AutoModelForCausalLM.from_pretrained(causal_lm_path)
    trainer.train()
    prompts, completions = trainer._sampled_ids
    likelihoods = [by_hand(policy, *ids, 1.0) for ids in zip(prompts, completions, strict=True)]
    ranks = [sorted(likelihoods).index(value) for value in likelihoods]
    assert sorted(ranks) == [0, 1, 2, 3]
    quality = length_reward(outputs[0]["completions"])
    texts = outputs[0]["completions"]
    expected = [
        value * (1 - 0.5 * rank / 4) if text.strip() else 0.0
        for value, rank, text in zip(quality, ranks, texts, strict=True)
    ]
    assert outputs[0]["rewards_per_func"][:, -1].tolist() == pytest.approx(expected, abs=1e-6)
    assert logged(trainer, "diversity/mean")
    assert not logged(trainer, "diversity/clusters_per_group")


def test_no_forward_pass_where_no_measure_asks_for_it(tmp_path, causal_lm_path, monkeypatch):
    calls = []
    monkeypatch.setattr(darling_trainer, "mean_token_logprobs", lambda *args: calls.append(args))
    make_trainer(tmp_path, causal_lm_path, diversity=ExactText()).train()
    assert calls == []
