# SPDX-License-Identifier: Apache-2.0
"""Requests to several servers: the least loaded first, and what happens when some or all of them fail."""

import logging
import threading
import time
from email.utils import formatdate

import pytest

from tests.loopback import Answer, Asked, closed_url, serving
from trl_diversity.server_client import ServerClient
from trl_diversity.server_errors import NoReplyError, RefusedError, UnusableReplyError, retry_after_seconds


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def client_of(*urls, **settings):
    return ServerClient(list(urls), **{"timeout": 5.0, "back_off": 0.01, **settings})


def echo(asked: Asked) -> Answer:
    return Answer({"echo": asked.body})


class Once:
    """Answers in one way the first so many times, then echoes."""

    def __init__(self, answer: Answer, times: int = 1) -> None:
        self.answer, self.left = answer, times

    def __call__(self, asked: Asked) -> Answer:
        self.left -= 1
        return self.answer if self.left >= 0 else echo(asked)


def test_a_request_gets_its_own_answer_and_connections_are_reused():
    with serving(echo) as server:
        client = client_of(server.url, max_concurrency=3)
        answers = client.map(lambda number: client.call("POST", "/x", number), range(30))
        assert answers == [{"echo": number} for number in range(30)]
        for _ in range(3):  # "steps"
            assert client.call("POST", "/x", "again") == {"echo": "again"}
        assert server.connections <= 3 and server.most_running <= 3
        assert client.pop_statistics() == {"server_requests": 33, "server_failures": 0}
        assert client.pop_statistics() == {"server_requests": 0, "server_failures": 0}


def test_the_least_loaded_server_is_asked():
    def slowly(asked):
        return Answer({"echo": asked.body}, delay=0.4)

    with serving(slowly) as slow, serving(echo) as quick:
        client = client_of(slow.url, quick.url, max_concurrency=4)
        client.map(lambda number: client.call("POST", "/x", number), range(40))
        # While the slow one has two, the quick one is always the less loaded: taking turns would give it 20.
        assert len(slow.asked) + len(quick.asked) == 40
        assert len(quick.asked) > 25


@pytest.mark.parametrize(
    "failure",
    [
        Answer("busy", status=429),
        Answer("error", status=500),
        Answer("down", status=503),
        Answer({"echo": "this is cut in the middle"}, sent=0.5),
        Answer("<html>"),
        Answer({"echo": 0}, delay=4.0),
    ],
    ids=["429", "500", "503", "cut", "no JSON", "hangs"],
)
def test_another_server_stands_in(failure):
    with serving(lambda asked: failure) as broken, serving(echo) as whole:
        client = client_of(broken.url, whole.url, timeout=1.5)
        assert client.call("POST", "/x", 7) == {"echo": 7}
        assert broken.asked and whole.asked


@pytest.mark.parametrize("failure", [Answer("busy", status=503), Answer({"echo": 1}, sent=0.4)], ids=["503", "cut"])
def test_a_single_server_is_asked_again(failure):
    with serving(Once(failure, times=2)) as server:
        client = client_of(server.url)
        assert client.call("POST", "/x", 7) == {"echo": 7}
        assert client.pop_statistics() == {"server_requests": 3, "server_failures": 2}


def test_an_answer_that_its_reader_cannot_use_is_asked_for_again():
    def read(reply, url):
        if reply["echo"] != 7:
            raise UnusableReplyError(f"replied with {reply['echo']}")
        return "good"

    with serving(Once(Answer({"echo": 6}))) as server:
        assert client_of(server.url).call("POST", "/x", 7, read=read) == "good"
    with serving(lambda asked: Answer({"echo": 6})) as server:
        with pytest.raises(NoReplyError, match=f"{server.url}: replied with 6"):
            client_of(server.url, retries=1).call("POST", "/x", 7, read=read)
        assert len(server.asked) == 2


def test_a_refusal_is_an_error_at_once():
    with serving(lambda asked: Answer({"error": "no such model"}, status=404)) as server:
        with pytest.raises(RefusedError, match=f"{server.url} refused POST /x: HTTP 404 .*no such model") as caught:
            client_of(server.url).call("POST", "/x", 1)
        assert caught.value.status == 404 and len(server.asked) == 1


@pytest.mark.parametrize("value", ["1", lambda: formatdate(time.time() + 2, usegmt=True)], ids=["seconds", "date"])
def test_retry_after_is_honoured(value):
    """A date has whole seconds: two from now are at least one."""
    header = value if isinstance(value, str) else value()
    with serving(Once(Answer("busy", status=429, headers={"Retry-After": header}))) as server:
        started = time.monotonic()
        assert client_of(server.url).call("POST", "/x", 1) == {"echo": 1}
        assert 0.9 < time.monotonic() - started < 4
    with serving(Once(Answer("busy", status=503, headers={"Retry-After": "60"}))) as busy, serving(echo) as other:
        started = time.monotonic()
        client = client_of(busy.url, other.url)
        for number in range(6):
            assert client.call("POST", "/x", number) == {"echo": number}
        assert time.monotonic() - started < 20 and len(busy.asked) == 1  # left alone from then on


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, 0), ("", 0), ("3", 3), ("-5", 0), ("9999", 60), ("nan", 0), ("soon", 0)]
)
def test_retry_after_in_seconds(header, seconds):
    assert retry_after_seconds(header) == seconds


def test_a_server_that_trickles_is_given_up_in_time():
    with serving(lambda asked: Answer({"echo": "x" * 200}, trickle=0.05)) as server:
        started = time.monotonic()
        with pytest.raises(ConnectionError, match=f"{server.url}: ReadTimeout"):
            client_of(server.url, timeout=0.4, retries=1).call("POST", "/x", 1)
        assert time.monotonic() - started < 5  # 200 bytes would take 10 s


def test_all_down_is_an_error_in_time_that_names_each_url_and_cause():
    closed = closed_url()
    with serving(lambda asked: Answer(delay=9)) as hangs, serving(lambda asked: Answer("no", status=503)) as busy:
        client = client_of(hangs.url, busy.url, closed, timeout=0.5, retries=2, back_off=0.1)
        started = time.monotonic()
        with pytest.raises(ConnectionError) as caught:
            client.call("POST", "/x", 1)
        seconds = time.monotonic() - started
    assert seconds < 3 * 0.5 + 2  # (retries + 1) * timeout, and a little for a busy machine
    message = str(caught.value)
    assert f"{hangs.url}: ReadTimeout" in message and f"{busy.url}: HTTP 503 no" in message
    assert f"{closed}: ConnectError" in message


def test_the_first_failure_ends_the_other_calls():
    """Requests that wait for their next round, and those not yet begun, are given up."""
    closed = closed_url()
    client = client_of(closed, retries=50, back_off=5.0, max_concurrency=4)

    def ask(number):
        if number == 0:
            raise ValueError("broken")
        return client.call("POST", "/x", number)

    started = time.monotonic()
    with pytest.raises(ValueError, match="broken"):
        client.map(ask, range(20))
    assert time.monotonic() - started < 3


def test_a_server_that_goes_and_comes_back_is_told_of_once_and_checked_again(caplog):
    checked = []
    with serving(echo) as steady:
        with serving(echo) as other:
            port = int(other.url.rpartition(":")[2])
            client = client_of(steady.url, other.url, check=lambda url, ask: checked.append(url))
            client.check_all()
            assert checked == [steady.url, other.url]
        with caplog.at_level(logging.WARNING):
            for number in range(8):
                assert client.call("POST", "/x", number) == {"echo": number}
        assert caplog.text.count(f"{other.url} does not answer") == 1 and "the others take over" in caplog.text
        with serving(echo, port=port) as again, serving(lambda asked: Answer("no", status=503)) as _:
            # The steady one comes first as long as the other is thought to be down; once it fails the other is asked
            steady.answer = lambda asked: Answer("no", status=503)
            with caplog.at_level(logging.WARNING):
                assert client.call("POST", "/x", "back") == {"echo": "back"}
            assert again.asked and f"{other.url} answers again" in caplog.text
        assert checked == [steady.url, other.url, other.url]


def test_a_server_that_is_back_shares_the_load_again(monkeypatch):
    """One request in a while tries it, though the other server does not fail."""
    monkeypatch.setattr("trl_diversity.server_client._REST", 0.3)
    with serving(echo) as steady:
        with serving(echo) as other:
            port = int(other.url.rpartition(":")[2])
            client = client_of(steady.url, other.url)
        for number in range(4):
            client.call("POST", "/x", number)
        with serving(echo, port=port) as again:
            time.sleep(0.4)
            for number in range(10):
                assert client.call("POST", "/x", number) == {"echo": number}
            assert len(again.asked) >= 4


def test_a_server_that_fails_its_check_is_never_used():
    def check(url, ask):
        if ask("GET", "/v1/models")["echo"] is None:
            raise ValueError(f"{url} is the wrong one")

    with serving(echo) as server:
        with pytest.raises(ValueError, match="is the wrong one"):
            client_of(server.url, check=check).call("POST", "/x", 1)
        assert server.paths() == ["/v1/models"]


def test_a_broken_answer_to_the_check_is_asked_for_again():
    answers = iter([Answer({"echo": "broken"})])

    def check(url, ask):
        if ask("GET", "/v1/models")["echo"] == "broken":
            raise UnusableReplyError("replied with something broken")

    with serving(lambda asked: next(answers, echo(asked))) as server:
        assert client_of(server.url, check=check).call("POST", "/x", 1) == {"echo": 1}
        assert server.paths() == ["/v1/models", "/v1/models", "/x"]


def test_what_is_secret_is_sent_and_shown_nowhere(caplog):
    def repeats(asked):
        return Answer(f"your key is {asked.headers['Authorization']} and {asked.headers['X-Key']}", status=401)

    with serving(repeats) as server, caplog.at_level(logging.DEBUG):
        client = client_of(server.url, headers={"Authorization": "Bearer s3cret-key", "X-Key": "0ther-key"})
        with pytest.raises(RefusedError) as caught:
            client.call("POST", "/x", 1)
        assert server.asked[0].headers["Authorization"] == "Bearer s3cret-key"
    assert "s3cret" not in str(caught.value) + caplog.text and "0ther" not in str(caught.value) + caplog.text
    client = client_of("http://user:pa55word@127.0.0.1:1", retries=0)
    with pytest.raises(ConnectionError) as failed:
        client.call("POST", "/x", 1)
    assert "pa55word" not in str(failed.value) + repr(client.urls) + repr(vars(client))


def test_calls_from_several_threads_share_a_client():
    with serving(echo) as server:
        client = client_of(server.url)
        results = {}

        def work(name):
            results[name] = client.map(lambda number: client.call("POST", "/x", [name, number]), range(10))

        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {name: [{"echo": [name, number]} for number in range(10)] for name in "abc"}
