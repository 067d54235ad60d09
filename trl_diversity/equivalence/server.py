# SPDX-License-Identifier: Apache-2.0
"""An equivalence model that asks vLLM servers of a pair classifier."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from trl_diversity.equivalence.loading import RELEASED_MODELS, read_calibration, require_plain_pairs, resolve_threshold
from trl_diversity.equivalence.pad_token import pad_token
from trl_diversity.equivalence.pair_encoding import EncodedPair, PairEncoder
from trl_diversity.equivalence.server_route import Route, find_route, fit_pairs
from trl_diversity.pooling_servers import PoolingServers, logits_of, sigmoid
from trl_diversity.served_model import ServedModel


logger = logging.getLogger(__name__)

DEFAULT_THRESHOLD = 0.5
_REQUEST_TOKENS = 32_768  # most tokens of a request, so that a server answers in seconds
_NO_LIMIT = 10**9  # a tokenizer without a limit of its own reports a huge number
# Asked of every server at its start: no two of them have the same meaning or the same length.
_KNOWN_PAIRS = (
    ("the cat sat on the mat", "a cat was sitting on a mat"),
    ("the answer is yes", "no"),
    ("blue", "the river is green and not blue"),
)


class ServerEquivalence:
    """
    Probability that two completions mean the same, from vLLM servers of a pair classifier with one or two labels.

    The same probability as [`CrossEncoderEquivalence`] gives with the same model (up to rounding, if the server has
    the same data type): pairs are tokenised and cut here, the servers are asked for logits, and the activation and
    the checkpoint's temperature are applied here. Pairs are sorted by length, many go into one request, and several
    requests are under way at a time over all servers, each at the least loaded one. Equal pairs of a call are asked
    once. A server that fails is stood in for by the others; a pair gets exactly one score, or the call fails.

    vLLM's `/classify` drops token types, so a classifier that reads them (BERT) is asked through `/score`, which
    needs one label. With two labels it is refused: `trl-diversity serve-classifier` serves such a checkpoint as its
    exact equivalent with one label.

    Args:
        urls (`str` or `Sequence[str]`):
            Addresses such as `"http://localhost:8000"`, of servers with the same model and settings (`vllm serve
            MODEL --runner pooling`).
        model (`str`, *optional*):
            Hub name or directory of the classifier, here: tokenizer, threshold and temperature come from it, and the
            servers must serve it. Also one of the short names of [`load_equivalence_model`]. By default what the
            servers say they have loaded.
        threshold (`float`, *optional*):
            Probability in `[0, 1]` above which two texts are one cluster. By default the checkpoint's own, else 0.5.
        max_concurrency (`int`, *optional*, defaults to `16`):
            Most requests under way at a time, over all servers.
        timeout (`float`, *optional*, defaults to `60.0`):
            Seconds to wait for an answer.
        retries (`int`, *optional*, defaults to `3`):
            Further rounds over the servers; a request fails after `(retries + 1) * timeout` seconds at the latest.
        back_off (`float`, *optional*, defaults to `0.5`):
            Seconds before the second round; doubles with every round.
        pairs_per_request (`int`, *optional*, defaults to `64`):
            Most pairs in a request.
        both_orders (`bool`, *optional*, defaults to `False`):
            Average the scores of `(a, b)` and `(b, a)`. Twice the cost.
        max_side_tokens (`int`, *optional*):
            Tokens that are read of either text, special tokens excluded. By default only the length of the model and
            of the server limits a pair.
        tokenizer_name_or_path (`str`, *optional*):
            Where the tokenizer is. By default the model.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run, here.

    Raises:
        `ConnectionError`: if no server can be reached.
        `ValueError`: if a server serves another model, or one that cannot be asked exactly, or an argument has an
            impossible value.
    """

    is_remote = True  # the trainer may compute while this waits

    def __init__(
        self,
        urls: str | Sequence[str],
        model: str | None = None,
        threshold: float | None = None,
        *,
        max_concurrency: int = 16,
        timeout: float = 60.0,
        retries: int = 3,
        back_off: float = 0.5,
        pairs_per_request: int = 64,
        both_orders: bool = False,
        max_side_tokens: int | None = None,
        tokenizer_name_or_path: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if pairs_per_request < 1:
            raise ValueError(f"pairs_per_request={pairs_per_request}; expected at least 1")
        released = RELEASED_MODELS.get(model or "")
        if released is not None:
            model = released.name_or_path
            threshold = released.threshold if threshold is None else threshold
            max_side_tokens = max_side_tokens or released.options.get("max_side_tokens")
            tokenizer_name_or_path = tokenizer_name_or_path or released.options.get("tokenizer_name_or_path")
        self.pairs_per_request = pairs_per_request
        self.both_orders = both_orders
        self._tokenizer_name_or_path = tokenizer_name_or_path
        self._max_side_tokens = max_side_tokens
        self._trust_remote_code = trust_remote_code
        self._encoder: PairEncoder | None = None
        self._route = Route("/classify", 2)
        self._gives_logits = True
        self._statistics: Counter[str] = Counter()
        self._said_truncated = False
        self._servers = PoolingServers(
            urls,
            model,
            self._probe,
            max_concurrency=max_concurrency,
            timeout=timeout,
            retries=retries,
            back_off=back_off,
        )
        served = self._servers.start()
        self._servers.client.pop_statistics()  # what the start took belongs to no step
        checkpoint_threshold, self.temperature = read_calibration(self._config)
        self.threshold = resolve_threshold(threshold, checkpoint_threshold, DEFAULT_THRESHOLD, served.name)

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers, without user and password."""
        return self._servers.client.urls

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        """
        Score pairs of completions.

        Args:
            pairs (`list[tuple[str, str]]`):
                Pairs of texts to compare.
            prompts (`list[str]`, *optional*):
                Not read: the classifier sees the two completions alone.

        Returns:
            `list[float]`: the probability in `[0, 1]` that the two mean the same, for every pair in order.

        Raises:
            `ConnectionError`: if no server answers in time; it names every URL and the cause.
            `ValueError`: if a server refuses the pairs.
        """
        asked = [*pairs, *((second, first) for first, second in pairs)] if self.both_orders else pairs
        distinct = list(dict.fromkeys(asked))
        score = dict(zip(distinct, self._score(distinct), strict=True))
        if not self.both_orders:
            return [score[pair] for pair in pairs]
        return [(score[first, second] + score[second, first]) / 2 for first, second in pairs]

    def pop_statistics(self) -> dict[str, int]:
        """
        Counts since the last call, then cleared: `truncated_pairs`, `server_pairs` (asked of the servers),
        `server_requests` and `server_failures` (requests that had to be asked again).
        """
        statistics = {name: self._statistics[name] for name in ("truncated_pairs", "server_pairs")}
        self._statistics.clear()
        return statistics | self._servers.client.pop_statistics()

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._servers.client.close()

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        if not pairs:
            return []
        assert self._encoder is not None
        encoded = self._encoder(pairs)
        self._count(encoded)
        if self._route.path == "/score":  # it takes texts: those that are too long are cut as texts
            pairs, encoded = fit_pairs(pairs, encoded, self._encoder)
        encoded = [code if code.input_ids else self._nothing() for code in encoded]
        batches = self._batches([len(pair.input_ids) for pair in encoded])
        replies = self._servers.client.map(
            lambda batch: self._ask([pairs[index] for index in batch], [encoded[index] for index in batch]), batches
        )
        scores = [math.nan] * len(pairs)
        for batch, reply in zip(batches, replies, strict=True):
            for index, value in zip(batch, reply, strict=True):
                scores[index] = value
        return scores

    def _batches(self, lengths: list[int]) -> list[list[int]]:
        """Indices of the pairs of each request: of similar length, and enough requests for all servers."""
        fair_share = math.ceil(len(lengths) / len(self.urls))
        size = min(self.pairs_per_request, fair_share)
        batches: list[list[int]] = []
        longest = 0  # of the last batch: its first
        for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
            if not batches or len(batches[-1]) == size or (len(batches[-1]) + 1) * longest > _REQUEST_TOKENS:
                batches.append([])
                longest = lengths[index]
            batches[-1].append(index)
        return batches

    def _ask(self, pairs: list[tuple[str, str]], encoded: list[EncodedPair]) -> list[float]:
        """Probabilities of the pairs of one request."""
        body = self._route.body(pairs, encoded)
        tokens = sum(len(pair.input_ids) for pair in encoded)
        try:
            rows = self._servers.values(self._route.path, body, len(pairs), tokens)
        except ConnectionError as error:
            raise ConnectionError(f"no server judged {len(pairs)} pairs ({error})") from None
        return [self._probability(row) for row in rows]

    def _probability(self, values: list[float]) -> float:
        """Probability of "same" from what the server gives for one pair."""
        logits = values if self._gives_logits else logits_of(values)
        logit = logits[0] if len(logits) == 1 else logits[1] - logits[0]
        return sigmoid(logit / self.temperature)

    def _nothing(self) -> EncodedPair:
        """Two empty texts where the tokenizer adds no token of its own: padding, since a server needs a token."""
        assert self._encoder is not None
        tokenizer = self._encoder.tokenizer
        known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        return EncodedPair([next(token for token in known if token is not None)], [0], False)

    def _count(self, encoded: list[EncodedPair]) -> None:
        truncated = sum(pair.truncated for pair in encoded)
        self._statistics.update(server_pairs=len(encoded), truncated_pairs=truncated)
        if truncated and not self._said_truncated:
            self._said_truncated = True
            logger.warning(
                "%d pairs are longer than the pair classifier reads: texts that differ only beyond that count as the "
                "same. Compare the end or the answer of a completion (`diversity_text`). Said once; the number is "
                "logged as `diversity/truncated_pairs`.",
                truncated,
            )

    def _probe(self, served: ServedModel, ask: Any, url: str) -> list[list[float]]:
        """Logits of known pairs from one server, which show that it can be asked, and how."""
        if self._encoder is None:
            self._prepare(served)
        self._route, self._gives_logits, logits = find_route(self._config, served, *self._known, ask, url)
        return logits

    def _prepare(self, served: ServedModel) -> None:
        """Load tokenizer and config of the model that is served."""
        from transformers import AutoConfig, AutoTokenizer

        name = self._servers.model or served.root
        shared = {"trust_remote_code": self._trust_remote_code}
        try:
            self._config: Any = AutoConfig.from_pretrained(name, **shared)
            tokenizer: Any = AutoTokenizer.from_pretrained(self._tokenizer_name_or_path or name, **shared)
        except OSError as error:
            raise ValueError(
                f"the tokenizer of {name!r}, which the servers serve, cannot be loaded here ({error}). Give the Hub "
                "name or directory of the classifier as `model` (`partition_model` in a configuration)"
            ) from error
        require_plain_pairs(name)
        limits = (served.max_length, tokenizer.model_max_length)
        known = [limit for limit in limits if limit is not None and limit < _NO_LIMIT]
        # A server reads the last token of a pair; a decoder's own head, as in training, the last that pads nothing.
        pad = pad_token(tokenizer, range(self._config.get_text_config().vocab_size))
        pad_token_id = None if pad is None else tokenizer.convert_tokens_to_ids(pad)
        self._encoder = PairEncoder(tokenizer, min(known, default=None), self._max_side_tokens, pad_token_id)
        # Once: a tokenizer is not for several threads at a time
        self._known = fit_pairs(list(_KNOWN_PAIRS), self._encoder(_KNOWN_PAIRS), self._encoder)
