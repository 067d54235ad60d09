# SPDX-License-Identifier: Apache-2.0
"""Draws completions from a server with OpenAI's chat interface, such as vLLM's."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from trl_diversity.evaluation.generation import Prompt, as_messages, secret_key
from trl_diversity.evaluation.sampling import Sampling


_TEMPORARY = (408, 429, 500, 502, 503, 504)
_TIMEOUT_SECONDS = 1800.0  # many long completions of one prompt
_RETRIES = 5
_LONGEST_WAIT_SECONDS = 30.0


class ChatServer:
    """
    Draws with `POST <base_url>/chat/completions`.

    A server that is down or overloaded is asked again with growing waits. `top_k` and `min_p` are sent only where they
    differ from "off", since OpenAI's own server refuses them. If it gives fewer completions than asked (some servers
    know no `n`), the rest is asked for.

    Args:
        base_url (`str`):
            Address such as `"http://localhost:8000/v1"`. User and password in it are sent, and never shown.
        model (`str`, *optional*):
            Name under which the model is served. By default the server is asked for the only one.
        max_concurrency (`int`, *optional*, defaults to 16):
            Requests under way at a time.
        back_off (`float`, *optional*, defaults to 0.5):
            Seconds before the first retry; it doubles each time.

    Raises:
        `ValueError`: if the URL is incomplete.
    """

    def __init__(self, base_url: str, model: str | None = None, max_concurrency: int = 16, back_off: float = 0.5):
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"`base_url` is {base_url.rpartition('@')[2]!r}; give one such as http://localhost:8000/v1."
            )
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._auth = (parts.username, parts.password or "") if parts.username else None
        self.max_concurrency = max_concurrency
        self.back_off = back_off
        self._model = model
        self._http: Any = None

    def __call__(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[str]]:
        if not prompts:
            return []
        self._connect()
        with ThreadPoolExecutor(min(self.max_concurrency, len(prompts))) as executor:
            return list(executor.map(lambda prompt: self._draw(prompt, sampling), prompts))

    def _connect(self) -> None:
        if self._http is None:
            import httpx

            key = secret_key()
            headers = {"Authorization": f"Bearer {key}"} if key and self._auth is None else {}
            self._http = httpx.Client(headers=headers, auth=self._auth, timeout=_TIMEOUT_SECONDS)
        if self._model is None:
            names = [entry["id"] for entry in self._call("GET", "/models")["data"]]
            if len(names) != 1:
                raise ValueError(f"the server at {self.url} has the models {names}: name one with `model`.")
            self._model = names[0]

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
            completions += self._texts(self._call("POST", "/chat/completions", body))
        return completions[: sampling.num_generations]

    def _texts(self, reply: Any) -> list[str]:
        try:
            texts = [choice["message"]["content"] or "" for choice in reply["choices"]]
        except (KeyError, TypeError):
            raise ValueError(
                f"the server at {self.url} replied in another form than OpenAI's: {reply!r:.200}"
            ) from None
        if not texts:
            raise ValueError(f"the server at {self.url} gave no completion.")
        return texts

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

        retrying = Retrying(
            stop=stop_after_attempt(_RETRIES + 1),
            wait=wait_exponential(multiplier=self.back_off, max=_LONGEST_WAIT_SECONDS),
            retry=retry_if_exception_type(ConnectionError),
            reraise=True,
        )
        return retrying(self._try, method, path, body)

    def _try(self, method: str, path: str, body: Any) -> Any:
        import httpx

        try:
            response = self._http.request(method, self.url + path, json=body)
        except httpx.TransportError as error:
            raise ConnectionError(f"{self.url} does not answer: {type(error).__name__} {error}".rstrip()) from None
        cause = f"HTTP {response.status_code} {response.text[:300]}".rstrip()
        if response.status_code in _TEMPORARY:
            raise ConnectionError(f"{self.url} does not answer: {cause}")
        if response.status_code != 200:
            raise ValueError(f"{self.url} refused {method} {path}: {cause}")
        try:
            return response.json()
        except ValueError:
            raise ValueError(f"{self.url} replied with no JSON: {response.text[:100]!r}") from None
