# SPDX-License-Identifier: Apache-2.0
"""Likelihoods from a server: the same as the policy's own, and never made up. A stand-in serves a tiny model."""

import asyncio
import json
import logging
import math
import subprocess
import sys
import time
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest

from tests.likelihood.scoring import assert_close, assert_scores, policy, rows
from tests.likelihood.vllm_double import NAME, VllmDouble, error, serving
from trl_diversity.likelihood import PolicyScorer, Scorer, ScoringRow, ServerScorer


@pytest.fixture(scope="module")
def model() -> Any:
    return policy().eval()


@pytest.fixture
def server(model, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(model) as double:
        yield double


def scorer_for(*servers: VllmDouble, **kwargs: Any) -> ServerScorer:
    return ServerScorer([double.url for double in servers], **{"back_off": 0.01, "timeout": 20.0, **kwargs})


def is_nan(probabilities: Any) -> bool:
    return len(probabilities) > 0 and all(math.isnan(value) for value in probabilities)


def holds(body: dict[str, Any], row: ScoringRow, name: str) -> bool:
    return [*row.prefix_ids, *getattr(row, f"{name}_ids")] in body["prompt"]


@pytest.fixture
def closed_port(model):
    with serving(model) as double:
        url = double.url
    return url


def test_equals_the_policys_own_scores(server, model):
    mixed = [
        *rows(),
        replace(rows()[0], answer_ids=()),
        replace(rows()[1], reference_ids=(), reference_lead=0),
        replace(rows()[2], answer_lead=1),
        ScoringRow((5,), (), ()),
    ]
    assert len({len(row.prefix_ids) for row in mixed}) > 5 and any(row.reference_lead for row in mixed)
    scorer = scorer_for(server, rows_per_request=3)
    assert isinstance(scorer, Scorer)
    found = scorer.score(mixed)
    assert_scores(found, model, mixed)
    for ours, other in zip(found, PolicyScorer(model, path="two_pass").score(mixed), strict=True):
        assert_close(ours.answer, other.answer)
        assert_close(ours.reference, other.reference)
        assert ours.malformed is None
    assert len(server.bodies) == 7


def test_one_choice_for_each_prompt_by_its_index(server, model):
    orders = []
    server.change = lambda choices, body: orders.append([choice["index"] for choice in choices])
    assert_scores(scorer_for(server).score(rows()), model, rows())
    assert all(order != sorted(order) for order in orders)


def test_sampling_parameters_are_neutral(server):  # FC-087
    scorer_for(server).score(rows()[:2])
    (body,) = server.bodies
    assert len(body.pop("prompt")) == 4
    assert body == {
        "model": NAME,
        "max_tokens": 1,
        "prompt_logprobs": 0,
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }


def test_no_rows_ask_nothing(closed_port):
    assert ServerScorer(closed_port).score([]) == []


def test_works_below_a_running_event_loop(server, model):
    async def run():
        return scorer_for(server).score(rows()[:3])

    assert_scores(asyncio.run(run()), model, rows()[:3])


def test_two_servers_share_the_load(server, model):
    with serving(model) as second:
        assert_scores(scorer_for(server, second, rows_per_request=2).score(rows()), model, rows())
        assert len(server.bodies) == len(second.bodies) == 4


@pytest.mark.parametrize("bound", [1, 3])
def test_requests_run_side_by_side_within_the_bound(server, model, bound):
    server.reply_to = lambda body: time.sleep(0.2)
    assert_scores(scorer_for(server, max_concurrency=bound, rows_per_request=2).score(rows()), model, rows())
    assert len(server.bodies) == 8
    assert min(bound, 2) <= server.most_running <= bound  # a busy machine may start the third late


def test_the_other_server_takes_over(server, model, closed_port):
    scorer = ServerScorer([closed_port, server.url], back_off=0.01, rows_per_request=4)
    assert_scores(scorer.score(rows()), model, rows())
    assert len(server.bodies) == 4


@pytest.mark.parametrize("known", [{}, {"model": NAME, "max_length": 500}])
def test_servers_that_are_down(closed_port, known):
    unreachable = closed_port.replace("http://", "http://me:s3cret@")
    start = time.monotonic()
    with pytest.raises(ConnectionError) as caught:
        ServerScorer([unreachable, "http://127.0.0.1:9"], retries=2, back_off=0.01, **known).score(rows())
    assert time.monotonic() - start < 30
    message = str(caught.value)
    assert message.count("Connection refused") == 2
    assert f"{closed_port}: ConnectError" in message and "http://127.0.0.1:9: ConnectError" in message
    assert "s3cret" not in message and "me:" not in message


def test_a_server_that_does_not_answer_in_time(server):
    server.reply_to = lambda body: time.sleep(4)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=f"{server.url}: ReadTimeout"):
        scorer_for(server, model=NAME, max_length=500, timeout=1.0, retries=1).score(rows()[:1])
    assert time.monotonic() - start < 30
    assert 1 <= len(server.bodies) <= 2


@pytest.mark.parametrize("status", [429, 500, 503])
def test_trouble_that_passes(server, model, status):
    server.reply_to = lambda body: (status, error(status, "later")) if len(server.bodies) < 3 else None
    assert_scores(scorer_for(server).score(rows()[:2]), model, rows()[:2])
    assert len(server.bodies) == 3
    assert len({json.dumps(body) for body in server.bodies}) == 1


def test_trouble_that_stays(server):
    server.reply_to = lambda body: (503, error(503, "no capacity"))
    with pytest.raises(ConnectionError, match=f"{server.url}: HTTP 503 .*no capacity"):
        scorer_for(server, retries=2).score(rows()[:2])
    assert len(server.bodies) == 3


# FC-086: the server fails on a log-probability that is not finite.
@pytest.mark.parametrize("names", [("answer",), ("answer", "reference")])
def test_a_row_on_which_the_server_fails_is_nan_alone(server, model, names, caplog):
    bad = rows()[5]
    server.reply_to = lambda body: (
        (500, error(500, "Out of range float values are not JSON compliant: nan"))
        if any(holds(body, bad, name) for name in names)
        else None
    )
    with caplog.at_level(logging.WARNING, "trl_diversity"):
        found = scorer_for(server, retries=2, rows_per_request=4).score(rows())
    assert is_nan(found[5].answer) and len(found[5].answer) == len(bad.answer_ids)
    assert is_nan(found[5].reference) == ("reference" in names)
    others = [place for place in range(16) if place != 5]
    assert_scores([found[place] for place in others], model, [rows()[place] for place in others])
    assert found[5].malformed is None
    assert len(server.bodies) == 4 + 2 + 8  # two more tries of one request, then its texts one by one
    assert "not JSON compliant" in caplog.text


def test_a_failing_text_that_was_asked_alone(server):
    server.reply_to = lambda body: (500, error(500, "nan"))
    found = scorer_for(server, retries=2).score([replace(rows()[0], reference_ids=(), reference_lead=0)])
    assert is_nan(found[0].answer) and found[0].reference == ()
    assert len(server.bodies) == 3


def test_a_server_that_dies_while_texts_are_asked_one_by_one_is_an_error(server):
    server.reply_to = lambda body: (500, "nan") if len(body["prompt"]) > 1 else (502, "gone")
    with pytest.raises(ConnectionError, match="HTTP 502 gone"):
        scorer_for(server, retries=1).score(rows()[:2])


def spoil_number(entry):
    return {token: {**fields, "logprob": math.nan} for token, fields in entry.items()}


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_number,
        lambda entry: {token: {**fields, "logprob": -math.inf} for token, fields in entry.items()},
        lambda entry: {token: {**fields, "logprob": None} for token, fields in entry.items()},
        lambda entry: None,
        lambda entry: {"99999": {"logprob": -1.0, "rank": 1, "decoded_token": "x"}},
    ],
    ids=["NaN", "-inf", "null", "no entry", "another token only"],
)
def test_a_value_that_is_missing_or_not_finite_makes_its_text_nan(server, model, spoil):
    bad = rows()[3]

    def change(choices, body):
        place = body["prompt"].index([*bad.prefix_ids, *bad.answer_ids])
        values = next(choice for choice in choices if choice["index"] == place)["prompt_logprobs"]
        values[-1] = spoil(values[-1])

    server.change = change
    found = scorer_for(server).score(rows()[:6])
    assert is_nan(found[3].answer)
    found[3] = replace(found[3], answer=PolicyScorer(model).score([bad])[0].answer)
    assert_scores(found, model, rows()[:6])


def test_what_is_not_scored_may_be_missing(server, model):
    def change(choices, body):
        for choice in choices:
            length = min(len(row.prefix_ids) for row in rows())
            choice["prompt_logprobs"][:length] = [None] * length

    server.change = change
    assert_scores(scorer_for(server).score(rows()), model, rows())


def drop_logprobs(choices, body):
    for choice in choices:
        del choice["prompt_logprobs"]


def shorten(choices, body):
    choices[0]["prompt_logprobs"].pop()


def raw_logits(choices, body):
    for entry in choices[0]["prompt_logprobs"][1:]:
        next(iter(entry.values()))["logprob"] = 7.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_logprobs, "without `prompt_logprobs`; a vLLM server is needed"),
        (shorten, "did not reply with one value for each of"),
        (raw_logits, "gives 7.5 as a log-probability, which is above 0"),
        (lambda choices, body: choices.pop(), "did not reply with one choice for each of 4 prompts"),
        (lambda choices, body: choices[0].update(index=9), "did not reply with one choice for each of 4 prompts"),
    ],
)
def test_replies_of_another_form_are_refused(server, change, message):
    server.change = change
    with pytest.raises(ValueError, match=message):
        scorer_for(server).score(rows()[:2])


def test_what_the_server_refuses_is_an_error_at_once(server):
    with pytest.raises(
        ValueError, match=f"{server.url} refused POST /v1/completions: HTTP 404 .*`wrong` does not exist"
    ):
        scorer_for(server, model="wrong", max_length=500).score(rows()[:1])


def test_what_is_no_json_is_asked_again(server, model):
    server.reply_to = lambda body: (200, "<html>") if len(server.bodies) == 1 else None
    assert_scores(scorer_for(server).score(rows()[:1]), model, rows()[:1])
    server.reply_to = lambda body: (200, "<html>")
    with pytest.raises(ConnectionError, match=f"{server.url}: replied with no JSON: '<html>'"):
        scorer_for(server).score(rows()[:1])


def test_rows_that_do_not_fit_are_not_sent(server, model):
    lengths = [len(row.prefix_ids) + max(len(row.answer_ids), len(row.reference_ids)) for row in rows()]
    limit = sorted(lengths)[8]
    server.models[0]["max_model_len"] = limit + 1  # one token is generated
    for known in ({}, {"model": NAME}, {"max_length": 500}, {"model": NAME, "max_length": limit}):
        found = scorer_for(server, **known).score(rows())
        assert [score.malformed for score in found] == [None if n <= limit else "too_long" for n in lengths]
        assert all(score.answer == score.reference == () for score in found if score.malformed)
        short = [place for place, n in enumerate(lengths) if n <= limit]
        assert_scores([found[place] for place in short], model, [rows()[place] for place in short])
    assert max(len(ids) for body in server.bodies for ids in body["prompt"]) == limit


def test_the_limit_of_ones_own_may_be_shorter(server):
    scores = scorer_for(server, max_length=10).score([ScoringRow((5,) * 9, (6,), (7,)), ScoringRow((5,) * 9, (6, 7))])
    assert [score.malformed for score in scores] == [None, "too_long"]


def test_only_rows_that_do_not_fit_ask_for_no_scores(server):
    assert scorer_for(server, max_length=3).score([ScoringRow((5,) * 9, (6,))])[0].malformed == "too_long"
    assert server.bodies == []


def test_the_model_among_several(server, model):
    adapter = {"id": "adapter", "root": "/a", "parent": NAME, "max_model_len": None}
    alias = {**server.models[0], "id": "alias"}
    server.models += [adapter, alias]
    scorer_for(server).score(rows()[:1])
    scorer = scorer_for(server, model="adapter")
    scorer.score(rows()[:1])
    assert [body["model"] for body in server.bodies] == [NAME, "adapter"]
    assert scorer.max_length == 511
    server.models.append({"id": "other", "root": "/o", "parent": None, "max_model_len": 9})
    with pytest.raises(ValueError, match=f"serves {NAME}, adapter, alias, other; give the `model`"):
        scorer_for(server).score(rows()[:1])
    with pytest.raises(ValueError, match="serves policy, .*give the `model`"):
        scorer_for(server, model="wrong").score(rows()[:1])


def test_user_and_password_are_sent_and_not_shown(server, caplog):
    with caplog.at_level(logging.DEBUG):
        scorer = ServerScorer(server.url.replace("http://", "http://me:s3%40cret@") + "/v1/", headers={"X-Run": "7"})
        scorer.score(rows()[:1])
    assert server.headers[0]["Authorization"] == "Basic " + b64encode(b"me:s3@cret").decode()
    assert server.headers[0]["X-Run"] == "7"
    assert scorer.urls == [server.url]
    assert "cret" not in caplog.text and server.url in caplog.text
    server.reply_to = lambda body: (401, "no")
    with pytest.raises(ValueError, match=f"at {server.url} refused") as caught:
        scorer.score(rows()[:1])
    assert "cret" not in str(caught.value)


def test_closed_connections_open_again(server, model):
    scorer = scorer_for(server)
    for _ in range(2):
        assert_scores(scorer.score(rows()[:1]), model, rows()[:1])
        scorer.close()


def test_a_row_without_prefix_is_refused(server):
    with pytest.raises(ValueError, match="row 1 has no prefix_ids"):
        scorer_for(server).score([rows()[0], ScoringRow((), (5,))])
    assert server.bodies == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"urls": []}, "urls is empty"),
        ({"urls": "localhost:8000"}, "the URL 'localhost:8000' is not complete"),
        ({"urls": ["http://me:s3cret@h:port"]}, "the URL 'h:port' is not complete"),
        ({"max_concurrency": 0}, "max_concurrency=0; expected at least 1"),
        ({"rows_per_request": 0}, "rows_per_request=0; expected at least 1"),
        ({"max_length": 0}, "max_length=0; expected at least 1"),
        ({"timeout": 0.0}, "timeout=0.0; expected"),
        ({"retries": -1}, "retries=-1; expected at least 0"),
        ({"back_off": -1.0}, "back_off=-1.0; expected"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        ServerScorer(**{"urls": "http://localhost:8000", **arguments})
    assert "s3cret" not in str(caught.value)


def test_importing_it_imports_no_client_and_no_torch():
    code = (
        "import sys, trl_diversity.likelihood.server_scorer as module\n"
        "module.ServerScorer('http://localhost:8000')\n"
        "assert not {'torch', 'httpx', 'tenacity', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
