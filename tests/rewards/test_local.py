# SPDX-License-Identifier: Apache-2.0
"""A reward model outside of the trainer gives what TRL gives for it as a module."""

import shutil

import pytest
import torch
from transformers import AutoTokenizer

from tests import tiny
from tests.rewards.test_remote_reward import local_rewards
from tests.trainers.helpers import make_trainer, record_outputs
from trl_diversity.rewards.loading import load_reward_model
from trl_diversity.rewards.local import LocalRewardModel
from trl_diversity.scripts.reward_functions import resolve_reward_functions


PROMPTS = ["Name an animal.", "", "p" * 80, "x"]
COMPLETIONS = ["A cat 😀", "", "q" * 100, "ends in padding<pad><pad>"]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_plain_texts(reward_model_path, batch_size):
    expected = local_rewards(reward_model_path, [p + c for p, c in zip(PROMPTS, COMPLETIONS, strict=True)])
    reward = LocalRewardModel(reward_model_path, device="cpu", batch_size=batch_size)
    assert reward(prompts=PROMPTS, completions=COMPLETIONS, completion_ids=None) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) == 4 and reward([], []) == []


def test_messages_go_through_the_template(reward_model_path):
    reward = LocalRewardModel(reward_model_path, device="cpu")
    found = reward([[{"role": "user", "content": "hello"}]], [[{"role": "assistant", "content": "a longer answer"}]])
    text = "<|user|>hello<|end|><|assistant|>a longer answer<|end|>"
    assert found == pytest.approx(local_rewards(reward_model_path, [text]), abs=1e-5)


def test_arguments_of_the_template_reach_every_kind_of_model(tmp_path, reward_model_path):
    """A trainer gives them to its modules; a model on a device of its own must read the same text."""
    tokenizer = AutoTokenizer.from_pretrained(reward_model_path)
    tokenizer.chat_template = "{{ mood }}" + tokenizer.chat_template
    path = tmp_path / "moody"
    load_reward_model(reward_model_path, dtype="float32").save_pretrained(path)
    tokenizer.save_pretrained(path)
    messages = ([[{"role": "user", "content": "hello"}]], [[{"role": "assistant", "content": "x"}]])
    options = {"max_completion_length": 8, "device": "cpu"}
    (plain,) = resolve_reward_functions([str(path)], **options)
    (moody,) = resolve_reward_functions([str(path)], chat_template_kwargs={"mood": "calm "}, **options)
    text = "<|user|>hello<|end|><|assistant|>x<|end|>"
    assert plain(*messages) == pytest.approx(local_rewards(str(path), [text]), abs=1e-5)
    assert moody(*messages) == pytest.approx(local_rewards(str(path), ["calm " + text]), abs=1e-5)
    assert plain(*messages) != moody(*messages)


@pytest.mark.parametrize("pad_token", [None, "<pad>", "<|end|>"])
def test_a_pad_token_that_moves_the_place_of_the_reward_is_pointed_out(tmp_path, reward_model_path, pad_token, caplog):
    """With the end of a turn as padding the reward is read before it; a model that says so itself was trained so."""
    path = str(shutil.copytree(reward_model_path, tmp_path / "reward"))
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.pad_token = pad_token
    tokenizer.save_pretrained(path)
    LocalRewardModel(path, device="cpu")
    assert ("has no pad token" in caplog.text) is (pad_token is None)


def test_a_trainer_points_out_such_a_pad_token_of_its_modules(tmp_path, causal_lm_path, reward_model_path, caplog):
    path = str(shutil.copytree(reward_model_path, tmp_path / "reward"))
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(path)
    make_trainer(tmp_path / "own", causal_lm_path, reward_funcs=reward_model_path)
    assert "has no pad token" not in caplog.text
    make_trainer(tmp_path / "none", causal_lm_path, reward_funcs=path)
    assert "has no pad token" in caplog.text


def test_a_trainer_gets_the_same_rewards_as_from_the_module(tmp_path, causal_lm_path, reward_model_path):
    """And logs them under the same name."""
    rewards = {
        "module": load_reward_model(reward_model_path, dtype="float32"),
        "local": LocalRewardModel(reward_model_path, device="cpu", dtype="float32", batch_size=2),
    }
    outputs, logs = {}, {}
    for name, reward in rewards.items():
        trainer = make_trainer(tmp_path / name, causal_lm_path, reward_funcs=reward, max_steps=2)
        outputs[name] = record_outputs(trainer)
        trainer.train()
        logs[name] = trainer.state.log_history
    assert len(outputs["module"]) == len(outputs["local"]) == 2
    for module, local in zip(outputs["module"], outputs["local"], strict=True):
        assert module["completions"] == local["completions"]
        assert torch.allclose(module["rewards_per_func"], local["rewards_per_func"], atol=1e-5)
    assert set(logs["module"][0]) == set(logs["local"][0])


def test_its_device_is_its_own(reward_model_path, monkeypatch):
    moved = []
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *args: moved.append(args) or self)
    assert LocalRewardModel(reward_model_path, device="meta").device == torch.device("meta")
    assert moved == [(torch.device("meta"),)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "there is no device 'gpu' here for a reward model"),
        ({"device": "cuda:99"}, "there is no device 'cuda:99' here"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_what_cannot_be_is_an_error_before_anything_is_loaded(options, message):
    with pytest.raises(ValueError, match=message):
        LocalRewardModel("no/such-model", **options)


def test_a_language_model_is_none(causal_lm_path):
    with pytest.raises(ValueError, match="is no reward model"):
        LocalRewardModel(causal_lm_path, device="cpu")


def test_a_device_in_a_recipe_keeps_it_out_of_the_trainer(tmp_path):
    path = tiny.save_tiny_reward_model(tmp_path / "reward")
    options = {"max_completion_length": 8, "dtype": "float32"}
    (module,) = resolve_reward_functions([path], **options)
    (local,) = resolve_reward_functions([path], device="cpu", **options)
    assert isinstance(module, torch.nn.Module) and isinstance(local, LocalRewardModel)
    expected = local_rewards(path, [p + c for p, c in zip(PROMPTS, COMPLETIONS, strict=True)])
    assert local(PROMPTS, COMPLETIONS) == pytest.approx(expected, abs=1e-5)
    assert local.__name__ == "reward" and local.model.dtype == torch.float32
