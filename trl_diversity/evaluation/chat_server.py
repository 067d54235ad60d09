# SPDX-License-Identifier: Apache-2.0
"""Draws completions from servers with OpenAI's chat interface, such as vLLM's."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from trl_diversity.evaluation.generation import Prompt, as_messages, secret_key
from trl_diversity.evaluation.sampling import Sampling
from trl_diversity.server_client import ServerClient


_TIMEOUT_SECONDS = 1800.0  # many long completions of one prompt
_RETRIES = 5


class ChatServer:
    """
    Draws with `POST /v1/chat/completions`.

    A server that is down or overloaded is asked again with growing waits (see [`ServerClient`]). `top_k` and `min_p`
    are sent only where they differ from "off", since OpenAI's own server refuses them. If it gives fewer completions
    than asked (some servers know no `n`), the rest is asked for.

    Args:
        base_url (`str`):
            Address such as `"http://localhost:8000/v1"`. User and password in it are sent, and never shown.
        model (`str`, *optional*):
            Name under which the model is served. By default the server is asked for the only one.
        max_concurrency (`int`, *optional*, defaults to 16):
            Requests under way at a time.
        retries (`int`, *optional*, defaults to 5):
            Further attempts after the first one.
        back_off (`float`, *optional*, defaults to 0.5):
            Seconds before the first of them; the wait doubles each time.

    Raises:
        `ValueError`: if the URL is incomplete.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        max_concurrency: int = 16,
        retries: int = _RETRIES,
        back_off: float = 0.5,
    ):
        key = secret_key()
        self._client = ServerClient(
            base_url,
            max_concurrency=max_concurrency,
            timeout=_TIMEOUT_SECONDS,
            retries=retries,
            back_off=back_off,
            headers={"Authorization": f"Bearer {key}"} if key and "@" not in urlsplit(base_url).netloc else {},
        )
        self.url = self._client.urls[0]
        # An address without a path is a server's; with one it is what "/chat/completions" follows, as OpenAI has it
        path = urlsplit(base_url).path.rstrip("/")
        self._prefix = "" if path.removesuffix("/v1") and not path.endswith("/v1") else "/v1"
        self._model = model

    def __call__(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[str]]:
        if not prompts:
            return []
        if self._model is None:
            self._model = self._only_model()
        return self._client.map(partial(self._draw, sampling=sampling), prompts)

    def _only_model(self) -> str:
        reply = self._client.call("GET", f"{self._prefix}/models")
        try:
            names = [entry["id"] for entry in reply["data"]]
        except (KeyError, TypeError):
            raise ValueError(f"the server at {self.url} lists its models in another form: {reply!r:.200}") from None
        if len(names) != 1:
            raise ValueError(f"the server at {self.url} has the models {names}: name one with `model`.")
        return names[0]

    def _draw(self, prompt: Prompt, sampling: Sampling) -> list[str]:
        completions: list[str] = []
        while len(completions) < sampling.num_generations:
            body: dict[str, Any] = {
                "model": self._model,
                "messages": as_messages(prompt),
                "n": sampling.num_generations - len(completions),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_tokens,
                "seed": sampling.seed + len(completions),
            }
            body |= {name: getattr(sampling, name) for name in ("top_k", "min_p") if getattr(sampling, name)}
            completions += _texts(self._client.call("POST", f"{self._prefix}/chat/completions", body), self.url)
        return completions[: sampling.num_generations]


def _texts(reply: Any, url: str) -> list[str]:
    try:
        texts = [choice["message"]["content"] or "" for choice in reply["choices"]]
    except (KeyError, TypeError):
        raise ValueError(f"the server at {url} replied in another form than OpenAI's: {reply!r:.200}") from None
    if not texts:
        raise ValueError(f"the server at {url} gave no completion.")
    return texts
