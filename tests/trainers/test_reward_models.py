# SPDX-License-Identifier: Apache-2.0
"""Reward models as quality: text goes through their own tokenizer, and their failures are told by name."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests import tiny
from tests.trainers.helpers import FixedDiversity, fix_completions, make_trainer, prompts_dataset, record_outputs


TEXTS = ["Paris", "paris", "Rome", "a longer answer"]


@pytest.fixture(scope="module")
def word_reward_path(tmp_path_factory):
    """A reward model of another family, whose vocabulary has nothing to do with the policy's."""
    return tiny.save_tiny_pair_classifier(tmp_path_factory.mktemp("word_reward"), num_labels=1, seed=9)


def loaded(path):
    return AutoModelForSequenceClassification.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def score_directly(path, text):
    model, tokenizer = loaded(path)
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits[0, 0].item()


def columns(tmp_path, policy, reward_funcs, conversational=False, texts=TEXTS, **settings):
    trainer = make_trainer(
        tmp_path,
        policy,
        reward_funcs,
        train_dataset=prompts_dataset(1, conversational),
        quality_shift="none",
        allow_negative_quality=True,
        **settings,
    )
    fix_completions(trainer, {"p0": texts})
    outputs = record_outputs(trainer)
    trainer.train()
    return outputs[0]["rewards_per_func"].clone()


@pytest.mark.parametrize("form", ["path", "module"])
def test_a_reward_model_with_another_vocabulary(tmp_path, causal_lm_path, word_reward_path, form):
    """FC-022: its score is that of the text, not of the policy's token ids."""
    model, tokenizer = loaded(word_reward_path)
    reward = word_reward_path if form == "path" else model
    settings = {} if form == "path" else {"trainer_settings": {"reward_processing_classes": tokenizer}}
    got = columns(tmp_path, causal_lm_path, reward, diversity=FixedDiversity(0.5), **settings)
    expected = [score_directly(word_reward_path, f"p0{text}") for text in TEXTS]
    assert got[:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert got[:, 1].tolist() == pytest.approx([value / 2 for value in expected], abs=1e-5)
    assert len(set(expected)) > 2


def test_two_reward_models_and_one_function(tmp_path, causal_lm_path, word_reward_path, reward_model_path):
    def one(completions, **kwargs):
        return [1.0] * len(completions)

    got = columns(tmp_path, causal_lm_path, [word_reward_path, one, reward_model_path], reward_weights=[1.0, 2.0, 3.0])
    words = [score_directly(word_reward_path, f"p0{text}") for text in TEXTS]
    bytes_ = [score_directly(reward_model_path, f"p0{text}") for text in TEXTS]
    assert got[:, 0].tolist() == pytest.approx(words, abs=1e-5)
    assert got[:, 2].tolist() == pytest.approx(bytes_, abs=1e-5)
    diversity = [2 / 3, 2 / 3, 1.0, 1.0]
    total = [(a + 2 + 3 * b) * div for a, b, div in zip(words, bytes_, diversity, strict=True)]
    assert got[:, 3].tolist() == pytest.approx(total, abs=1e-4)


def test_one_tokenizer_for_two_models_is_refused(tmp_path, causal_lm_path, word_reward_path, reward_model_path):
    """FC-020: the second model must not be dropped silently."""
    tokenizer = AutoTokenizer.from_pretrained(word_reward_path)
    with pytest.raises(ValueError, match=r"reward processing classes \(1\).*\(2\)"):
        make_trainer(
            tmp_path,
            causal_lm_path,
            [word_reward_path, reward_model_path],
            trainer_settings={"reward_processing_classes": tokenizer},
        )


def test_the_answer_is_scored_where_padding_is_the_end_of_a_turn(tmp_path, causal_lm_path, reward_model_path):
    """FC-023: the reward is read at the end of the conversation, not at the first token that also pads."""
    model, tokenizer = loaded(reward_model_path)
    tokenizer.pad_token = "<|end|>"
    settings = {"conversational": True, "trainer_settings": {"reward_processing_classes": tokenizer}}
    texts = ["bad", "good", "good answer, and a long one", "x"]
    got = columns(tmp_path, causal_lm_path, model, texts=texts, diversity=FixedDiversity(), **settings)[:, 0].tolist()
    assert len({round(value, 4) for value in got}) == 4
    expected = [score_directly(reward_model_path, f"<|user|>p0<|end|><|assistant|>{text}") for text in texts]
    assert got == pytest.approx(expected, abs=1e-5)


class Module(nn.Module):
    """A reward model that is no `PreTrainedModel`, as after `torch.compile`."""

    def __init__(self, answer):
        super().__init__()
        self.config, self.answer = SimpleNamespace(_name_or_path="org/my-reward"), answer

    def forward(self, input_ids, attention_mask, **inputs):
        return self.answer(input_ids)


def logits(values):
    return SimpleNamespace(logits=torch.tensor(values))


def fail(input_ids):
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (fail, "out of memory"),
        (lambda ids: logits([[1.0], [2.0]]), "'my-reward' returned 2 rewards, but 4"),
        (lambda ids: logits([[1.0], [float("inf")], [0.0], [0.0]]), "'my-reward' returned inf for row 1"),
        (lambda ids: torch.zeros(4, 1), "logits"),
    ],
)
def test_a_failing_reward_model_stops_the_run_by_name(tmp_path, causal_lm_path, reward_model_path, answer, message):
    tokenizer = AutoTokenizer.from_pretrained(reward_model_path)
    settings = {"trainer_settings": {"reward_processing_classes": tokenizer}}
    with pytest.raises((RuntimeError, ValueError, AttributeError), match=message) as caught:
        columns(tmp_path, causal_lm_path, Module(answer), **settings)
    assert "'my-reward'" in f"{caught.value}{getattr(caught.value, '__notes__', '')}"


def test_not_a_number_counts_as_not_scored(tmp_path, causal_lm_path, reward_model_path):
    tokenizer = AutoTokenizer.from_pretrained(reward_model_path)
    model = Module(lambda ids: logits([[1.0], [float("nan")], [3.0], [4.0]]))
    settings = {"trainer_settings": {"reward_processing_classes": tokenizer}}
    got = columns(tmp_path, causal_lm_path, model, **settings)
    assert got[1].isnan().all()
    assert got[[0, 2, 3], 1].tolist() == pytest.approx([2 / 3, 3.0, 4.0])


def test_a_reward_tokenizer_without_a_chat_template_is_told_by_name(tmp_path, causal_lm_path, word_reward_path):
    model, tokenizer = loaded(word_reward_path)
    settings = {"conversational": True, "trainer_settings": {"reward_processing_classes": tokenizer}}
    with pytest.raises(ValueError, match="chat.template") as caught:
        columns(tmp_path, causal_lm_path, model, **settings)
    assert "Raised by the reward function" in "".join(getattr(caught.value, "__notes__", []))
