# SPDX-License-Identifier: Apache-2.0
"""
Per-token probabilities of answers from a running vLLM server, such as the one that generates for the trainer.

The requests and replies follow what vLLM 0.31 and 0.32 were seen to send. The tests use a stand-in for that server.
"""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from trl_diversity.likelihood.server_replies import Text, parsed_json, read_reply, served_model
from trl_diversity.likelihood.splice import ScoringRow


if TYPE_CHECKING:
    import httpx

    from trl_diversity.likelihood.scorers import RowScores

logger = logging.getLogger(__name__)

# What the server's default sampling parameters, or those of a rollout, might otherwise change
_NEUTRAL = {
    "n": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
_SERVER_ERROR = 500
_TEMPORARY = (408, 429, _SERVER_ERROR, 502, 503, 504)
_LONGEST_WAIT = 8.0  # seconds between two rounds over the servers
_CONNECT_TIMEOUT = 10.0  # seconds
_KEEPALIVE = 4.0  # seconds; the server hangs up on a connection that is idle for 5


@dataclass(frozen=True)
class _Server:
    url: str
    user: str | None
    password: str

    @property
    def auth(self) -> tuple[str, str] | None:
        return None if self.user is None else (self.user, self.password)


class _NoReplyError(Exception):
    """No server replied: the last status, if any, and the cause by URL."""

    def __init__(self, failures: dict[str, tuple[int | None, str]]) -> None:
        super().__init__("; ".join(f"{url}: {cause}" for url, (_, cause) in failures.items()))
        self.is_server_error = any(status == _SERVER_ERROR for status, _ in failures.values())


class ServerScorer:
    """
    Scores answers with a vLLM server (`POST /v1/completions` with `prompt_logprobs`).

    Every row is two prompts of token ids, the prefix with y and the prefix with y*, so the model behind the server
    must read the policy's ids. Sampling parameters are neutral, whatever the rollout's are. If it is the server that
    generates for TRL, its weights are the policy's as of the last generation: TRL sends them before each generation,
    and a batch is scored right after it.

    Each rank sends its own rows; there is no collective call. Requests run in threads, also below a running event
    loop, and connections are reused.

    A text for which the server has no finite log-probability is NaN, and so is one that the server answers with HTTP
    500, alone and after the retries. Servers that cannot be reached, do not answer in time, or are overloaded are
    tried again in rounds over all of them, with growing waits in between.

    Args:
        urls (`str` or `Sequence[str]`):
            Addresses such as `"http://localhost:8000"`, of servers with the same model and settings, which share the
            load. A user and a password in them are sent (basic authentication), and never shown.
        model (`str`, *optional*):
            Name under which the model is served. By default the server is asked.
        max_length (`int`, *optional*):
            Most tokens of prefix and answer together; a longer row is `"too_long"` and not sent. By default the
            server is asked; it needs one token of its length for itself. Where both are known the smaller one counts.
        max_concurrency (`int`, *optional*, defaults to `8`):
            Most requests under way at a time, over all servers.
        rows_per_request (`int`, *optional*, defaults to `8`):
            Most rows in a request.
        timeout (`float`, *optional*, defaults to `60.0`):
            Seconds to wait for a reply; for a connection at most 10.
        retries (`int`, *optional*, defaults to `3`):
            Further rounds over the servers after the first one.
        back_off (`float`, *optional*, defaults to `0.5`):
            Seconds before the second round. The wait doubles with every round, up to 8 seconds, and is jittered.
        headers (`Mapping[str, str]`, *optional*):
            Further headers, such as `{"Authorization": "Bearer ..."}`.

    Raises:
        `ValueError`: if a URL has no scheme or host, or a number is out of range.

    Example:

    ```python
    scorer = ServerScorer("http://localhost:8000")
    prepared = prepare_completion(prompt_ids, completion_ids, "42", tokenizer)
    scores = scorer.score([prepared.row])[0]
    aggregate(scores.reference, "mean_prob")
    ```
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        model: str | None = None,
        *,
        max_length: int | None = None,
        max_concurrency: int = 8,
        rows_per_request: int = 8,
        timeout: float = 60.0,
        retries: int = 3,
        back_off: float = 0.5,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        _check_numbers(max_length, max_concurrency, rows_per_request, timeout, retries, back_off)
        self._servers = list(dict.fromkeys(map(_server, [urls] if isinstance(urls, str) else urls)))
        if not self._servers:
            raise ValueError("urls is empty; expected at least one address, such as 'http://localhost:8000'")
        self.model = model
        self.max_length = max_length
        self.max_concurrency = max_concurrency
        self.rows_per_request = rows_per_request
        self.timeout = timeout
        self.retries = retries
        self.back_off = back_off
        self.headers = dict(headers or {})
        self._turns = itertools.count()
        self._http: httpx.Client | None = None
        self._name = model or ""
        self._is_described = model is not None and max_length is not None

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers, without user and password."""
        return [server.url for server in self._servers]

    def score(self, rows: Sequence[ScoringRow]) -> list["RowScores"]:
        """
        Probabilities of the answer tokens of each row, as the server's model has them.

        Args:
            rows (`Sequence[ScoringRow]`):
                Rows to score, in the ids of the server's model. May be empty; then nothing is sent.

        Returns:
            `list[RowScores]`: one for every row, in order.

        Raises:
            `ConnectionError`: if no server replies; it names every URL and the cause.
            `ValueError`: if a row has no prefix, or a server refuses a request or replies in another form.
        """
        from trl_diversity.likelihood.scorers import RowScores  # that module imports torch

        for index, row in enumerate(rows):
            if not row.prefix_ids:
                raise ValueError(f"row {index} has no prefix_ids; the first token needs at least one token before it")
        if not rows:
            return []
        self._describe()
        too_long = {index for index, row in enumerate(rows) if not self._fits(row)}
        kept = [index for index in range(len(rows)) if index not in too_long]
        requests = [
            [text for index in kept[start : start + self.rows_per_request] for text in _texts(index, rows[index])]
            for start in range(0, len(kept), self.rows_per_request)
        ]
        found = self._ask_all([texts for texts in requests if texts])
        return [
            RowScores(malformed="too_long")
            if index in too_long
            else RowScores(found.get((index, "answer"), ()), found.get((index, "reference"), ()))
            for index in range(len(rows))
        ]

    def close(self) -> None:
        """Close the connections. Another call of `score` opens new ones."""
        if self._http is not None:
            self._http.close()
            self._http = None

    @property
    def _client(self) -> "httpx.Client":
        if self._http is None:
            import httpx

            self._http = httpx.Client(
                headers=self.headers,
                timeout=httpx.Timeout(self.timeout, connect=min(self.timeout, _CONNECT_TIMEOUT)),
                limits=httpx.Limits(
                    max_connections=None,
                    max_keepalive_connections=self.max_concurrency,
                    keepalive_expiry=_KEEPALIVE,
                ),
            )
        return self._http

    def _fits(self, row: ScoringRow) -> bool:
        longest = len(row.prefix_ids) + max(len(row.answer_ids), len(row.reference_ids))
        return self.max_length is None or longest <= self.max_length

    def _describe(self) -> None:
        """Ask once for the name of the model and its length, as far as they were not given."""
        if self._is_described:
            return
        try:
            reply, url = self._call("GET", "/v1/models")
        except _NoReplyError as failure:
            raise ConnectionError(f"no vLLM server told its model ({failure})") from None
        self._name, served = served_model(reply, self.model, url)
        if served is not None:
            self.max_length = min(served - 1, self.max_length or served)
        self._is_described = True

    def _ask_all(self, requests: list[list[Text]]) -> dict[tuple[int, str], tuple[float, ...]]:
        if not requests:
            return {}
        _ = self._client  # made once, before the threads share it
        pool = ThreadPoolExecutor(min(self.max_concurrency, len(requests)), thread_name_prefix="server-scorer")
        try:
            replies = list(pool.map(self._ask, requests))
        finally:
            pool.shutdown(cancel_futures=True)
        return {
            (text.row, text.name): probabilities
            for texts, reply in zip(requests, replies, strict=True)
            for text, probabilities in zip(texts, reply, strict=True)
        }

    def _ask(self, texts: list[Text], patient: bool = True) -> list[tuple[float, ...]]:
        """Probabilities of some texts. `patient` is whether to repeat a request that was answered with HTTP 500."""
        body = {
            "model": self._name,
            "prompt": [list(text.ids) for text in texts],
            "max_tokens": 1,
            "prompt_logprobs": 0,
            **_NEUTRAL,
        }
        try:
            reply, url = self._call("POST", "/v1/completions", body, patient)
        except _NoReplyError as failure:
            if not failure.is_server_error:
                raise ConnectionError(f"no vLLM server scored {len(texts)} texts ({failure})") from None
            if len(texts) == 1:
                logger.warning(
                    "the %s of a row has no likelihood: the server fails on it (%s)", texts[0].name, failure
                )
                return [texts[0].nan()]
            # One log-probability that is not finite makes vLLM fail on all that share its request.
            return [self._ask([text], patient=False)[0] for text in texts]
        return read_reply(reply, texts, url)

    def _call(self, method: str, path: str, body: Any = None, patient: bool = True) -> tuple[Any, str]:
        """What a server replies, and its URL; rounds over all servers until one does."""
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

        def is_worth_another_round(error: BaseException) -> bool:
            return isinstance(error, _NoReplyError) and (patient or not error.is_server_error)

        retrying = Retrying(
            stop=stop_after_attempt(self.retries + 1),
            wait=wait_exponential_jitter(initial=self.back_off, max=_LONGEST_WAIT, jitter=self.back_off),
            retry=retry_if_exception(is_worth_another_round),
            reraise=True,
        )
        return retrying(self._one_round, method, path, body)

    def _one_round(self, method: str, path: str, body: Any) -> tuple[Any, str]:
        import httpx

        failures: dict[str, tuple[int | None, str]] = {}
        first = next(self._turns) % len(self._servers)
        for server in self._servers[first:] + self._servers[:first]:
            try:
                response = self._client.request(method, server.url + path, json=body, auth=server.auth)
            except httpx.TransportError as error:
                failures[server.url] = None, f"{type(error).__name__} {error}".rstrip()
                continue
            cause = f"HTTP {response.status_code} {response.text[:300]}".rstrip()
            if response.status_code in _TEMPORARY:
                failures[server.url] = response.status_code, cause
            elif response.status_code != 200:
                raise ValueError(f"the server at {server.url} refused {method} {path}: {cause}")
            else:
                return parsed_json(response, server.url), server.url
        raise _NoReplyError(failures)


def _check_numbers(
    max_length: int | None, max_concurrency: int, rows_per_request: int, timeout: float, retries: int, back_off: float
) -> None:
    counts = {"max_concurrency": max_concurrency, "rows_per_request": rows_per_request, "max_length": max_length}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name}={count}; expected at least 1")
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout={timeout}; expected a number of seconds above 0")
    if retries < 0:
        raise ValueError(f"retries={retries}; expected at least 0")
    if not 0 <= back_off < math.inf:
        raise ValueError(f"back_off={back_off}; expected a number of seconds of at least 0")


def _server(url: str) -> _Server:
    """Take user and password out of a URL: libraries show URLs in logs and errors."""
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_complete = False
    if not is_complete:
        shown = url.rpartition("@")[2]
        raise ValueError(f"the URL {shown!r} is not complete; expected one such as 'http://localhost:8000'")
    path = parts.path.rstrip("/").removesuffix("/v1")
    user = None if parts.username is None else unquote(parts.username)
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
    return _Server(address, user, unquote(parts.password or ""))


def _texts(index: int, row: ScoringRow) -> list[Text]:
    """The prompts of a row: none for a text without a token to score."""
    parts = (("answer", row.answer_ids, row.answer_lead), ("reference", row.reference_ids, row.reference_lead))
    return [
        Text(index, name, (*row.prefix_ids, *ids), len(row.prefix_ids) + lead)
        for name, ids, lead in parts
        if len(ids) > lead
    ]
