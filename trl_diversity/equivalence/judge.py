# SPDX-License-Identifier: Apache-2.0
"""An equivalence model that asks a chat model for its verdict."""

import logging
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from trl_diversity.equivalence.judge_prompts import REMINDER, parse_verdict, resolve_prompt
from trl_diversity.server_client import ServerClient
from trl_diversity.server_errors import UnusableReplyError


logger = logging.getLogger(__name__)

KEY_VARIABLE = "JUDGE_API_KEY"
UNPARSABLE = ("error", "different")
_SAMPLING = {"temperature": 0.0, "max_tokens": 1024}
_SHOWN_CHARACTERS = 200
_LEFT_OUT = "\n[...]\n"


class JudgeEquivalence:
    """
    1.0 if a chat model judges two completions to mean the same, else 0.0.

    Any server with OpenAI's chat completions will do. The judge must end its reply with [[yes]] or [[no]]; what yes
    means belongs to the question: in `"math"` that the strategies are DIFFERENT, in `"writing"` that the answers are
    equivalent. A reply without a verdict is followed by a reminder, once; then it is an error, or counts as different
    by setting. Requests are concurrent, and equal questions of a call are asked once. An answer that fails in transit
    is asked for again.

    Args:
        base_url (`str`):
            Address such as `"http://localhost:8000/v1"`. A user and a password in it are sent (basic
            authentication), and never shown.
        model (`str`):
            Name of the model there.
        prompt (`str`, *optional*, defaults to `"writing"`):
            `"writing"` or `"math"` (arXiv 2509.02534, appendix A, in our words), a template with `{first}`,
            `{second}` and, if it is to be read, `{prompt}`, or the path of a file that holds one.
        yes_means (`str`, *optional*):
            `"same"` or `"different"`: what [[yes]] says. Needed for a template of one's own, and only there.
        unparsable (`str`, *optional*, defaults to `"error"`):
            What two replies without a verdict are: `"error"`, or `"different"`, counted as `unparsable_verdicts`.
        max_concurrency (`int`, *optional*, defaults to `16`):
            Most requests under way at a time.
        timeout (`float`, *optional*, defaults to `60.0`):
            Seconds to wait for an answer.
        retries (`int`, *optional*, defaults to `3`):
            Further attempts; a request fails after `(retries + 1) * timeout` seconds at the latest.
        back_off (`float`, *optional*, defaults to `0.5`):
            Seconds before the second attempt; doubles with every attempt.
        request_options (`Mapping`, *optional*):
            What the requests hold besides model and messages. Temperature 0 and at most 1024 tokens by default.
        max_side_characters (`int`, *optional*, defaults to `20000`):
            Characters of either completion that are sent; the middle of a longer one is left out, and the pair is
            counted as `truncated_pairs`.
        key_variable (`str`, *optional*, defaults to `"JUDGE_API_KEY"`):
            Environment variable that holds the key, if the server wants one. It is read when the first pair is
            judged, and shown nowhere.

    Attributes:
        threshold (`float`):
            0.5, between the two scores.

    Raises:
        `ValueError`: if an argument has an impossible value.
    """

    threshold = 0.5
    is_remote = True  # the trainer may compute while this waits

    def __init__(
        self,
        base_url: str,
        model: str,
        prompt: str = "writing",
        *,
        yes_means: str | None = None,
        unparsable: str = "error",
        max_concurrency: int = 16,
        timeout: float = 60.0,
        retries: int = 3,
        back_off: float = 0.5,
        request_options: Mapping[str, Any] | None = None,
        max_side_characters: int = 20_000,
        key_variable: str = KEY_VARIABLE,
    ) -> None:
        if unparsable not in UNPARSABLE:
            raise ValueError(f"unparsable is {unparsable!r}; accepted are {', '.join(map(repr, UNPARSABLE))}")
        if max_side_characters < 1:
            raise ValueError(f"max_side_characters={max_side_characters}; expected at least 1")
        self.model = model
        self.prompt = resolve_prompt(prompt, yes_means)
        self.unparsable = unparsable
        self.request_options = dict(_SAMPLING if request_options is None else request_options)
        self.max_side_characters = max_side_characters
        self.key_variable = key_variable
        self._base_url = base_url
        # An address without a path is a server's; with one it is what "/chat/completions" follows, as OpenAI has it.
        has_path = urlsplit(base_url).path.rstrip("/").removesuffix("/v1") != ""
        is_versioned = urlsplit(base_url).path.rstrip("/").endswith("/v1")
        self._path = "/chat/completions" if has_path and not is_versioned else "/v1/chat/completions"
        self._client_options: dict[str, Any] = {
            "max_concurrency": max_concurrency,
            "timeout": timeout,
            "retries": retries,
            "back_off": back_off,
        }
        self.urls = ServerClient(base_url, **self._client_options).urls  # refuses impossible values
        self._client: ServerClient | None = None
        self._statistics: Counter[str] = Counter()

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        """
        Score pairs of completions.

        Args:
            pairs (`list[tuple[str, str]]`):
                Pairs of texts to compare.
            prompts (`list[str]`, *optional*):
                The request that both answer, for every pair. Empty by default.

        Returns:
            `list[float]`: 1.0 where the judge says that the two mean the same, else 0.0, for every pair in order.

        Raises:
            `ConnectionError`: if the server gives no answer; it names the URL and the cause.
            `ValueError`: if the server refuses a request, or the judge gives no verdict and that is an error.
        """
        questions = [
            self.prompt.filled(prompt, self._shortened(first), self._shortened(second))
            for (first, second), prompt in zip(pairs, prompts or [""] * len(pairs), strict=True)
        ]
        longest = self.max_side_characters
        self._statistics["truncated_pairs"] += sum(max(map(len, pair)) > longest for pair in pairs)
        distinct = list(dict.fromkeys(questions))
        if not distinct:
            return []
        self._statistics["server_pairs"] += len(distinct)
        verdicts = dict(zip(distinct, self._opened().map(self._verdict, distinct), strict=True))
        return [self._score(verdicts[question], pair) for question, pair in zip(questions, pairs, strict=True)]

    def pop_statistics(self) -> dict[str, int]:
        """
        Counts since the last call, then cleared: `unparsable_verdicts` (pairs without a verdict, counted as
        different), `repeated_questions` (pairs that needed the reminder), `truncated_pairs`, `server_pairs` (asked),
        `server_requests`, `server_failures` (requests that had to be asked again).
        """
        names = ("unparsable_verdicts", "repeated_questions", "truncated_pairs", "server_pairs")
        statistics = {name: self._statistics[name] for name in names}
        self._statistics.clear()
        return statistics | (self._client.pop_statistics() if self._client is not None else {})

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _opened(self) -> ServerClient:
        if self._client is None:
            headers = judge_headers(self.key_variable)
            self._client = ServerClient(self._base_url, headers=headers, **self._client_options)
        return self._client

    def _verdict(self, question: str) -> tuple[str | None, bool, str]:
        """The judge's verdict, whether it needed the reminder, and its last reply."""
        messages = [{"role": "user", "content": question}]
        reply = self._ask(messages)
        verdict = parse_verdict(reply)
        if verdict is not None:
            return verdict, False, reply
        # At temperature 0 the same question would have the same answer: the reply goes back with a reminder.
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": REMINDER}]
        reply = self._ask(messages)
        return parse_verdict(reply), True, reply

    def _ask(self, messages: list[dict[str, str]]) -> str:
        body = {**self.request_options, "model": self.model, "messages": messages}
        try:
            return self._opened().call("POST", self._path, body, read=_read_reply)
        except ConnectionError as error:
            raise ConnectionError(f"the judge gave no answer ({error})") from None

    def _score(self, outcome: tuple[str | None, bool, str], pair: tuple[str, str]) -> float:
        verdict, was_reminded, reply = outcome
        self._statistics["repeated_questions"] += was_reminded
        if verdict is not None:
            return self.prompt.score(verdict)
        if self.unparsable == "error":
            first, second = (text[: _SHOWN_CHARACTERS // 4] for text in pair)
            raise ValueError(
                f"the judge {self.model!r} at {self.urls[0]} gave no verdict on ({first!r}, {second!r}), nor when it "
                f"was asked once more: its reply ends with {reply[-_SHOWN_CHARACTERS:]!r}. Ask a model that follows "
                "the format, allow longer replies, or count such pairs as different (`judge_unparsable: different`)"
            )
        self._statistics["unparsable_verdicts"] += 1
        return 0.0

    def _shortened(self, text: str) -> str:
        if len(text) <= self.max_side_characters:
            return text
        half = self.max_side_characters // 2
        return text[: self.max_side_characters - half] + _LEFT_OUT + text[len(text) - half :]


def judge_headers(key_variable: str = KEY_VARIABLE) -> dict[str, str]:
    """The header with the judge's key, if the environment has one. Meant for the judge's server and no other."""
    key = os.environ.get(key_variable, "").strip()
    return {"Authorization": f"Bearer {key}"} if key else {}


def _read_reply(reply: Any, url: str) -> str:
    try:
        content = reply["choices"][0]["message"]["content"]
    except (IndexError, KeyError, TypeError):
        raise UnusableReplyError(f"replied in another form than OpenAI's: {reply!r:.200}") from None
    if content is not None and not isinstance(content, str):
        raise UnusableReplyError(f"replied with a content of type {type(content).__name__}")
    return content or ""
