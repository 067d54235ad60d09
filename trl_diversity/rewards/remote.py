# SPDX-License-Identifier: Apache-2.0
"""A quality reward from vLLM servers of a reward model."""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from trl_diversity.pooling_servers import PoolingServers, check_activation, read_values
from trl_diversity.rewards.conversation import conversation_text, ensure_pad_token, point_out_padding
from trl_diversity.served_model import ServedModel
from trl_diversity.server_errors import RefusedError


logger = logging.getLogger(__name__)

_NOT_FOUND = 404
# Asked of every server at its start; no two of them are alike.
_KNOWN_TEXTS = ("Name an animal. A cat.", "What is one and one? It is two, I think.", "no")


class RemoteRewardModel:
    """
    Raw scalar rewards from vLLM servers of a reward model: a sequence classifier with one label.

    A reward function for TRL, and an asynchronous one: several of them wait side by side. It gives what a local
    reward model would give in TRL (the logit, without an activation), up to rounding if the server has the same data
    type. As TRL does, messages of prompt and completion go through the reward model's chat template, and plain prompts
    and completions are joined as they are. Padding at the end of a text is not sent: transformers reads the last token
    that is none, vLLM the last one. What is too long is cut on the left, as by [`load_reward_model`]. Texts are
    tokenised here and share a few requests; a server that fails is stood in for by the others.

    Args:
        urls (`str` or `Sequence[str]`):
            Addresses such as `"http://localhost:8000"`, of servers with the same model and settings (`vllm serve
            MODEL --runner pooling`).
        model (`str`, *optional*):
            Hub name or directory of the reward model, here: the tokenizer comes from it, and the servers must serve
            it. By default what the servers say they have loaded.
        max_concurrency (`int`, *optional*, defaults to `16`):
            Most requests under way at a time, over all servers.
        timeout (`float`, *optional*, defaults to `60.0`):
            Seconds to wait for an answer.
        retries (`int`, *optional*, defaults to `3`):
            Further rounds over the servers; a request fails after `(retries + 1) * timeout` seconds at the latest.
        back_off (`float`, *optional*, defaults to `0.5`):
            Seconds before the second round; doubles with every round.
        rows_per_request (`int`, *optional*, defaults to `32`):
            Most texts in a request.
        tokenizer_name_or_path (`str`, *optional*):
            Where the tokenizer is. By default the model.
        chat_template_kwargs (`Mapping`, *optional*):
            Further arguments of the chat template.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run, here.

    Raises:
        `ConnectionError`: if no server can be reached.
        `ValueError`: if a server serves another model or no reward model, or an argument has an impossible value.

    Example:

    ```python
    trainer = DarlingTrainer(model=..., reward_funcs=RemoteRewardModel(["http://localhost:8000"]), args=...)
    ```

    In a configuration: `reward_funcs: ["http://localhost:8000,http://localhost:8001"]`, followed by `#` and the model
    if its tokenizer is not where the servers have it.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        model: str | None = None,
        *,
        max_concurrency: int = 16,
        timeout: float = 60.0,
        retries: int = 3,
        back_off: float = 0.5,
        rows_per_request: int = 32,
        tokenizer_name_or_path: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if rows_per_request < 1:
            raise ValueError(f"rows_per_request={rows_per_request}; expected at least 1")
        self.rows_per_request = rows_per_request
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self._tokenizer_name_or_path = tokenizer_name_or_path
        self._trust_remote_code = trust_remote_code
        self._tokenizer: Any = None
        self._known: list[list[int]] = []
        self.max_length: int | None = None
        self._pad_id: int | None = None
        self._begin_id: int | None = None
        self._said_cut = False
        self._lock = threading.Lock()  # a tokenizer is not for several threads at a time
        self._servers = PoolingServers(
            urls,
            model,
            self._probe,
            max_concurrency=max_concurrency,
            timeout=timeout,
            retries=retries,
            back_off=back_off,
        )
        self._servers.start()
        self.__name__ = PurePath(model or self._servers.served.root).name  # TRL logs `rewards/<name>`

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers, without user and password."""
        return self._servers.client.urls

    async def __call__(self, prompts: list, completions: list, **kwargs: Any) -> list[float]:
        """
        Score completions.

        Args:
            prompts (`list`), completions (`list`):
                Texts, or lists of messages.
            kwargs (*optional*):
                What else TRL hands to reward functions; `log_metric` is used.

        Returns:
            `list[float]`: the reward model's logit for every completion.

        Raises:
            `ConnectionError`: if no server answers in time; it names every URL and the cause.
            `ValueError`: if a server refuses the texts.
        """
        return await asyncio.to_thread(self.score, prompts, completions, kwargs.get("log_metric"))

    def score(
        self, prompts: Sequence[Any], completions: Sequence[Any], log_metric: Callable[[str, float], Any] | None = None
    ) -> list[float]:
        """The same as calling it, without an event loop."""
        rows, cut = self._tokenized([self._text(*pair) for pair in zip(prompts, completions, strict=True)])
        by_length = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        fair_share = -(-len(by_length) // len(self.urls))
        size = max(min(self.rows_per_request, fair_share), 1)
        batches = [by_length[start : start + size] for start in range(0, len(by_length), size)]
        replies = self._servers.client.map(lambda batch: self._ask([rows[index] for index in batch]), batches)
        rewards = [math.nan] * len(rows)
        for batch, values in zip(batches, replies, strict=True):
            for index, value in zip(batch, values, strict=True):
                rewards[index] = value
        self._report(cut, log_metric)
        return rewards

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._servers.client.close()

    def _ask(self, rows: list[list[int]]) -> list[float]:
        body = {"input": rows, "use_activation": False}
        try:
            values = self._servers.values("/classify", body, len(rows), sum(map(len, rows)))
        except ConnectionError as error:
            raise ConnectionError(f"no reward server scored {len(rows)} completions ({error})") from None
        return [value for (value,) in values]

    def _text(self, prompt: Any, completion: Any) -> str:
        with self._lock:
            return conversation_text(prompt, completion, self._tokenizer, self.chat_template_kwargs)

    def _tokenized(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """
        Token ids without padding at the end, and how many texts were cut on the left.

        A text without any token is one padding token, as in a batch.
        """
        if not texts:
            return [], 0
        with self._lock:
            rows = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        is_long = [self.max_length is not None and len(ids) > self.max_length for ids in rows]
        rows = [self._end_of(ids) if long else ids for ids, long in zip(rows, is_long, strict=True)]
        for ids in rows:
            while len(ids) > 1 and ids[-1] == self._pad_id:
                ids.pop()
        return [ids or [self._pad_id or 0] for ids in rows], sum(is_long)

    def _end_of(self, ids: list[int]) -> list[int]:
        """As much of the end as the servers read, where the reward is read; a first token that begins texts stays."""
        assert self.max_length is not None
        if ids[0] == self._begin_id and self.max_length > 1:
            return [ids[0], *ids[len(ids) - self.max_length + 1 :]]
        return ids[len(ids) - self.max_length :]

    def _report(self, cut: int, log_metric: Callable[[str, float], Any] | None) -> None:
        if log_metric is not None:
            log_metric("quality/truncated", float(cut))
        if cut and not self._said_cut:
            self._said_cut = True
            logger.warning(
                "%d conversations are longer than the %s tokens that the reward servers read, and were cut on the "
                "left. Start the servers with a larger `--max-model-len` if the model can read more. Said once; the "
                "number is logged as `quality/truncated`.",
                cut,
                self.max_length,
            )

    def _probe(self, served: ServedModel, ask: Callable[..., Any], url: str) -> list[list[float]]:
        """Logits of known texts from one server, which show that it serves a reward model."""
        if self._tokenizer is None:
            self._prepare(served)
        body = {"model": served.name, "input": self._known}
        tokens = sum(map(len, self._known))
        answers = []
        for option in (False, True):
            try:
                reply = ask("POST", "/classify", {**body, "use_activation": option})
            except RefusedError as error:
                if error.status != _NOT_FOUND:
                    raise
                raise ValueError(
                    f"the server at {url} serves {served.name!r}, which is no reward model there. Start it with `vllm "
                    "serve MODEL --runner pooling`"
                ) from error
            answers.append(read_values(reply, len(self._known), tokens, url))
        raw, activated = answers
        if len(raw[0]) != 1:
            raise ValueError(
                f"the model {served.name!r} at {url} has {len(raw[0])} labels; a reward model has one, its reward"
            )
        check_activation(raw, activated, url)
        return raw

    def _prepare(self, served: ServedModel) -> None:
        from transformers import AutoConfig, AutoTokenizer

        name = self._tokenizer_name_or_path or self._servers.model or served.root
        try:
            shared = {"trust_remote_code": self._trust_remote_code}
            self._tokenizer = AutoTokenizer.from_pretrained(name, **shared)
            config: Any = AutoConfig.from_pretrained(self._servers.model or served.root, **shared)
        except OSError as error:
            raise ValueError(
                f"the tokenizer of {name!r}, which the servers serve, cannot be loaded here ({error}). Give the Hub "
                "name or directory of the reward model as `model` (in a configuration after the URLs and a #)"
            ) from error
        ensure_pad_token(self._tokenizer)
        point_out_padding(self._tokenizer, name)
        self._pad_id = self._tokenizer.pad_token_id
        self._begin_id = config.get_text_config().bos_token_id
        self.max_length = served.max_length
        self._known, _ = self._tokenized(_KNOWN_TEXTS)


def remote_reward_from(
    name: str, trust_remote_code: bool = False, chat_template_kwargs: Mapping[str, Any] | None = None
) -> RemoteRewardModel:
    """
    The reward function of a name in a configuration: URLs separated by commas, then perhaps `#` and the model.

    Raises:
        `ValueError`: if an address is not complete, or a server does not serve the model.
        `ConnectionError`: if no server can be reached.
    """
    urls, _, model = name.partition("#")
    return RemoteRewardModel(
        [url.strip() for url in urls.split(",") if url.strip()],
        model or None,
        chat_template_kwargs=chat_template_kwargs,
        trust_remote_code=trust_remote_code,
    )


def is_remote_reward(name: str) -> bool:
    """Whether a name in a configuration is an address."""
    return name.startswith(("http://", "https://"))
