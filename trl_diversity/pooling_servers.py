# SPDX-License-Identifier: Apache-2.0
"""vLLM servers of one classifier or reward model: is it the right one everywhere, and what does it answer?"""

import math
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from trl_diversity.served_model import ServedModel, served_model
from trl_diversity.server_client import ServerClient
from trl_diversity.server_errors import NoReplyError, UnusableReplyError


# Two servers with the same weights differ by rounding (in bfloat16 up to some hundredths); another model by more.
_SAME_LOGIT = 0.1
_SAME_PROBABILITY = 0.02
_SAME_ANSWER = 2e-3  # of one server to the same input
_SMALLEST_PROBABILITY = 1e-30

Ask = Callable[..., Any]


class PoolingServers:
    """
    Servers that must all serve the same model with the same answers. Each is checked before it is first used, and
    again after it was down.

    Args:
        urls (`str` or `Sequence[str]`):
            Their addresses.
        model (`str`, *optional*):
            Hub name or directory of the model that they must serve, or the name they have for it. By default what the
            first one serves.
        probe (`Callable`):
            Called with the served model, a function that asks one server, and its URL: logits of known inputs, which
            must be the same everywhere.
        client_options (*optional*):
            Arguments of [`ServerClient`].

    Raises:
        `ValueError`: if an argument has an impossible value.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        model: str | None,
        probe: Callable[[ServedModel, Ask, str], list[list[float]]],
        **client_options: Any,
    ) -> None:
        self.client = ServerClient(urls, check=self._check, **client_options)
        self.model = model
        self._probe = probe
        self._first: tuple[str, ServedModel, list[list[float]]] | None = None

    def start(self) -> ServedModel:
        """
        Check all servers and tell what they serve.

        Raises:
            `ConnectionError`: if none of them can be reached.
            `ValueError`: if one serves another model, or answers in a way that cannot be used.
        """
        try:
            self.client.check_all()
        except NoReplyError as failure:
            raise ConnectionError(f"no server can be reached ({failure})") from None
        return self.served

    @property
    def served(self) -> ServedModel:
        """The model that the servers have told of."""
        if self._first is None:
            raise RuntimeError("the servers have not been asked yet")
        return self._first[1]

    def values(self, path: str, body: dict[str, Any], count: int, tokens: int | None) -> list[list[float]]:
        """
        Numbers that a server gives for each of some inputs (see [`read_values`]).

        Raises:
            `ConnectionError`: if no server answers.
            `ValueError`: if a server refuses the request or reads another number of tokens.
        """
        body = {"model": self.served.name, **body}
        return self.client.call("POST", path, body, read=lambda reply, url: read_values(reply, count, tokens, url))

    def _check(self, url: str, ask: Ask) -> None:
        served = self._identify(ask("GET", "/v1/models"), url)
        if self._first is not None:
            first_url, first, expected = self._first
            if _identity(served) != _identity(first):
                raise ValueError(
                    f"the servers serve different models: {first_url} {_described(first)}, {url} "
                    f"{_described(served)}. Give URLs of servers with the same model and settings"
                )
        values = self._probe(served, ask, url)
        if self._first is None:
            self._first = url, served, values
            return
        largest = max(
            abs(one - other)
            for row, expected_row in zip(values, expected, strict=True)
            for one, other in zip(row, expected_row, strict=True)
        )
        if largest > _SAME_LOGIT:
            raise ValueError(
                f"the servers at {first_url} and {url} both serve {served.name!r}, but not with the same weights: "
                f"their logits for the same input differ by {largest:.3g}"
            )

    def _identify(self, reply: Any, url: str) -> ServedModel:
        if self.model is None:
            return served_model(reply, None, url)
        try:
            names = {str(entry["id"]): str(entry.get("root") or entry["id"]) for entry in reply["data"]}
        except (AttributeError, KeyError, TypeError):
            names = {}  # said below, by what reads it in full
        wanted = _last_part(self.model)
        name = next((name for name, root in names.items() if wanted in (_last_part(name), _last_part(root))), None)
        if names and name is None:
            shown = ", ".join(name if name == root else f"{name} (from {root})" for name, root in names.items())
            raise ValueError(
                f"the server at {url} serves {shown}, not {self.model!r}. Give the URL of a server of that model, or "
                "the name of this one"
            )
        return served_model(reply, name, url)


def read_values(reply: Any, count: int, tokens: int | None, url: str) -> list[list[float]]:
    """
    One list of numbers for every input, by its index, whatever the order of the reply.

    Args:
        reply (`Any`):
            What `/classify`, `/pooling` or `/score` answered.
        count (`int`):
            Number of inputs.
        tokens (`int`, *optional*):
            Tokens that the server must have read; otherwise it has read something else.
        url (`str`):
            The server, for the message.

    Raises:
        `UnusableReplyError`: if an input has not exactly one answer, or it is not finite.
        `ValueError`: if the server has read another number of tokens.
    """
    try:
        rows = [(row["index"], _numbers(row)) for row in reply["data"]]
    except (KeyError, TypeError, ValueError):
        raise UnusableReplyError(f"replied in another form than vLLM: {reply!r:.200}") from None
    if sorted(index for index, _ in rows) != list(range(count)):
        raise UnusableReplyError(f"replied with the indices {[index for index, _ in rows]!r:.100} for {count} inputs")
    for index, numbers in rows:
        if not numbers or not all(map(math.isfinite, numbers)):
            raise UnusableReplyError(f"replied with {numbers} for input {index}, which is not finite")
    read = (reply.get("usage") or {}).get("prompt_tokens")
    if tokens is not None and read is not None and read != tokens:
        raise ValueError(
            f"the server at {url} has read {read} tokens of an input of {tokens}: it cuts or tokenises texts in "
            "another way. Start it without truncation, and with the tokenizer of the model that is named here"
        )
    return [numbers for _, numbers in sorted(rows)]


def check_activation(raw: list[list[float]], activated: list[list[float]], url: str) -> bool:
    """
    Find out from known inputs whether a server gives raw logits when it is asked for them.

    Args:
        raw (`list[list[float]]`):
            Answers to `use_activation: false`.
        activated (`list[list[float]]`):
            Answers to `use_activation: true` for the same inputs.
        url (`str`):
            The server, for the message.

    Returns:
        `bool`: whether they are logits; False if they are probabilities of two labels, of which logits can be had.

    Raises:
        `ValueError`: if it cannot be told, or a single label has got a softmax, which is always 1.
    """
    if _close(raw, activated, _SAME_ANSWER):  # the option is ignored
        if len(raw[0]) == 2:
            return not all(min(row) >= 0 and abs(sum(row) - 1) < _SAME_ANSWER for row in raw)
    elif _close([activation(row) for row in raw], activated, _SAME_PROBABILITY):
        return True
    elif all(row == [1.0] for row in activated):
        return True  # a softmax over one label, but the logits are there
    raise ValueError(
        f"the server at {url} does not tell logits from probabilities: asked for logits it gives {raw!r:.120}, and "
        f"otherwise {activated!r:.120}. Use a vLLM that honours `use_activation`, or a classifier with two labels"
    )


def activation(logits: Sequence[float]) -> list[float]:
    """Probabilities: the sigmoid of one logit, the softmax of several."""
    if len(logits) == 1:
        return [sigmoid(logits[0])]
    largest = max(logits)
    exponentials = [math.exp(value - largest) for value in logits]
    return [value / sum(exponentials) for value in exponentials]


def logits_of(probabilities: Sequence[float]) -> list[float]:
    """Logits whose softmax the probabilities are."""
    return [math.log(max(value, _SMALLEST_PROBABILITY)) for value in probabilities]


def sigmoid(value: float) -> float:
    """`1 / (1 + exp(-value))`, without overflow."""
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    exponential = math.exp(value)
    return exponential / (1 + exponential)


def _numbers(row: Any) -> list[float]:
    """`probs` of /classify, `data` of /pooling, `score` of /score; JSON's null and texts are no numbers."""
    value = next(row[name] for name in ("probs", "score", "data") if name in row)
    values = value if isinstance(value, list) else [value]
    return [math.nan if not isinstance(number, int | float) else float(number) for number in values]


def _close(one: list[list[float]], other: list[list[float]], tolerance: float) -> bool:
    return all(
        len(row) == len(other_row) and all(abs(a - b) <= tolerance for a, b in zip(row, other_row, strict=True))
        for row, other_row in zip(one, other, strict=True)
    )


def _identity(model: ServedModel) -> tuple[str, str, int | None]:
    return model.name, _last_part(model.root), model.max_length


def _described(model: ServedModel) -> str:
    return f"{model.name!r} (from {model.root!r}, {model.max_length} tokens)"


def _last_part(name: str) -> str:
    """The same model may lie in different directories of different machines."""
    return PurePath(name).name
