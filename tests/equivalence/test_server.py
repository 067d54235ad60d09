# SPDX-License-Identifier: Apache-2.0
"""Probabilities from servers are the local classifier's, and never made up. Stand-ins serve tiny models."""

import json
import logging
import math
import random
import shutil
import time

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from tests import tiny
from tests.equivalence.pooling_double import PoolingDouble, pairs_asked, serving_model
from tests.loopback import Answer, closed_url, serving
from trl_diversity.equivalence import CrossEncoderEquivalence, EquivalenceModel, ServerEquivalence


WORDS = [*tiny.BERT_WORDS, "zebra", "naïve", "😀", "🎉"]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def mixed_pairs(n=40, seed=0):
    """Pairs of texts of 1 to over 128 tokens, the longest cut, and some that are special."""
    generator = random.Random(seed)

    def text():
        return " ".join(generator.choices(WORDS, k=int(2 ** generator.uniform(0, 7))))

    special = [("", "a"), ("a", ""), ("😀", "🎉 😀"), ("the cat [SEP] is", "not"), ("word " * 300, "no " * 300)]
    return [*((text(), text()) for _ in range(n)), *special, ("word " * 300, "no"), ("no", "word " * 300)]


def server_of(*loopbacks, **settings):
    return ServerEquivalence([one.url for one in loopbacks], **{"timeout": 20.0, "back_off": 0.01, **settings})


@pytest.fixture
def one_label(pair_classifier_one_label_path):
    with serving_model(pair_classifier_one_label_path) as running:
        yield running


@pytest.fixture
def decoder(decoder_classifier_path):
    with serving_model(decoder_classifier_path, max_model_len=512) as running:
        yield running


def test_equals_the_local_cross_encoder_through_score(one_label, pair_classifier_one_label_path):
    """BERT reads token types, which /classify would drop; too long texts are cut before they are sent (FC-082)."""
    local = CrossEncoderEquivalence(pair_classifier_one_label_path)
    server = server_of(one_label[0])
    assert isinstance(server, EquivalenceModel) and server.threshold == local.threshold == 0.5
    pairs = mixed_pairs()
    assert server.score_pairs(pairs) == pytest.approx(local.score_pairs(pairs), abs=1e-5)
    statistics = server.pop_statistics()
    assert statistics["truncated_pairs"] == local.pop_statistics()["truncated_pairs"] > 3
    assert statistics["server_pairs"] == len(pairs) and statistics["server_failures"] == 0
    assert set(one_label[0].paths()) == {"/v1/models", "/classify", "/score"}


def test_equals_the_local_cross_encoder_through_classify(decoder, decoder_classifier_path):
    local = CrossEncoderEquivalence(decoder_classifier_path)
    server = server_of(decoder[0])
    pairs = mixed_pairs(12)
    assert server.score_pairs(pairs) == pytest.approx(local.score_pairs(pairs), abs=1e-5)
    assert set(decoder[0].paths()) == {"/v1/models", "/classify"}


def test_one_label_without_token_types_is_asked_by_ids(tmp_path):
    path = tiny.save_tiny_decoder_classifier(tmp_path, num_labels=1)
    with serving_model(path, max_model_len=512) as (loopback, _):
        pairs = mixed_pairs(5)
        expected = CrossEncoderEquivalence(path).score_pairs(pairs)
        assert server_of(loopback).score_pairs(pairs) == pytest.approx(expected, abs=1e-5)


def test_padding_that_the_tokenizer_itself_puts_at_the_end(tmp_path):
    """A decoder's head reads the token before it; a server would read the padding."""
    path = tiny.save_tiny_decoder_classifier(tmp_path, num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.pad_token = "<bos>"
    tokenizer.save_pretrained(path)
    tiny.end_with_padding(path)
    with serving_model(path, max_model_len=512) as (loopback, _):
        pairs = mixed_pairs(5)
        expected = CrossEncoderEquivalence(path).score_pairs(pairs)
        assert server_of(loopback).score_pairs(pairs) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("arguments", [{"both_orders": True}, {"max_side_tokens": 3}])
def test_arguments_that_the_local_model_has_too(one_label, pair_classifier_one_label_path, arguments):
    pairs = mixed_pairs(8)
    expected = CrossEncoderEquivalence(pair_classifier_one_label_path, **arguments).score_pairs(pairs)
    assert server_of(one_label[0], **arguments).score_pairs(pairs) == pytest.approx(expected, abs=1e-5)


def test_the_servers_limit_may_be_the_shorter_one(pair_classifier_one_label_path):
    with serving_model(pair_classifier_one_label_path, max_model_len=20) as (loopback, _):
        local = CrossEncoderEquivalence(pair_classifier_one_label_path)
        local.cross_encoder.max_seq_length = 20
        pairs = [("the cat is blue " * 5, "not a dog " * 2), ("yes", "no")]
        expected = CrossEncoderEquivalence(local.cross_encoder).score_pairs(pairs)
        assert server_of(loopback).score_pairs(pairs) == pytest.approx(expected, abs=1e-5)


def test_threshold_and_temperature_of_the_checkpoint(tmp_path, pair_classifier_one_label_path):
    path = str(shutil.copytree(pair_classifier_one_label_path, tmp_path / "calibrated"))
    config_path = tmp_path / "calibrated" / "config.json"
    config = json.loads(config_path.read_text())
    config["trl_diversity"] = {"threshold": 0.42, "temperature": 2.5}
    config_path.write_text(json.dumps(config))
    pairs = mixed_pairs(5)
    expected = CrossEncoderEquivalence(path).score_pairs(pairs)
    with serving_model(path) as (loopback, _):
        server = server_of(loopback)
        assert server.threshold == 0.42 and server.score_pairs(pairs) == pytest.approx(expected, abs=1e-5)
        assert server_of(loopback, threshold=0.9).threshold == 0.9


def test_equal_pairs_are_asked_once_and_many_in_a_request(one_label):
    server = server_of(one_label[0], pairs_per_request=4)
    before = len(pairs_asked(one_label[0]))
    server.pop_statistics()
    pairs = [("a", "b"), ("the cat", "a dog"), ("a", "b"), ("b", "a"), *[(f"yes {n}", "no") for n in range(6)]]
    scores = server.score_pairs(pairs)
    asked = pairs_asked(one_label[0])[before:]
    assert len(asked) == len(set(asked)) == 9 and set(asked) == set(pairs)
    assert scores[0] == scores[2] != scores[3]
    assert server.pop_statistics()["server_requests"] == 3
    assert server.score_pairs([]) == []


def test_two_servers_share_the_pairs(one_label, pair_classifier_one_label_path):
    with serving_model(pair_classifier_one_label_path) as (second, _):
        server = server_of(one_label[0], second, pairs_per_request=8)
        before = [len(pairs_asked(one_label[0])), len(pairs_asked(second))]
        pairs = mixed_pairs()
        expected = CrossEncoderEquivalence(pair_classifier_one_label_path).score_pairs(pairs)
        assert server.score_pairs(pairs) == pytest.approx(expected, abs=1e-5)
        shares = [len(pairs_asked(one)) - asked for one, asked in zip((one_label[0], second), before, strict=True)]
        assert sum(shares) == len(pairs) and min(shares) > 0


def spoil_number(reply):
    reply["data"][0]["score"] = math.nan


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda reply: reply["data"].pop(), "replied with the indices"),
        (lambda reply: reply["data"].append(dict(reply["data"][0])), "replied with the indices"),
        (lambda reply: reply["data"][0].update(index=99), "replied with the indices"),
        (spoil_number, r"replied with \[nan\]"),
        (lambda reply: reply["data"][0].update(score=None), r"replied with \[nan\]"),
        (lambda reply: reply.pop("data"), "replied in another form"),
    ],
    ids=["too few", "twice", "no such index", "NaN", "null", "another form"],
)
def test_replies_that_cannot_be_used_are_asked_again_and_never_guessed(one_label, change, cause):
    loopback, double = one_label
    server = server_of(loopback, retries=2)
    pairs = mixed_pairs(6)
    whole = server.score_pairs(pairs)
    failing = iter([True, False])
    double.change = lambda reply: change(reply) if next(failing, False) else None
    assert server.score_pairs(pairs) == whole
    double.change = change
    with pytest.raises(ConnectionError, match=f"no server judged .* pairs .*{loopback.url}: {cause}"):
        server.score_pairs(pairs)


def test_a_server_that_reads_other_tokens_is_refused(one_label):
    """FC-084: an option that has no effect shows in the number of tokens that the server has read."""
    loopback, double = one_label
    server = server_of(loopback)
    double.change = lambda reply: reply["usage"].update(prompt_tokens=3)
    with pytest.raises(ValueError, match=r"has read 3 tokens of an input of \d+: it cuts or tokenises"):
        server.score_pairs([("the cat is blue", "the dog is not")])


def test_all_servers_down_is_an_error_that_names_them(one_label, pair_classifier_one_label_path):
    loopback, double = one_label
    with serving_model(pair_classifier_one_label_path) as (second, _):
        server = server_of(loopback, second, retries=1, timeout=1.0)
    double.before = lambda asked: Answer("no capacity", status=503)
    started = time.monotonic()
    with pytest.raises(ConnectionError) as caught:
        server.score_pairs(mixed_pairs(3))
    assert time.monotonic() - started < 8
    assert f"{loopback.url}: HTTP 503 no capacity" in str(caught.value) and f"{second.url}: Conn" in str(caught.value)


def test_at_the_start_one_server_may_be_down(one_label, caplog):
    closed = closed_url()
    with caplog.at_level(logging.WARNING):
        server = ServerEquivalence([closed, one_label[0].url], back_off=0.01)
    assert f"{closed} does not answer" in caplog.text
    assert len(server.score_pairs([("a", "b")])) == 1
    with pytest.raises(ConnectionError, match=f"{closed}: ConnectError"):
        ServerEquivalence(closed, back_off=0.01)


def test_at_the_start_a_server_may_be_busy(one_label):
    loopback, double = one_label
    busy = iter([Answer("loading", status=503)] * 3)
    double.before = lambda asked: next(busy, None)
    assert len(server_of(loopback).score_pairs([("a", "b")])) == 1


def test_another_model_is_refused_at_the_start(one_label, tmp_path, pair_classifier_one_label_path):
    loopback, double = one_label
    with pytest.raises(ValueError, match=f"{loopback.url} serves .*, not 'owner/another'"):
        server_of(loopback, model="owner/another")
    other_path = tiny.save_tiny_pair_classifier(tmp_path / "other", num_labels=1, seed=77)
    with serving_model(other_path) as (other, other_double):
        with pytest.raises(ValueError, match=f"serve different models: {loopback.url} .*{other.url}"):
            server_of(loopback, other)
        other_double.models = double.models  # the same name, but other weights
        with pytest.raises(ValueError, match="not with the same weights: their logits .* differ by"):
            server_of(loopback, other)
    with serving_model(pair_classifier_one_label_path, max_model_len=64) as (shorter, _):
        with pytest.raises(ValueError, match="different models: .*128 tokens.*64 tokens"):
            server_of(loopback, shorter)


def test_a_server_that_comes_back_with_another_model_is_refused(one_label, tmp_path, pair_classifier_one_label_path):
    loopback, double = one_label
    with serving_model(pair_classifier_one_label_path) as (second, _):
        server = server_of(loopback, second)
        port = int(second.url.rpartition(":")[2])
    double.before = lambda asked: Answer("no", status=503)
    with pytest.raises(ConnectionError):
        server.score_pairs([("a", "b")])
    with serving(PoolingDouble(tiny.save_tiny_pair_classifier(tmp_path, num_labels=1, seed=5)), port=port):
        with pytest.raises(ValueError, match="serve different models"):
            server.score_pairs([("a", "b")])


def test_a_two_label_classifier_with_token_types_is_refused(pair_classifier_path):
    with serving_model(pair_classifier_path) as (loopback, _):
        with pytest.raises(ValueError, match="reads token types, which vLLM's /classify drops.*serve-classifier"):
            server_of(loopback)


def test_what_is_no_classifier_is_refused(one_label, pair_classifier_path):
    loopback, double = one_label
    double.before = lambda asked: Answer("Not Found", status=404) if asked.path == "/classify" else None
    with pytest.raises(ValueError, match="is no classifier there. Start it with `vllm serve MODEL --runner pooling`"):
        server_of(loopback)
    double.before = lambda asked: None
    double.labels, double.model = (
        2,
        BertForSequenceClassification(BertConfig.from_pretrained(pair_classifier_path)).eval(),
    )
    with pytest.raises(ValueError, match="has 2 labels, and the checkpoint 1: it is another model"):
        server_of(loopback)


def test_a_softmax_over_one_label_is_not_taken_for_a_probability(one_label, pair_classifier_one_label_path):
    """FC-078: a server that gives 1.0 for everything is refused; one that can be asked for the logit is used."""
    loopback, double = one_label
    pairs = mixed_pairs(5)
    expected = CrossEncoderEquivalence(pair_classifier_one_label_path).score_pairs(pairs)
    original = double._values
    double._values = lambda *inputs: [1.0] if inputs[-1] else original(*inputs)
    assert server_of(loopback).score_pairs(pairs) == pytest.approx(expected, abs=1e-5)
    double._values = lambda *inputs: [1.0]
    with pytest.raises(ValueError, match="does not tell logits from probabilities"):
        server_of(loopback)


@pytest.mark.parametrize("always", ["logits", "probabilities"])
def test_a_server_that_ignores_what_it_is_asked_for(decoder, decoder_classifier_path, always):
    """FC-079: the threshold is never applied to a logit, and no softmax to a probability."""
    loopback, double = decoder
    original = double._values
    double._values = lambda ids, types, _: original(ids, types, always == "probabilities")
    pairs = mixed_pairs(5)
    expected = CrossEncoderEquivalence(decoder_classifier_path).score_pairs(pairs)
    assert server_of(loopback).score_pairs(pairs) == pytest.approx(expected, abs=1e-5)


def test_the_model_may_have_another_name_there(pair_classifier_one_label_path):
    with serving_model(pair_classifier_one_label_path, name="judge") as (loopback, double):
        for model in (None, pair_classifier_one_label_path):
            assert len(server_of(loopback, model=model).score_pairs([("a", "b")])) == 1
        double.models[0]["root"] = "/elsewhere/unknown"
        with pytest.raises(
            ValueError, match="tokenizer of '/elsewhere/unknown'.* cannot be loaded here.*partition_model"
        ):
            server_of(loopback)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"urls": []}, "urls is empty"),
        ({"urls": "localhost:8000"}, "is not complete"),
        ({"pairs_per_request": 0}, "pairs_per_request=0"),
        ({"timeout": 0.0}, "timeout=0.0"),
        ({"max_concurrency": 0}, "max_concurrency=0"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ServerEquivalence(**{"urls": "http://localhost:1", **arguments})


def test_scoring_touches_no_random_generator(one_label):
    server = server_of(one_label[0])
    state = torch.get_rng_state()
    server.score_pairs(mixed_pairs(4))
    assert torch.equal(torch.get_rng_state(), state)
