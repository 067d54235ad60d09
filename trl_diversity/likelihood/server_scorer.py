# SPDX-License-Identifier: Apache-2.0
"""
Per-token probabilities of answers from a running vLLM server, such as the one that generates for the trainer.

The requests and replies follow what vLLM 0.31 and 0.32 were seen to send. The tests use a stand-in for that server.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trl_diversity.likelihood.server_replies import Text, read_reply
from trl_diversity.likelihood.splice import ScoringRow
from trl_diversity.served_model import served_model
from trl_diversity.server_client import ServerClient
from trl_diversity.server_errors import NoReplyError


if TYPE_CHECKING:
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
            Further rounds over the servers after the first one. A request is given up after
            `(retries + 1) * timeout` seconds.
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
        for name, count in {"rows_per_request": rows_per_request, "max_length": max_length}.items():
            if count is not None and count < 1:
                raise ValueError(f"{name}={count}; expected at least 1")
        self._client = ServerClient(
            urls,
            max_concurrency=max_concurrency,
            timeout=timeout,
            retries=retries,
            back_off=back_off,
            headers=headers,
        )
        self.model = model
        self.max_length = max_length
        self.rows_per_request = rows_per_request
        self._name = model or ""
        self._is_described = model is not None and max_length is not None

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers, without user and password."""
        return self._client.urls

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
        asked = [texts for texts in requests if texts]
        replies = self._client.map(self._ask, asked)
        found = {
            (text.row, text.name): probabilities
            for texts, reply in zip(asked, replies, strict=True)
            for text, probabilities in zip(texts, reply, strict=True)
        }
        return [
            RowScores(malformed="too_long")
            if index in too_long
            else RowScores(found.get((index, "answer"), ()), found.get((index, "reference"), ()))
            for index in range(len(rows))
        ]

    def close(self) -> None:
        """Close the connections. Another call of `score` opens new ones."""
        self._client.close()

    def _fits(self, row: ScoringRow) -> bool:
        longest = len(row.prefix_ids) + max(len(row.answer_ids), len(row.reference_ids))
        return self.max_length is None or longest <= self.max_length

    def _describe(self) -> None:
        """Ask once for the name of the model and its length, as far as they were not given."""
        if self._is_described:
            return
        try:
            self._name, served = self._client.call("GET", "/v1/models", read=self._read_model)
        except NoReplyError as failure:
            raise ConnectionError(f"no vLLM server told its model ({failure})") from None
        if served is not None:
            self.max_length = min(served - 1, self.max_length or served)
        self._is_described = True

    def _read_model(self, reply: object, url: str) -> tuple[str, int | None]:
        model = served_model(reply, self.model, url)
        return model.name, model.max_length

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
            return self._client.call(
                "POST",
                "/v1/completions",
                body,
                read=lambda reply, url: read_reply(reply, texts, url),
                retry_server_errors=patient,
            )
        except NoReplyError as failure:
            if not failure.is_server_error:
                raise ConnectionError(f"no vLLM server scored {len(texts)} texts ({failure})") from None
            if len(texts) == 1:
                logger.warning(
                    "the %s of a row has no likelihood: the server fails on it (%s)", texts[0].name, failure
                )
                return [texts[0].nan()]
            # One log-probability that is not finite makes vLLM fail on all that share its request.
            return [self._ask([text], patient=False)[0] for text in texts]


def _texts(index: int, row: ScoringRow) -> list[Text]:
    """The prompts of a row: none for a text without a token to score."""
    parts = (("answer", row.answer_ids, row.answer_lead), ("reference", row.reference_ids, row.reference_lead))
    return [
        Text(index, name, (*row.prefix_ids, *ids), len(row.prefix_ids) + lead)
        for name, ids, lead in parts
        if len(ids) > lead
    ]
