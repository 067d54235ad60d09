# SPDX-License-Identifier: Apache-2.0
"""Verdicts of a judge: strictly read, with the right sign, and an error or counted where there is none."""

import logging
import re

import pytest

from tests.loopback import Answer, Asked, serving
from trl_diversity.equivalence import EquivalenceModel, JudgeEquivalence
from trl_diversity.equivalence.judge_prompts import BUILT_IN_PROMPTS, parse_verdict, resolve_prompt


TEMPLATE = "Are {first} and {second} alike?"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("JUDGE_API_KEY", raising=False)


def says(text):
    return Answer({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]})


def judge_at(server, prompt="writing", **settings):
    return JudgeEquivalence(f"{server.url}/v1", "judge", prompt, **{"timeout": 10.0, "back_off": 0.01, **settings})


def question(asked: Asked) -> str:
    return asked.body["messages"][0]["content"]


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("[[yes]]", "yes"),
        ("Both are cats.\n\n[[no]]", "no"),
        ("[[YES]]\n", "yes"),
        ("Verdict: **[[No]]**.", "no"),
        ("I first thought [[yes]], but on reflection: [[no]]", "no"),
        ("<think>[[yes]]?</think> [[ no ]]", "no"),
        ("", None),
        ("yes", None),
        ("[yes]", None),
        ("[[yes", None),
        ("[[maybe]]", None),
        ("I must answer with [[yes]] or [[no]], so let me think", None),
        ("[[yes]] because they agree in everything but", None),
        ("[[yes]] [[no]]?", None),
    ],
)
def test_a_verdict_is_what_the_reply_ends_with(reply, verdict):
    assert parse_verdict(reply) == verdict


@pytest.mark.parametrize(
    ("prompt", "verdict", "score"),
    [("writing", "yes", 1.0), ("writing", "no", 0.0), ("math", "yes", 0.0), ("math", "no", 1.0)],
)
def test_the_sign_of_a_verdict(prompt, verdict, score):
    """For mathematics yes means that the strategies differ (arXiv 2509.02534, appendix A)."""
    with serving(lambda asked: says(f"So: [[{verdict}]]")) as server:
        judge = judge_at(server, prompt)
        assert isinstance(judge, EquivalenceModel) and judge.threshold == 0.5
        assert judge.score_pairs([("a", "b")], ["x"]) == [score]


def test_what_the_questions_say_agrees_with_the_sign():
    """Read from the text itself, not from the field: which verdict stands next to which meaning."""
    writing, math = (BUILT_IN_PROMPTS[name].template for name in ("writing", "math"))
    assert re.search(r"\[\[yes\]\] if the two answers are equivalent, \[\[no\]\] if they are not", writing)
    assert re.search(r"\[\[yes\]\] if the strategies are different, \[\[no\]\] if they are the same", math)
    for template in (writing, math):
        assert all(template.count(f"{{{name}}}") == 1 for name in ("prompt", "first", "second"))


def test_the_judge_reads_the_request_and_both_texts_in_order():
    with serving(lambda asked: says("[[yes]]")) as server:
        judge_at(server).score_pairs([("text one {second}", r"\frac{1}{2}")], ["the {first} request"])
        (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert set(asked.body) == {"model", "messages", "temperature", "max_tokens"} and asked.body["model"] == "judge"
    expected = BUILT_IN_PROMPTS["writing"].template.split("{prompt}")[0] + "the {first} request"
    assert question(asked).startswith(expected)  # placeholders within a text are text
    assert question(asked).index("text one {second}") < question(asked).index(r"\frac{1}{2}")


def test_equal_questions_are_asked_once_and_several_at_a_time():
    def answer(asked):
        reply = says("[[yes]]" if "pair 3" in question(asked) else "[[no]]")
        reply.delay = 0.1
        return reply

    with serving(answer) as server:
        judge = judge_at(server, max_concurrency=3)
        pairs = [(f"pair {index % 5}", "other") for index in range(10)]
        assert judge.score_pairs(pairs, ["x"] * 10) == [float(index % 5 == 3) for index in range(10)]
        assert len(server.asked) == 5 and 2 <= server.most_running <= 3
        judge.score_pairs([pairs[0], pairs[0]], ["x", "another request"])
        assert len(server.asked) == 7
    assert judge.pop_statistics() == {
        "unparsable_verdicts": 0,
        "repeated_questions": 0,
        "truncated_pairs": 0,
        "server_pairs": 7,
        "server_requests": 7,
        "server_failures": 0,
    }
    assert judge.score_pairs([]) == []


def test_a_reply_without_verdict_is_asked_once_more():
    def answer(asked):
        return says("Hm, hard to say") if len(asked.body["messages"]) == 1 else says("[[yes]]")

    with serving(answer) as server:
        judge = judge_at(server)
        assert judge.score_pairs([("a", "b")], ["x"]) == [1.0]
        first, second = server.asked
    assert [message["role"] for message in second.body["messages"]] == ["user", "assistant", "user"]
    assert second.body["messages"][:2] == [
        *first.body["messages"],
        {"role": "assistant", "content": "Hm, hard to say"},
    ]
    statistics = judge.pop_statistics()
    assert statistics["repeated_questions"] == 1 and statistics["unparsable_verdicts"] == 0


@pytest.mark.parametrize("content", ["never a verdict", None])
def test_no_verdict_twice_is_an_error_or_different(content):
    with serving(lambda asked: says("[[yes]]") if "good" in question(asked) else says(content)) as server:
        with pytest.raises(ValueError, match="'judge' at http://.* gave no verdict on .'a', 'b'.*judge_unparsable"):
            judge_at(server).score_pairs([("a", "b")])
        assert len(server.asked) == 2
        judge = judge_at(server, unparsable="different")
        assert judge.score_pairs([("a", "b"), ("good", "good one"), ("c", "d")]) == [0.0, 1.0, 0.0]
        assert judge.pop_statistics()["unparsable_verdicts"] == 2
        assert judge.pop_statistics()["unparsable_verdicts"] == 0
        math = judge_at(server, "math", unparsable="different")
        assert math.score_pairs([("a", "b")]) == [0.0]  # different, whatever yes means


def test_a_template_of_ones_own(tmp_path):
    file = tmp_path / "question.txt"
    file.write_text(TEMPLATE)
    for prompt in (TEMPLATE, str(file)):
        assert resolve_prompt(prompt, "different").filled("x", "a", "b") == "Are a and b alike?"
        assert resolve_prompt(prompt, "different").score("yes") == 0.0
        assert resolve_prompt(prompt, "same").score("yes") == 1.0
    braces = resolve_prompt(r"\boxed{1} {first} {second} {other}", "same")
    assert braces.filled("", "a", "b") == r"\boxed{1} a b {other}"


@pytest.mark.parametrize(
    ("prompt", "yes_means", "message"),
    [
        ("wrting", None, r"'wrting' lacks \{first\} and \{second\}. Accepted are 'writing', 'math'"),
        ("only {first}", "same", r"lacks \{second\}"),
        (TEMPLATE, None, "needs `yes_means` .*'different' if it says that they are not"),
        (TEMPLATE, "equal", "yes_means is 'equal'"),
        ("math", "same", "contradicts the question 'math', where yes means 'different'"),
    ],
)
def test_prompts_that_are_refused(prompt, yes_means, message):
    with pytest.raises(ValueError, match=message):
        JudgeEquivalence("http://localhost:1", "m", prompt, yes_means=yes_means)


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("/api/v1", "/api/v1/chat/completions"),
        ("/v1beta/openai", "/v1beta/openai/chat/completions"),
    ],
)
def test_the_address_may_be_written_as_other_clients_have_it(base, path):
    with serving(lambda asked: says("[[yes]]")) as server:
        JudgeEquivalence(server.url + base, "m").score_pairs([("a", "b")])
        assert server.paths() == [path]


def test_the_key_comes_from_the_environment_and_is_shown_nowhere(monkeypatch, caplog):
    def refuses(asked):
        return Answer(f"wrong key {asked.headers.get('Authorization')}", status=401)

    monkeypatch.setenv("JUDGE_API_KEY", "sk-very-secret")
    with serving(refuses) as server, caplog.at_level(logging.DEBUG):
        judge = judge_at(server)
        with pytest.raises(ValueError, match="refused POST /v1/chat/completions: HTTP 401") as caught:
            judge.score_pairs([("a", "b")])
        assert server.asked[0].headers["Authorization"] == "Bearer sk-very-secret"
        assert len(server.asked) == 1
    shown = str(caught.value) + caplog.text + repr(vars(judge))
    assert "very-secret" not in shown
    monkeypatch.delenv("JUDGE_API_KEY")
    with serving(lambda asked: says("[[yes]]")) as server:
        judge_at(server).score_pairs([("a", "b")])
        assert "Authorization" not in server.asked[0].headers


def test_very_long_texts_lose_their_middle():
    with serving(lambda asked: says("[[no]]")) as server:
        judge = judge_at(server, max_side_characters=10)
        judge.score_pairs([("abcde" + "x" * 90 + "vwxyz", "short")])
        assert "abcde\n[...]\nvwxyz" in question(server.asked[0]) and "xxx" not in question(server.asked[0])
    assert judge.pop_statistics()["truncated_pairs"] == 1


@pytest.mark.parametrize("broken", [Answer({"choices": []}), Answer({"error": "x"}), Answer("busy", status=503)])
def test_a_reply_that_is_none_is_asked_for_again(broken):
    answers = iter([broken])
    with serving(lambda asked: next(answers, says("[[yes]]"))) as server:
        assert judge_at(server).score_pairs([("a", "b")]) == [1.0]
    with serving(lambda asked: broken) as server:
        with pytest.raises(ConnectionError, match=f"the judge gave no answer .{server.url}: "):
            judge_at(server, retries=1, unparsable="different").score_pairs([("a", "b")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unparsable": "ignore"}, "unparsable is 'ignore'; accepted are 'error', 'different'"),
        ({"max_side_characters": 0}, "max_side_characters=0"),
        ({"base_url": "judge:8000"}, "is not complete"),
        ({"retries": -1}, "retries=-1"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        JudgeEquivalence(**{"base_url": "http://localhost:1", "model": "m", **arguments})
