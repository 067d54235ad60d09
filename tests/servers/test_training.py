# SPDX-License-Identifier: Apache-2.0
"""Training with real servers: one generates, one judges, one rewards. Only the transport of weights is replaced."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.darl.helpers import make_trainer as make_darl_trainer
from tests.servers.proxy import proxied, status
from tests.servers.weight_transport import send_weights_through
from tests.trainers.helpers import fix_completions, length_reward, logged, make_trainer, prompts_dataset, weights
from trl_diversity.likelihood import PolicyScorer, ServerScorer
from trl_diversity.rewards.remote import RemoteRewardModel


pytestmark = pytest.mark.slow

STEPS = 3
LARGEST_DIFFERENCE = 1e-4  # between the log-probability of a sampled token here and on the server
_REPOSITORY = Path(__file__).resolve().parents[2]
# What is learned on the server's own samples, as on the trainer's
ON_SERVER = {
    "use_vllm": True,
    "vllm_mode": "server",
    "vllm_importance_sampling_correction": True,  # for the metric
    "max_steps": STEPS,
    "max_completion_length": 24,
    "per_device_train_batch_size": 8,
}


@pytest.fixture
def sent(tmp_path, policy_path, monkeypatch):
    return send_weights_through(shutil.copytree(policy_path, tmp_path / "weights"), monkeypatch)


def differences(trainer):
    return logged(trainer, "sampling/sampling_logp_difference/max")


def test_darling_with_three_servers(
    tmp_path, policy_path, generation_server, command, reward_server, reward_model_path, sent
):
    trainer = make_trainer(
        tmp_path,
        policy_path,
        RemoteRewardModel(reward_server),
        diversity=None,
        vllm_server_base_url=generation_server,
        **command.settings,
        **ON_SERVER,
    )
    before = weights(trainer)
    trainer.train()
    print(f"\nDarling: log-probabilities differ by {differences(trainer)}")
    assert len(differences(trainer)) == STEPS and max(differences(trainer)) < LARGEST_DIFFERENCE
    assert len(sent) >= STEPS and set(sent) == {len(before)}
    assert all(not torch.equal(value, before[name]) for name, value in weights(trainer).items())
    assert all(pairs > 0 for pairs in logged(trainer, "diversity/server_pairs"))
    assert len(logged(trainer, f"rewards/{os.path.basename(reward_model_path)}/mean")) == STEPS


def test_darl_scores_on_the_server_that_generates(tmp_path, policy_path, generation_server, sent):
    trainer = make_darl_trainer(
        tmp_path,
        policy_path,
        vllm_server_base_url=generation_server,
        score_on_server=True,
        scale_rewards="none",
        **{**ON_SERVER, "max_completion_length": 48, "temperature": 0.7, "learning_rate": 1e-3},
    )
    assert isinstance(trainer.scorer, ServerScorer) and trainer.scorer.urls == [generation_server]
    score, compared = trainer.scorer.score, []

    def compare(rows):
        """The server's weights are the policy's of this step: both give the same probabilities."""
        scores = score(rows)
        for one, other in zip(scores, PolicyScorer(trainer.model).score(rows), strict=True):
            compared.append(max(map(abs, _minus(one.reference, other.reference)), default=0.0))
            compared.append(max(map(abs, _minus(one.answer, other.answer)), default=0.0))
        return scores

    trainer.scorer.score = compare
    before = weights(trainer)
    trainer.train()
    print(f"\nDarl: log-probabilities differ by {differences(trainer)}, likelihoods by up to {max(compared):.1e}")
    assert len(differences(trainer)) == STEPS and max(differences(trainer)) < LARGEST_DIFFERENCE
    assert len(compared) > 2 * STEPS and max(compared) < LARGEST_DIFFERENCE
    assert any(not torch.equal(value, before[name]) for name, value in weights(trainer).items())


def _minus(one, other):
    assert len(one) == len(other)
    return [a - b for a, b in zip(one, other, strict=True)]


def test_another_run_works_after_the_first_was_killed(tmp_path, policy_path, generation_server, command):
    """FC-089: the servers keep nothing of a client that has gone."""
    arguments = [str(tmp_path), policy_path, generation_server, command.url]
    program = [sys.executable, "-m", "tests.servers.server_mode_worker", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"}
    with (tmp_path / "first.log").open("wb") as log:
        first = subprocess.Popen(program, env=environment, cwd=_REPOSITORY, stdout=log, stderr=log)
    try:
        _wait_for(tmp_path / "step2", 200, first)
    finally:
        first.kill()
        first.wait()
    assert not (tmp_path / "done").exists() and first.returncode == -signal.SIGKILL
    started = time.monotonic()
    second = subprocess.run(
        [*program, "3"], env=environment, cwd=_REPOSITORY, capture_output=True, text=True, timeout=200
    )
    assert second.returncode == 0, second.stderr[-3000:]
    assert max(json.loads((tmp_path / "done").read_text())) < LARGEST_DIFFERENCE
    print(f"\nthe second run took {time.monotonic() - started:.0f} s from its start, imports included")


def _wait_for(path, seconds, process):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end and process.poll() is None, (path.parent / "first.log").read_text()[-3000:]
        time.sleep(0.05)


TEXTS = {f"p{index}": ["the cat", "a cat", "no", "blue river"] for index in range(4)}


def run_on(urls, tmp_path, policy, at_step=None, **settings):
    """A run with given completions of which step 3 is preceded by what `at_step` does."""
    trainer = make_trainer(
        tmp_path,
        policy,
        length_reward,
        train_dataset=prompts_dataset(8),
        diversity=None,
        partition_server_urls=urls,
        **{"max_steps": 5, "server_timeout": 20.0, "seed": 1, **settings},
    )
    fix_completions(trainer, {f"p{index}": [f"{text} {index}" for text in TEXTS["p0"]] for index in range(8)})
    calculate, steps = trainer._calculate_rewards, iter(range(100))

    def before_step(*arguments):
        if next(steps) == 2 and at_step is not None:
            at_step()
        return calculate(*arguments)

    trainer._calculate_rewards = before_step
    return trainer


def test_training_goes_on_when_one_of_two_servers_is_killed(tmp_path, causal_lm_path, command, caplog):
    undisturbed = run_on([command.url], tmp_path / "one", causal_lm_path)
    undisturbed.train()
    with proxied(command.url) as (steady, _):
        going = proxied(command.url)
        loopback, _ = going.__enter__()
        disturbed = run_on(
            [steady.url, loopback.url],
            tmp_path / "two",
            causal_lm_path,
            at_step=lambda: going.__exit__(None, None, None),
        )
        with caplog.at_level(logging.WARNING):
            disturbed.train()
        asked = len([path for path in loopback.paths() if path == "/score"])
    assert asked > 2 and f"{loopback.url} does not answer" in caplog.text and "the others take over" in caplog.text
    assert logged(disturbed, "reward") == pytest.approx(logged(undisturbed, "reward"), abs=1e-5)
    assert logged(disturbed, "loss") == pytest.approx(logged(undisturbed, "loss"), abs=1e-4)
    assert len(logged(disturbed, "reward")) == 5


def test_all_down_ends_the_run_and_it_resumes_from_its_checkpoint(tmp_path, causal_lm_path, command):
    saving = {"save_strategy": "steps", "save_steps": 1}
    whole = run_on([command.url], tmp_path / "whole", causal_lm_path, **saving)
    whole.train()
    with proxied(command.url) as (first, proxy), proxied(command.url) as (second, other):

        def go_down():
            proxy.fault = other.fault = status(503)

        settings = {"server_timeout": 2.0, "server_retries": 2, **saving}
        urls = [first.url, second.url]
        broken = run_on(urls, tmp_path / "broken", causal_lm_path, at_step=go_down, **settings)
        started = time.monotonic()
        with pytest.raises(ConnectionError) as caught:
            broken.train()
        assert time.monotonic() - started < 3 * 2.0 + 30
        assert all(f"{url}: HTTP 503" in str(caught.value) for url in urls)
        checkpoints = sorted(path.name for path in (tmp_path / "broken").glob("checkpoint-*"))
        assert checkpoints == ["checkpoint-1", "checkpoint-2"]
    resumed = run_on([command.url], tmp_path / "broken", causal_lm_path, **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / "broken" / "checkpoint-2"))
    assert resumed.state.global_step == 5
    assert logged(resumed, "reward") == pytest.approx(logged(whole, "reward"), abs=1e-5)
    for name, value in weights(resumed).items():
        assert torch.allclose(value, weights(whole)[name], atol=1e-5), name


def test_server_scorer_equals_the_policy(policy_path, generation_server, sent):
    """Rows of prompts and answers of different lengths, and one that does not fit."""
    from transformers import AutoModelForCausalLM

    from trl_diversity.likelihood import ScoringRow

    model = AutoModelForCausalLM.from_pretrained(policy_path, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)

    def ids(n):
        return tuple(torch.randint(6, 262, (n,), generator=generator).tolist())

    _load_weights(model, generation_server)
    rows = [ScoringRow(ids(5 + 3 * n), ids(1 + n % 7), ids(1 + n % 5)) for n in range(24)]
    scorer = ServerScorer(generation_server)
    found = scorer.score([*rows, ScoringRow(ids(510), ids(5), ids(5))])
    assert found[-1].malformed == "too_long"
    for one, other in zip(found, PolicyScorer(model).score(rows), strict=False):
        assert list(one.reference) == pytest.approx(list(other.reference), abs=1e-5)
        assert list(one.answer) == pytest.approx(list(other.answer), abs=1e-5)


def _load_weights(model, url):
    """Give the server the weights of a model, as a step would."""
    from trl.generation.vllm_client import VLLMClient

    VLLMClient(base_url=url).update_named_params(None, model.named_parameters())


def test_a_judge_on_the_same_server_is_asked_and_asked_again(generation_server):
    """A random model follows no format: every verdict is missing twice, and counted."""
    from trl_diversity.equivalence import JudgeEquivalence

    options = {"temperature": 0.0, "max_tokens": 8}
    judge = JudgeEquivalence(
        f"{generation_server}/v1",
        "policy",
        "{first} {second}",
        yes_means="same",
        unparsable="different",
        request_options=options,
    )
    assert judge.score_pairs([("a", "b"), ("c", "d")]) == [0.0, 0.0]
    statistics = judge.pop_statistics()
    assert statistics["unparsable_verdicts"] == statistics["repeated_questions"] == 2
    assert statistics["server_requests"] == 4
    judge.unparsable = "error"
    with pytest.raises(ValueError, match="'policy' at .* gave no verdict"):
        judge.score_pairs([("a", "b")])
    with pytest.raises(ValueError, match="refused POST /v1/chat/completions: HTTP 404"):
        JudgeEquivalence(generation_server, "no-such-model").score_pairs([("a", "b")])
