# SPDX-License-Identifier: Apache-2.0
"""Servers and judges named in the configuration, and the order of work while they are waited for."""

import time

import pytest
import torch

from tests.equivalence.pooling_double import serving_model
from tests.loopback import Answer, closed_url, serving
from tests.trainers.helpers import (
    QUICK,
    ExactText,
    FixedDiversity,
    fix_completions,
    length_reward,
    logged,
    make_trainer,
    record_outputs,
)
from trl_diversity.equivalence import JudgeEquivalence, ServerEquivalence
from trl_diversity.trainers import DarlingConfig


TEXTS = {f"p{index}": ["aa", "ab", "cc", "cd"] for index in range(4)}
SERVERS = {"partition_server_urls": ["http://localhost:1"]}
JUDGE = {"judge_base_url": "http://localhost:1", "judge_model": "m"}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition_server_urls": "http://a:1"}, "is a list of addresses, got the text 'http://a:1'"),
        ({"partition_server_urls": []}, "`partition_server_urls` is empty"),
        ({"partition_server_urls": ["a:1"]}, "`partition_server_urls`: the URL 'a:1' is not complete"),
        ({"partition_server_urls": ["http://me:s3cret@a:port"]}, "the URL 'a:port' is not complete"),
        ({**JUDGE, "judge_base_url": "a:1"}, "`judge_base_url`: the URL 'a:1' is not complete"),
        ({**SERVERS, **JUDGE}, "`partition_server_urls` and `judge_base_url` are both given"),
        ({"judge_base_url": "http://a:1"}, "`judge_base_url` and `judge_model` belong together"),
        ({"judge_model": "m"}, "`judge_base_url` and `judge_model` belong together"),
        ({"judge_prompt": "math"}, "`judge_prompt` has no effect without `judge_base_url`"),
        ({**SERVERS, "judge_unparsable": "different"}, "`judge_unparsable` has no effect without `judge_base_url`"),
        ({**SERVERS, "partition_device": "cpu"}, "`partition_device` has no effect where servers judge"),
        ({**JUDGE, "partition_threshold": 0.3}, "`partition_threshold` has no effect with `judge_base_url`"),
        ({"partition_model": "x", "server_timeout": 5.0}, "`server_timeout` has no effect without"),
        ({**JUDGE, "judge_unparsable": "skip"}, "`judge_unparsable` is 'skip'; accepted are 'error', 'different'"),
        ({**JUDGE, "judge_yes_means": "maybe"}, "`judge_yes_means` is 'maybe'; accepted are 'same', 'different'"),
        ({**SERVERS, "server_timeout": 0.0}, "`server_timeout` is a number of seconds above 0"),
        ({**SERVERS, "server_retries": -1}, "`server_retries` is at least 0; got -1"),
        ({**SERVERS, "server_concurrency": 0}, "`server_concurrency` is at least 1; got 0"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        DarlingConfig("output", **{**QUICK, **settings})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("settings", [SERVERS, JUDGE])
def test_a_model_given_to_the_trainer_contradicts_them(tmp_path, causal_lm_path, settings):
    with pytest.raises(
        ValueError, match="`diversity` was given to the trainer, and the configuration sets `(part|jud)"
    ):
        make_trainer(tmp_path, causal_lm_path, diversity=ExactText(), **settings)
    if settings is JUDGE:
        with pytest.raises(ValueError, match="`diversity='some/model'` was given .* sets `judge_base_url`"):
            make_trainer(tmp_path, causal_lm_path, diversity="some/model", **settings)


@pytest.mark.parametrize("named", ["by the servers", "partition_model", "diversity"])
def test_servers_judge(tmp_path, causal_lm_path, pair_classifier_one_label_path, named):
    path = pair_classifier_one_label_path
    chosen = {"partition_model": {"partition_model": path}, "diversity": {"diversity": path}}.get(named, {})
    settings = {"server_timeout": 7.0, "server_retries": 2, "server_concurrency": 5, "partition_threshold": 0.6}
    with serving_model(path) as (loopback, _):
        extra = {"diversity": None, **chosen}
        trainer = make_trainer(tmp_path, causal_lm_path, partition_server_urls=[loopback.url], **settings, **extra)
        model = trainer.diversity.model
        client = model._servers.client
        assert isinstance(model, ServerEquivalence) and model.threshold == trainer.diversity.threshold == 0.6
        assert (client.timeout, client.retries, client.max_concurrency) == (7.0, 2, 5)
        fix_completions(trainer, TEXTS)
        recorded = record_outputs(trainer)
        trainer.train()
        local = make_trainer(tmp_path, causal_lm_path, partition_model=path, partition_threshold=0.6)
        fix_completions(local, TEXTS)
        expected = record_outputs(local)
        local.train()
    assert torch.allclose(recorded[0]["rewards_per_func"], expected[0]["rewards_per_func"], atol=1e-5)
    assert logged(trainer, "diversity/server_requests")[0] >= 1
    assert logged(trainer, "diversity/server_failures")[0] == 0


@pytest.mark.parametrize("prompt", ["writing", "math"])
def test_a_judge_judges(tmp_path, causal_lm_path, prompt):
    """The judge finds the same those that begin with the same letter, whatever the question calls it."""

    def answer(asked):
        question = asked.body["messages"][-1]["content"]
        tags = ("first", "second")
        first, second = (question.split(f"<{tag}>\n")[1].split(f"\n</{tag}>")[0] for tag in tags)
        is_same, yes_is_same = first[0] == second[0], prompt == "writing"
        verdict = "yes" if is_same == yes_is_same else "no"
        return Answer({"choices": [{"message": {"content": f"So [[{verdict}]]"}}]})

    with serving(answer) as server:
        settings = {"judge_base_url": server.url, "judge_model": "m", "judge_prompt": prompt}
        trainer = make_trainer(tmp_path, causal_lm_path, diversity=None, **settings)
        assert isinstance(trainer.diversity.model, JudgeEquivalence)
        fix_completions(trainer, TEXTS)
        trainer.train()
        assert "p0" in str(server.asked) or "p1" in str(server.asked) or "p2" in str(server.asked)
    assert logged(trainer, "diversity/clusters_per_group") == [2.0]
    assert logged(trainer, "diversity/unparsable_verdicts") == [0.0]


class Waits(ExactText):
    """Waits as long as servers would, and says so."""

    is_remote = True
    seconds = 0.5  # for each of the two rounds in which four texts that all differ are asked about

    def score_pairs(self, pairs, prompts=None):
        time.sleep(self.seconds)
        return [0.0] * len(pairs)


class WaitsInSilence(Waits):
    is_remote = False


class WaitingMeasure(FixedDiversity):
    is_remote = True

    def __call__(self, groups):
        time.sleep(1.0)
        return super().__call__(groups)


def slow_reward(completions, **kwargs):
    time.sleep(1.0)
    return length_reward(completions)


@pytest.mark.parametrize(
    ("diversity", "settings", "overlaps"),
    [
        (Waits(), {}, True),
        (WaitingMeasure(), {}, True),
        (WaitsInSilence(), {}, False),
        (Waits(), {"partition_correct_only": True}, False),
    ],
    ids=["servers", "a measure that waits", "a local model", "diversity waits for quality"],
)
def test_servers_are_waited_for_while_rewards_are_computed(tmp_path, causal_lm_path, diversity, settings, overlaps):
    """1 s of either: together 1 s and what the rest of the step takes, or at least 2 s one after the other."""
    trainer = make_trainer(tmp_path, causal_lm_path, slow_reward, diversity=diversity, **settings)
    fix_completions(trainer, TEXTS)
    seconds = []
    calculate = trainer._calculate_rewards

    def timed(*arguments):
        started = time.monotonic()
        result = calculate(*arguments)
        seconds.append(time.monotonic() - started)
        return result

    trainer._calculate_rewards = timed
    trainer.train()
    assert 1.0 <= seconds[0] and (seconds[0] < 1.95) == overlaps


def test_the_result_does_not_depend_on_the_order_of_work(tmp_path, causal_lm_path):
    rewards = []
    for is_remote in (False, True):
        model = ExactText()
        model.is_remote = is_remote
        trainer = make_trainer(tmp_path, causal_lm_path, diversity=model)
        fix_completions(trainer, {name: ["aa", "AA", "b", "c"] for name in TEXTS})
        recorded = record_outputs(trainer)
        trainer.train()
        rewards.append(recorded[0]["rewards_per_func"])
    assert torch.equal(*rewards)


def test_what_fails_ahead_is_raised_and_a_failing_reward_goes_first(tmp_path, causal_lm_path):
    class Fails(Waits):
        def score_pairs(self, pairs, prompts=None):
            raise ConnectionError("no server judged")

    def failing_reward(completions, **kwargs):
        raise ValueError("the reward fails")

    with pytest.raises(ConnectionError, match="no server judged"):
        make_trainer(tmp_path, causal_lm_path, diversity=Fails()).train()
    started = time.monotonic()
    with pytest.raises(ValueError, match="the reward fails"):
        waits = Waits()
        waits.seconds = 30
        make_trainer(tmp_path, causal_lm_path, failing_reward, diversity=waits).train()
    assert time.monotonic() - started < 20


def test_all_servers_down_ends_training_with_every_url(tmp_path, causal_lm_path, pair_classifier_one_label_path):
    closed = closed_url()
    with serving_model(pair_classifier_one_label_path) as (loopback, double):
        urls = [loopback.url, closed]
        trainer = make_trainer(
            tmp_path,
            causal_lm_path,
            diversity=None,
            partition_server_urls=urls,
            server_timeout=1.0,
            server_retries=0,
        )
        double.before = lambda asked: Answer("gone", status=503)
        with pytest.raises(ConnectionError) as caught:
            trainer.train()
    assert all(url in str(caught.value) for url in urls) and "HTTP 503 gone" in str(caught.value)


def test_addresses_are_saved_without_their_password(tmp_path, causal_lm_path, pair_classifier_one_label_path):
    with serving_model(pair_classifier_one_label_path) as (loopback, _):
        url = loopback.url.replace("http://", "http://me:s3cret@")
        trainer = make_trainer(tmp_path, causal_lm_path, diversity=None, partition_server_urls=[url])
        trainer.save_model(str(tmp_path / "saved"))
    saved = torch.load(tmp_path / "saved" / "training_args.bin", weights_only=False)
    assert saved.partition_server_urls == [loopback.url]
    for path in (tmp_path / "saved").rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path
