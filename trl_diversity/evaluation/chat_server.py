# SPDX-License-Identifier: Apache-2.0
"""Draws completions from servers with OpenAI's chat interface, such as vLLM's."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from trl_diversity.evaluation.generation import Prompt, as_messages, secret_key
from trl_diversity.evaluation.sampling import Sampling
from trl_diversity.server_client import ServerClient
from trl_diversity.server_errors import RefusedError


_TIMEOUT_SECONDS = 1800.0  # many long completions of one prompt
_RETRIES = 5


class ChatServer:
    """
    Draws with `POST /v1/chat/completions`.

    A server that is down or overloaded is asked again with growing waits (see [`ServerClient`]). vLLM, which says so
    where it lists its models, is always told `top_k`, `min_p` and `repetition_penalty`: what it is not told it takes
    from the checkpoint's own generation settings. Other servers get the first two only where they differ from "off",
    since OpenAI's own refuses them. If a server gives fewer completions than asked (some know no `n`), the rest is
    asked for.

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
        chat_template_kwargs (`Mapping`, *optional*):
            Further arguments of the chat template, such as `{"enable_thinking": False}`. Servers like vLLM read them.

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
        chat_template_kwargs: Mapping[str, Any] | None = None,
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
        self._chat_template_kwargs = dict(chat_template_kwargs or {})
        self._is_vllm: bool | None = None  # not asked yet

    def __call__(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[str]]:
        if not prompts:
            return []
        if self._is_vllm is None:
            self._ask_for_models()
        return self._client.map(partial(self._draw, sampling=sampling), prompts)

    def _ask_for_models(self) -> None:
        """Find out which model to name, and what kind of server this is."""
        try:
            reply = self._client.call("GET", f"{self._prefix}/models")
            owners = {entry["id"]: entry.get("owned_by") for entry in reply["data"]}
        except RefusedError:  # an interface need not list its models
            if self._model is None:
                raise
            owners = {}
        except (AttributeError, KeyError, TypeError):
            raise ValueError(f"the server at {self.url} lists its models in another form: {reply!r:.200}") from None
        if self._model is None:
            if len(owners) != 1:
                raise ValueError(f"the server at {self.url} has the models {list(owners)}: name one with `model`.")
            (self._model,) = owners
        self._is_vllm = "vllm" in owners.values()

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
            limits = {"top_k": sampling.top_k, "min_p": sampling.min_p}
            if self._is_vllm:
                body |= {**limits, "repetition_penalty": 1.0}
            else:
                body |= {name: value for name, value in limits.items() if value}
            if self._chat_template_kwargs:
                body["chat_template_kwargs"] = self._chat_template_kwargs
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
