# SPDX-License-Identifier: Apache-2.0
"""A proxy before a real server that injects faults: it answers in its place, changes its replies, or goes away."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx

from tests.loopback import Answer, Asked, Loopback, serving


Fault = Callable[[Asked, Answer], Answer]


def whole(asked: Asked, answer: Answer) -> Answer:
    """No fault."""
    return answer


def status(code: int, **headers: str) -> Fault:
    return lambda asked, answer: Answer("injected", status=code, headers=headers)


def cut(asked: Asked, answer: Answer) -> Answer:
    """The connection ends in the middle of the body."""
    return replace(answer, sent=0.5)


def hang(seconds: float) -> Fault:
    return lambda asked, answer: replace(answer, delay=seconds)


def changed(change: Callable[[list[dict[str, Any]]], Any]) -> Fault:
    """A reply of which the list `data` was changed in place."""

    def fault(asked: Asked, answer: Answer) -> Answer:
        reply = json.loads(answer.content)
        change(reply["data"])
        return Answer(json.dumps(reply))

    return fault


def fewer(data: list[dict[str, Any]]) -> None:
    data.pop()


def not_a_number(data: list[dict[str, Any]]) -> None:
    data[0]["score"] = float("nan")


def another_order(data: list[dict[str, Any]]) -> None:
    random.Random(len(data)).shuffle(data)
    data.reverse()


class Proxy:
    """Hands requests on. `fault` is applied to the answers to those whose path is in `paths`."""

    def __init__(self, url: str, paths: tuple[str, ...] = ("/score",)) -> None:
        self.fault: Fault = whole
        self.paths = paths
        self._http = httpx.Client(base_url=url, timeout=300, trust_env=False)

    def __call__(self, asked: Asked) -> Answer:
        response = self._http.request(asked.method, asked.path, json=asked.body)
        answer = Answer(response.text, response.status_code)
        return self.fault(asked, answer) if asked.path in self.paths else answer


@contextmanager
def proxied(url: str, fault: Fault = whole, **settings: Any) -> Iterator[tuple[Loopback, Proxy]]:
    """A running proxy: the address it listens at and what it was asked, and itself."""
    proxy = Proxy(url, **settings)
    proxy.fault = fault
    with serving(proxy) as loopback:
        yield loopback, proxy
