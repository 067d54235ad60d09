# SPDX-License-Identifier: Apache-2.0
"""The server that generates scores too. No vLLM is needed: a stand-in serves the policy, and rollouts are given."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.darl.helpers import make_trainer, serve_cases
from tests.darl.rollouts import CASES, expected_case
from tests.likelihood.vllm_double import serving
from tests.trainers.helpers import QUICK, record_outputs
from trl_diversity.likelihood import PolicyScorer, ServerScorer
from trl_diversity.trainers import DarlConfig


SERVER = {"use_vllm": True, "vllm_mode": "server", "score_on_server": True}


def on_server(trainer, **settings):
    """Replace the trainer's scorer by the one that it makes with these settings: TRL would need vLLM for them."""
    for name, value in {**SERVER, **settings}.items():
        setattr(trainer.args, name, value)
    scorer = trainer._make_scorer()
    trainer.args.use_vllm = False
    assert isinstance(scorer, ServerScorer)
    trainer.scorer = scorer
    return scorer


@pytest.mark.parametrize("how", ["base_url", "host and port"])
def test_rewards_come_from_the_server(tmp_path, policy_path, tokenizer, monkeypatch, how):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    other = AutoModelForCausalLM.from_pretrained(policy_path, dtype=torch.float32).eval()
    with torch.no_grad():
        other.lm_head.weight.mul_(0.5)  # so that the trainer's own model would give other rewards
    trainer = make_trainer(tmp_path, policy_path, per_device_train_batch_size=16, shuffle_dataset=False)
    serve_cases(trainer)
    outputs = record_outputs(trainer)
    with serving(other) as server:
        host, port = server.url.removeprefix("http://").split(":")
        address = {"vllm_server_base_url": server.url} if how == "base_url" else {}
        scorer = on_server(trainer, vllm_server_host=host, vllm_server_port=int(port), **address)
        trainer.train()
    expected = [
        expected_case(case, tokenizer(prompt)["input_ids"], other, tokenizer).reward
        for prompt, group in CASES.items()
        for case in group
    ]
    assert outputs[0]["rewards_per_func"][:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert scorer.urls == [server.url] and server.bodies


def test_a_server_that_is_down_stops_training(tmp_path, policy_path):
    trainer = make_trainer(tmp_path, policy_path, per_device_train_batch_size=16)
    assert isinstance(trainer.scorer, PolicyScorer)
    serve_cases(trainer)
    on_server(trainer, vllm_server_base_url="http://me:s3cret@127.0.0.1:9").back_off = 0.01
    with pytest.raises(ConnectionError, match="http://127.0.0.1:9: ConnectError") as caught:
        trainer.train()
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score_on_server": True}, "`score_on_server=True` needs the server of .* got `use_vllm=False`"),
        ({**SERVER, "vllm_mode": "colocate"}, "needs the server of .* `vllm_mode='colocate'`"),
        ({**SERVER, "scorer_model": "x"}, "`scorer_model` has no effect with `score_on_server`"),
        ({**SERVER, "score_path": "fast"}, "`score_path` has no effect with `score_on_server`"),
        ({**SERVER, "score_tokens_per_forward": 10}, "`score_tokens_per_forward` has no effect with"),
    ],
)
def test_settings_that_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        DarlConfig(str(tmp_path), **{**QUICK, **settings})


def test_it_is_refused_together_with_a_scorer(tmp_path, policy_path):
    with pytest.raises(ValueError, match="Both `scorer` and `score_on_server` are given"):
        make_trainer(tmp_path, policy_path, trainer={"scorer": ServerScorer("http://localhost:8000")}, **SERVER)
