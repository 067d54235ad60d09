# SPDX-License-Identifier: Apache-2.0
"""Rewards from servers are the local reward model's logits. Stand-ins serve a tiny one."""

import asyncio
import time

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl.data_utils import apply_chat_template

from tests import tiny
from tests.equivalence.pooling_double import serving_model
from tests.loopback import Answer, closed_url
from tests.trainers.helpers import logged, make_trainer, record_outputs
from trl_diversity.rewards.loading import load_reward_model
from trl_diversity.rewards.remote import RemoteRewardModel, remote_reward_from
from trl_diversity.scripts.reward_functions import resolve_reward_functions


PROMPTS = ["Name an animal.", "x", "", "p" * 80]
COMPLETIONS = ["A cat 😀", "ends in padding<pad><pad>", "ends a turn<|end|>", "q" * 100]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def running(reward_model_path):
    with serving_model(reward_model_path, max_model_len=512) as served:
        yield served


def local_rewards(path, texts):
    """As TRL gets them from a local reward model: one padded batch, the logit of the last token that is no padding."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False)
    with torch.no_grad():
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0].tolist()


def reward_of(loopback, **settings):
    return RemoteRewardModel(loopback.url, **{"timeout": 20.0, "back_off": 0.01, **settings})


@pytest.mark.parametrize("rows_per_request", [1, 3, 32])
def test_equals_the_local_model_on_plain_texts(running, reward_model_path, rows_per_request):
    """Also where a text ends in padding: vLLM reads the last token, transformers the last that is no padding."""
    expected = local_rewards(reward_model_path, [p + c for p, c in zip(PROMPTS, COMPLETIONS, strict=True)])
    reward = reward_of(running[0], rows_per_request=rows_per_request)
    assert asyncio.run(reward(prompts=PROMPTS, completions=COMPLETIONS)) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) == 4 and not all(0 <= value <= 1 for value in expected)


def test_equals_the_local_model_on_messages(running, reward_model_path):
    prompts = [[{"role": "user", "content": text}] for text in PROMPTS]
    completions = [[{"role": "assistant", "content": text}] for text in COMPLETIONS]
    tokenizer = AutoTokenizer.from_pretrained(reward_model_path)
    texts = [
        apply_chat_template({"messages": prompt + completion}, tokenizer)["text"]
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    expected = local_rewards(reward_model_path, texts)
    assert reward_of(running[0]).score(prompts, completions) == pytest.approx(expected, abs=1e-5)


def test_what_is_too_long_is_cut_as_by_the_local_model(running, reward_model_path, caplog):
    """On the left, but for a token that begins texts."""
    texts = ["short", "ab" * 256, "a" + "b" * 512, "<bos>" + "cd" * 300, "e" * 600 + "<pad>"]
    tokenizer = AutoTokenizer.from_pretrained(reward_model_path)
    model = load_reward_model(reward_model_path).eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    expected = []
    for text in texts:
        batch = tokenizer([text], return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            expected.append(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.item())
    metrics = {}
    rewards = reward_of(running[0]).score(texts, [""] * len(texts), metrics.__setitem__)
    assert rewards == pytest.approx(expected, abs=1e-5)
    assert metrics == {"quality/truncated": 3.0}
    assert "3 conversations are longer than the 512 tokens" in caplog.text


def test_a_server_that_gives_probabilities_is_refused(running):
    loopback, double = running
    double.honours_activation = False
    with pytest.raises(ValueError, match="does not tell logits from probabilities"):
        reward_of(loopback)


def test_other_models_are_refused(running, tmp_path):
    loopback, double = running
    with pytest.raises(ValueError, match=f"{loopback.url} serves .*, not 'owner/other-model'"):
        reward_of(loopback, model="owner/other-model")
    with serving_model(tiny.save_tiny_decoder_classifier(tmp_path / "two", num_labels=2)) as (two_labels, _):
        with pytest.raises(ValueError, match="has 2 labels; a reward model has one"):
            reward_of(two_labels)
    double.before = lambda asked: Answer("Not Found", status=404) if asked.path == "/classify" else None
    with pytest.raises(ValueError, match="no reward model there. Start it with `vllm serve MODEL --runner pooling`"):
        reward_of(loopback)


def test_another_server_stands_in_and_all_down_is_an_error(running, reward_model_path):
    loopback, double = running
    with serving_model(reward_model_path, max_model_len=512) as (second, _):
        reward = RemoteRewardModel([loopback.url, second.url], back_off=0.01, retries=1, timeout=5.0)
        expected = reward.score(PROMPTS, COMPLETIONS)
        double.before = lambda asked: Answer("busy", status=503)
        assert reward.score(PROMPTS, COMPLETIONS) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ConnectionError, match=f"no reward server scored .*{loopback.url}: HTTP 503"):
        reward.score(PROMPTS, COMPLETIONS)


def test_it_does_not_block_the_event_loop(running):
    loopback, double = running
    reward = reward_of(loopback)

    def slowly(asked):
        time.sleep(1.0)

    async def both():
        return await asyncio.gather(reward(["a"], ["b"]), reward(["a"], ["c"]))

    double.before = slowly
    started = time.monotonic()
    asyncio.run(both())
    assert time.monotonic() - started < 1.95


def test_named_by_its_address_in_a_configuration(running, reward_model_path):
    url = running[0].url
    (reward,) = resolve_reward_functions([url], max_completion_length=8)
    assert isinstance(reward, RemoteRewardModel) and reward.urls == [url]
    closed = closed_url()
    reward = remote_reward_from(f"{closed}, {url}#{reward_model_path}")
    assert reward.urls == [closed, url] and reward.__name__ == reward_model_path.rpartition("/")[2]
    with pytest.raises(ValueError, match="not 'else/where'"):
        resolve_reward_functions([f"{url}#else/where"], max_completion_length=8)


@pytest.mark.parametrize("conversational", [False, True])
def test_trains_with_the_rewards_of_the_local_model(
    running, tmp_path, causal_lm_path, reward_model_path, conversational
):
    from tests.trainers.helpers import prompts_dataset

    dataset = prompts_dataset(4, conversational)
    outputs = []
    for reward in (reward_of(running[0]), reward_model_path):
        trainer = make_trainer(tmp_path, causal_lm_path, reward, train_dataset=dataset, seed=3)
        recorded = record_outputs(trainer)
        trainer.train()
        outputs.append(recorded[0]["rewards_per_func"])
        name = reward_model_path.rpartition("/")[2]
        assert len(logged(trainer, f"rewards/{name}/mean")) == 1 or isinstance(reward, str)
    assert torch.allclose(outputs[0], outputs[1], atol=1e-4)


def test_a_failing_server_ends_the_step_with_its_cause(running, tmp_path, causal_lm_path):
    loopback, double = running
    trainer = make_trainer(tmp_path, causal_lm_path, reward_of(loopback, retries=0))
    double.before = lambda asked: Answer("gone", status=503)
    with pytest.raises(ConnectionError, match=f"no reward server scored .*{loopback.url}: HTTP 503 gone"):
        trainer.train()
