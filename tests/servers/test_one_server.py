# SPDX-License-Identifier: Apache-2.0
"""One real vLLM server, started by the command a user starts it with: exact scores, and faults before it survived."""

import itertools
import logging
import random
import signal
import time
from collections import Counter

import pytest

from tests import tiny
from tests.servers.processes import leftovers
from tests.servers.proxy import another_order, changed, cut, fewer, hang, not_a_number, proxied, status, whole
from trl_diversity.equivalence import CrossEncoderEquivalence, ServerEquivalence


WORDS = [*tiny.BERT_WORDS, "zebra", "naïve", "😀", "🎉"]


def mixed_pairs(n, seed=0):
    """Pairs of mixed length, with empty texts, emoji and texts that are too long, no two alike."""
    generator = random.Random(seed)

    def text():
        return " ".join(generator.choices(WORDS, k=int(2 ** generator.uniform(0, 8))))

    long = "the river is blue and green " * 150
    special = [("", "a"), ("a", ""), ("", ""), ("😀", "🎉 😀"), (" ", "it")]
    special += [(long, "no"), ("no", long), (long, long + "not")]
    return [*special, *((f"{text()} {index}", text()) for index in range(n - len(special)))]


@pytest.fixture(scope="module")
def local(classifier_path):
    """The two-label classifier itself, as it would judge in the training process."""
    return CrossEncoderEquivalence(classifier_path)


@pytest.fixture(scope="module")
def pairs(local):
    chosen = mixed_pairs(40, seed=1)
    return chosen, local.score_pairs(chosen)


def judge_at(*urls, **settings):
    return ServerEquivalence(list(urls), **{"timeout": 60.0, "back_off": 0.05, **settings})


def test_the_printed_lines_configure_a_run(command, tmp_path, causal_lm_path):
    from tests.trainers.helpers import fix_completions, logged, make_trainer

    trainer = make_trainer(tmp_path, causal_lm_path, diversity=None, **command.settings)
    fix_completions(trainer, {f"p{index}": ["the cat", "a cat", "no", "blue river"] for index in range(4)})
    trainer.train()
    assert logged(trainer, "diversity/server_pairs")[0] >= 3 and logged(trainer, "diversity/server_failures") == [0.0]


def test_scores_equal_the_local_models_on_200_pairs(command, local, caplog):
    """Two labels here, its equivalent with one label there."""
    asked = mixed_pairs(200)
    server = judge_at(command.url, model=command.settings["partition_model"])
    started = time.monotonic()
    scores = server.score_pairs(asked)
    seconds = time.monotonic() - started
    expected = local.score_pairs(asked)
    difference = max(abs(one - other) for one, other in zip(scores, expected, strict=True))
    print(f"\n200 pairs: largest difference {difference:.1e}, {seconds:.1f} s, {server.pop_statistics()}")
    assert difference < 1e-3
    assert max(expected) - min(expected) > 0.3  # the scores tell something


@pytest.mark.parametrize(
    ("fault", "failures", "least_seconds"),
    [
        (status(429, **{"Retry-After": "1"}), 1, 1.0),
        (status(503, **{"Retry-After": "1"}), 1, 1.0),
        (cut, 1, 0.0),
        (changed(fewer), 1, 0.0),
        (changed(not_a_number), 1, 0.0),
        (changed(another_order), 0, 0.0),  # no failure: the index is honoured
        (hang(60.0), 1, 20.0),
    ],
    ids=["429", "503", "cut in the body", "fewer scores", "NaN", "another order", "hangs"],
)
def test_a_fault_that_passes_costs_time_and_no_score(command, pairs, fault, failures, least_seconds):
    asked, expected = pairs
    left = itertools.count()
    with proxied(command.url) as (loopback, proxy):
        server = judge_at(loopback.url, timeout=20.0)
        server.pop_statistics()
        proxy.fault = lambda asked, answer: fault(asked, answer) if next(left) == 0 else answer
        started = time.monotonic()
        scores = server.score_pairs(asked)
        seconds = time.monotonic() - started
    assert scores == pytest.approx(expected, abs=1e-3)
    assert server.pop_statistics()["server_failures"] == failures
    assert least_seconds <= seconds < 60


def test_a_fault_that_stays_is_an_error_and_no_score(command, pairs):
    causes = {"with the indices": changed(fewer), "RemoteProtocolError": cut, "HTTP 500": status(500)}
    for cause, fault in causes.items():
        with proxied(command.url) as (loopback, proxy):
            server = judge_at(loopback.url, retries=1)
            proxy.fault = fault
            with pytest.raises(ConnectionError, match=f"no server judged .*{loopback.url}: .*{cause}"):
                server.score_pairs(pairs[0])


def test_a_server_that_hangs_is_given_up_in_time(command, pairs):
    with proxied(command.url) as (first, proxy), proxied(command.url) as (second, other_proxy):
        server = judge_at(first.url, second.url, timeout=2.0, retries=2)
        proxy.fault = other_proxy.fault = hang(20.0)
        started = time.monotonic()
        with pytest.raises(ConnectionError) as caught:
            server.score_pairs(pairs[0])
        assert time.monotonic() - started < 3 * 2.0 + 10
    # On a busy machine the time may be up before the second one is asked, which the error then says.
    assert "ReadTimeout" in str(caught.value)
    assert all(f"{one.url}: " in str(caught.value) for one in (first, second))


def test_one_of_two_servers_that_goes_is_stood_in_for(command, pairs, caplog):
    asked, expected = pairs
    with proxied(command.url) as (steady, _):
        with proxied(command.url) as (going, _):
            server = judge_at(steady.url, going.url, pairs_per_request=4)
            assert server.score_pairs(asked) == pytest.approx(expected, abs=1e-3)
            assert "/score" in going.paths()
        with caplog.at_level(logging.WARNING):
            assert server.score_pairs(asked) == pytest.approx(expected, abs=1e-3)
    assert caplog.text.count(f"{going.url} does not answer") == 1 and "the others take over" in caplog.text


def test_a_server_with_another_model_is_refused_at_the_start(command):
    with pytest.raises(ValueError, match=f"{command.url} serves .*one-label.*, not 'owner/another'"):
        judge_at(command.url, model="owner/another")
    renamed = changed(lambda data: data[0].update(id="renamed"))
    other_weights = changed(lambda data: [row.update(score=row["score"] * 0.5) for row in data])
    with proxied(command.url, renamed, paths=("/v1/models",)) as (other, _):
        with pytest.raises(ValueError, match=f"serve different models: {command.url} .*{other.url} 'renamed'"):
            judge_at(command.url, other.url)
    with proxied(command.url, other_weights) as (other, _):
        with pytest.raises(ValueError, match="not with the same weights|does not tell logits"):
            judge_at(command.url, other.url)


def test_every_pair_gets_exactly_one_score_while_a_tenth_of_the_requests_fail(command, local):
    """2000 pairs over two addresses; each fault is drawn by chance. Every score is the local one, none is missing."""
    generator = random.Random(0)
    faults = [status(429), status(500), status(503), cut, changed(fewer), changed(not_a_number), hang(40.0)]
    injected: Counter[str] = Counter()

    def sometimes(asked, answer):
        if generator.random() >= 0.1:
            return whole(asked, answer)
        index = generator.randrange(len(faults))
        injected[str(index)] += 1
        return faults[index](asked, answer)

    words = random.Random(1)
    asked = [(f"cat {index} {' '.join(words.choices(WORDS, k=3))}", words.choice(WORDS)) for index in range(2000)]
    expected = local.score_pairs(asked)
    with proxied(command.url) as (first, proxy), proxied(command.url) as (second, other_proxy):
        server = judge_at(first.url, second.url, pairs_per_request=5, timeout=15.0, retries=8, max_concurrency=8)
        server.pop_statistics()
        proxy.fault = other_proxy.fault = sometimes
        started = time.monotonic()
        scores = server.score_pairs(asked)
        seconds = time.monotonic() - started
        statistics = server.pop_statistics()
    print(f"\n2000 pairs: {statistics}, injected {sum(injected.values())}, {seconds:.0f} s")
    assert len(scores) == 2000 and scores == pytest.approx(expected, abs=1e-3)
    assert sum(injected.values()) > 25 and len(injected) == len(faults)
    # A request that hangs fails only if it was the last thing the other side waited for; all others are counted
    assert statistics["server_pairs"] == 2000 and statistics["server_failures"] >= sum(injected.values())
    assert statistics["server_requests"] >= 400 + sum(injected.values())


def test_the_command_leaves_no_process(command):
    """Runs as the last of all: it ends the command."""
    pids = command.process_group()
    assert len(pids) >= 4  # the command, and three processes of vLLM
    assert command.stop(signal.SIGTERM) == 0
    assert leftovers(pids) == []
    assert "All servers have ended." in command.output
