# SPDX-License-Identifier: Apache-2.0
"""Asks HTTP servers that share a load: the least loaded first, in rounds over all of them until one answers."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from trl_diversity.server_address import ServerAddress, parse_address
from trl_diversity.server_errors import (
    SERVER_ERROR,
    Failure,
    NoReplyError,
    RefusedError,
    UnusableReplyError,
    parsed_json,
    retry_after_seconds,
)


if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

_TEMPORARY = (408, 429, SERVER_ERROR, 502, 503, 504)
_LONGEST_WAIT = 8.0  # seconds between two rounds over the servers
_CONNECT_TIMEOUT = 10.0  # seconds
_REST = 30.0  # seconds until one request tries a server that was down, though others are up
_KEEPALIVE = 4.0  # seconds; the server hangs up on a connection that is idle for 5
_SHOWN_CHARACTERS = 300


class _AttemptFailedError(Exception):
    """One server failed on one request."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


class _Server:
    """What is known of one server."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.url = address.url
        self.in_flight = self.sent = 0
        # Monotonic seconds: until the first it asked to be left alone, until the second the others come first
        self.not_before = self.rests_until = 0.0
        self.is_down = self.is_checked = False
        self.failure: Failure | None = None


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    body: Any
    read: Callable[[Any, str], Any] | None
    give_up: float  # monotonic seconds


class ServerClient:
    """
    Sends JSON to servers that can stand in for each other, and survives the failure of some.

    A request goes to the server with the fewest under way. If that one fails (no connection, no whole answer in time,
    HTTP 408, 429, 500, 502, 503, 504, an answer that cannot be used), the others are asked, those that are down last;
    then all again after a wait that grows. A `Retry-After` is honoured, up to 60 seconds. Other statuses are refusals
    and errors at once. Connections are kept between calls. Safe to use from several threads.

    Args:
        urls (`str` or `Sequence[str]`):
            Addresses such as `"http://localhost:8000"`. A user and a password in them are sent (basic
            authentication), and never shown.
        max_concurrency (`int`, *optional*, defaults to `8`):
            Most requests of [`~ServerClient.map`] under way at a time, over all servers.
        timeout (`float`, *optional*, defaults to `60.0`):
            Seconds to wait for a whole answer; for a connection at most 10.
        retries (`int`, *optional*, defaults to `3`):
            Further rounds over the servers after the first one. A request is given up after
            `(retries + 1) * timeout` seconds, whatever round it is in.
        back_off (`float`, *optional*, defaults to `0.5`):
            Seconds before the second round. The wait doubles with every round, up to 8 seconds, and is jittered.
        headers (`Mapping[str, str]`, *optional*):
            Further headers, such as `{"Authorization": "Bearer ..."}`. Their values are never shown.
        check (`Callable`, *optional*):
            Called with a URL and a function `ask(method, path, body=None)` for that server alone, before its first
            request and again after it was down: it may raise `ValueError` if that is not the server it should be.

    Raises:
        `ValueError`: if a URL has no scheme or host, or a number is out of range.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        max_concurrency: int = 8,
        timeout: float = 60.0,
        retries: int = 3,
        back_off: float = 0.5,
        headers: Mapping[str, str] | None = None,
        check: Callable[[str, Callable[..., Any]], None] | None = None,
    ) -> None:
        _check_numbers(max_concurrency, timeout, retries, back_off)
        addresses = dict.fromkeys(map(parse_address, [urls] if isinstance(urls, str) else urls))
        if not addresses:
            raise ValueError("urls is empty; expected at least one address, such as 'http://localhost:8000'")
        self._servers = [_Server(address) for address in addresses]
        self.max_concurrency = max_concurrency
        self.timeout = timeout
        self.retries = retries
        self.back_off = back_off
        self.headers = dict(headers or {})
        self._secrets = [part for value in self.headers.values() for part in (value, value.rpartition(" ")[2]) if part]
        self._check = check
        self._lock = threading.Lock()
        self._local = threading.local()
        self._statistics: Counter[str] = Counter()
        self._http: httpx.Client | None = None

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers, without user and password."""
        return [server.url for server in self._servers]

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        read: Callable[[Any, str], Any] | None = None,
        retry_server_errors: bool = True,
    ) -> Any:
        """
        What a server answers.

        Args:
            method (`str`), path (`str`), body (*optional*):
                The request; `body` is sent as JSON.
            read (`Callable`, *optional*):
                Called with the parsed answer and the URL it came from; what it returns is returned. It may raise
                [`UnusableReplyError`] to have the request asked again.
            retry_server_errors (`bool`, *optional*, defaults to `True`):
                Whether further rounds follow on one in which a server answered with HTTP 500.

        Raises:
            `ConnectionError`: ([`NoReplyError`]) if no server answers in time; it names every URL and the cause.
            `ValueError`: ([`RefusedError`]) if a server refuses the request.
        """
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_before_delay

        patience = (self.retries + 1) * self.timeout
        request = _Request(method, path, body, read, time.monotonic() + patience)
        stopped = getattr(self._local, "stopped", None) or threading.Event()

        def sleep(seconds: float) -> None:
            stopped.wait(seconds)

        def is_worth_another_round(error: BaseException) -> bool:
            return (
                isinstance(error, NoReplyError)
                and not stopped.is_set()
                and (retry_server_errors or not error.is_server_error)
            )

        retrying = Retrying(
            stop=stop_after_attempt(self.retries + 1) | stop_before_delay(patience),
            wait=self._seconds_to_wait,
            sleep=sleep,
            retry=retry_if_exception(is_worth_another_round),
            reraise=True,
        )
        return retrying(self._one_round, request)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """
        Results of a function that calls this client, for all items in order, several at a time.

        Raises:
            `Exception`: what the function raises; the calls for the other items are then given up.
        """
        items = list(items)
        if len(items) < 2 or self.max_concurrency == 1:
            return [function(item) for item in items]
        stopped = threading.Event()
        pool = ThreadPoolExecutor(
            min(self.max_concurrency, len(items)),
            thread_name_prefix="server-client",
            initializer=lambda: setattr(self._local, "stopped", stopped),
        )
        futures = [pool.submit(function, item) for item in items]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = [future for future in futures if future in done and future.exception() is not None]
            return [future.result() for future in failed or futures]
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)

    def check_all(self) -> None:
        """
        Check every server now. One that cannot be reached is named in the log, and checked once it answers.

        Raises:
            `ConnectionError`: if none of them can be reached, also in further rounds.
            `ValueError`: what the check raises.
        """
        for server in self._servers:
            request = _Request("GET", "/v1/models", None, None, time.monotonic() + self.timeout)
            with self._taken(server), suppress(_AttemptFailedError):
                self._make_sure(server, request)
        if not any(server.is_checked for server in self._servers):
            self.call("GET", "/v1/models")

    def pop_statistics(self) -> dict[str, int]:
        """Numbers of requests and of failed ones since the last call, then cleared."""
        with self._lock:
            statistics = {name: self._statistics[name] for name in ("server_requests", "server_failures")}
            self._statistics.clear()
        return statistics

    def close(self) -> None:
        """Close the connections. Another call opens new ones."""
        client, self._http = self._http, None
        if client is not None:
            client.close()

    def _one_round(self, request: _Request) -> Any:
        untried = list(self._servers)
        failures: dict[str, Failure] = {}
        while untried and time.monotonic() < request.give_up:
            server = self._next(untried)
            if server is None:
                break
            untried.remove(server)
            with self._taken(server):
                try:
                    self._make_sure(server, request)
                    return self._attempt(server, request)
                except _AttemptFailedError as error:
                    failures[server.url] = error.failure
        for server in untried:
            cause = server.failure.cause if server.failure else "not asked in time"
            failures[server.url] = Failure(None, cause)
        raise NoReplyError(failures)

    def _next(self, servers: list[_Server]) -> _Server | None:
        """The least loaded of some servers, None if all of them asked to be left alone for now."""
        now = time.monotonic()
        with self._lock:
            ready = [server for server in servers if server.not_before <= now]
            chosen = min(ready, key=lambda one: (one.rests_until > now, one.in_flight, one.sent), default=None)
            if chosen is not None and chosen.is_down:
                chosen.rests_until = now + _REST  # one request tries it, not all
            return chosen

    @contextmanager
    def _taken(self, server: _Server) -> Iterator[None]:
        with self._lock:
            server.in_flight += 1
            server.sent += 1
        try:
            yield
        finally:
            with self._lock:
                server.in_flight -= 1

    def _make_sure(self, server: _Server, request: _Request) -> None:
        """Check a server that is new or was down."""
        if self._check is None or server.is_checked:
            return

        def ask(method: str, path: str, body: Any = None) -> Any:
            return self._attempt(server, _Request(method, path, body, None, request.give_up))

        try:
            self._check(server.url, ask)
        except UnusableReplyError as error:  # a broken answer says nothing about which server it is
            raise self._failed(server, 200, str(error)) from None
        server.is_checked = True

    def _attempt(self, server: _Server, request: _Request) -> Any:
        import httpx

        with self._lock:
            self._statistics["server_requests"] += 1
        seconds = min(self.timeout, request.give_up - time.monotonic())
        try:
            status, retry_after, content = self._send(server, request, max(seconds, 0.001))
        except httpx.RequestError as error:
            raise self._failed(server, None, f"{type(error).__name__} {error}".rstrip()) from None
        text = self._without_secrets(content[: 4 * _SHOWN_CHARACTERS].decode(errors="replace"))
        cause = f"HTTP {status} {text[:_SHOWN_CHARACTERS]}".rstrip()
        if status in _TEMPORARY:
            raise self._failed(server, status, cause, retry_after)
        if status != 200:
            raise RefusedError(f"the server at {server.url} refused {request.method} {request.path}: {cause}", status)
        try:
            reply = parsed_json(content)
            result = reply if request.read is None else request.read(reply, server.url)
        except UnusableReplyError as error:
            raise self._failed(server, status, self._without_secrets(str(error))) from None
        self._answered(server)
        return result

    def _send(self, server: _Server, request: _Request, seconds: float) -> tuple[int, float, bytes]:
        """Status, seconds to wait before the next request, and content, all within so many seconds."""
        import httpx

        deadline = time.monotonic() + seconds
        timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_TIMEOUT))
        arguments: dict[str, Any] = {"json": request.body, "auth": server.address.auth, "timeout": timeout}
        with self._client.stream(request.method, server.url + request.path, **arguments) as response:
            chunks = []
            for chunk in response.iter_bytes():
                chunks.append(chunk)
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout(f"the answer is not whole after {seconds:.3g} s")
            return response.status_code, retry_after_seconds(response.headers.get("Retry-After")), b"".join(chunks)

    def _failed(
        self, server: _Server, status: int | None, cause: str, retry_after: float = 0.0
    ) -> _AttemptFailedError:
        with self._lock:
            self._statistics["server_failures"] += 1
            went_down = status is None and not server.is_down
            failure = server.failure = Failure(status, cause)
            server.not_before = max(server.not_before, time.monotonic() + retry_after)
            if status is None:
                server.is_down, server.is_checked = True, False
                server.rests_until = time.monotonic() + _REST
        if went_down:
            others = "; the others take over" if len(self._servers) > 1 else ""
            logger.warning("the server at %s does not answer (%s)%s", server.url, cause, others)
        return _AttemptFailedError(failure)

    def _answered(self, server: _Server) -> None:
        with self._lock:
            was_down, server.is_down = server.is_down, False
            server.failure, server.rests_until = None, 0.0
        if was_down:
            logger.warning("the server at %s answers again", server.url)

    def _seconds_to_wait(self, retry_state: Any) -> float:
        from tenacity import wait_exponential_jitter

        back_off = wait_exponential_jitter(initial=self.back_off, max=_LONGEST_WAIT, jitter=self.back_off)
        now = time.monotonic()
        asked_for = [server.not_before - now for server in self._servers if server.not_before > now]
        return max(back_off(retry_state), min(asked_for, default=0.0))

    @property
    def _client(self) -> "httpx.Client":
        with self._lock:
            if self._http is None:
                import httpx

                self._http = httpx.Client(
                    headers=self.headers,
                    limits=httpx.Limits(
                        max_connections=None,
                        max_keepalive_connections=self.max_concurrency,
                        keepalive_expiry=_KEEPALIVE,
                    ),
                )
            return self._http

    def _without_secrets(self, text: str) -> str:
        """A server may repeat in an error what it was sent."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _check_numbers(max_concurrency: int, timeout: float, retries: int, back_off: float) -> None:
    for problem in (
        max_concurrency < 1 and f"max_concurrency={max_concurrency}; expected at least 1",
        not 0 < timeout < math.inf and f"timeout={timeout}; expected a number of seconds above 0",
        retries < 0 and f"retries={retries}; expected at least 0",
        not 0 <= back_off < math.inf and f"back_off={back_off}; expected a number of seconds of at least 0",
    ):
        if problem:
            raise ValueError(problem)
