# SPDX-License-Identifier: Apache-2.0
"""Reads the first text of a pair once for all its partners, where the pair classifier is a causal decoder."""

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch

from trl_diversity.equivalence.pair_encoding import batches_by_cost


# Every token attends to those before it, and the head reads the last one: the beginning does not depend on the rest.
_CAUSAL = ("LlamaForSequenceClassification", "Qwen2ForSequenceClassification", "Qwen3ForSequenceClassification")


class SharedFirstText:
    """
    A causal pair classifier that reads what pairs have in common at their beginning once.

    The logits are those that the classifier itself gives. In the last layer the feed-forward part computes the tokens
    that are read, and no others.

    Args:
        model (`torch.nn.Module`):
            A classifier that [`~SharedFirstText.accepts`].
        max_tokens (`int`):
            Most tokens of a batch, but at least one pair.
        batch_tokens (`int`):
            What a batch costs beside its tokens, in tokens.
    """

    def __init__(self, model: Any, max_tokens: int, batch_tokens: int):
        self.model = model
        self.max_tokens = max_tokens
        self.batch_tokens = batch_tokens
        self._decoder = getattr(model, model.base_model_prefix)
        parameters = inspect.signature(self._decoder.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._read = threading.local()  # a model may be run in several threads

    @staticmethod
    def accepts(model: Any) -> bool:
        """Whether keys and values of a first text can be kept for all its partners."""
        if type(model).__name__ not in _CAUSAL or not type(model).__module__.startswith("transformers."):
            return False
        if not getattr(model.config, "is_causal", True):  # a decoder that was made to look both ways
            return False
        layer_types = getattr(model.config, "layer_types", None) or ["full_attention"]
        return set(layer_types) == {"full_attention"}

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Within the context [`~SharedFirstText.logits`] may be called."""
        mlp = self._decoder.layers[-1].mlp

        def only_what_is_read(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor | None:
            columns = getattr(self._read, "columns", None)
            if columns is None:
                return None  # a whole pass of the classifier itself
            # One token of each row, `(batch, 1, hidden_size)`. The layer adds the result to all tokens of the row,
            # which is right for that one, and no other is read.
            return _picked(inputs[0], columns)[:, None]

        handle = mlp.register_forward_pre_hook(only_what_is_read)
        try:
            yield
        finally:
            handle.remove()

    def logits(self, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
        """
        Logits of pairs that begin alike: the shared tokens are read once, the rests behind copies of their cache.

        Args:
            pairs (`Sequence[Sequence[int]]`):
                Token ids of every pair, without padding.

        Returns:
            `torch.Tensor` of shape `(len(pairs), labels)`.
        """
        pad_token_id = self.model.config.get_text_config().pad_token_id
        read = [ids[: _last_read(ids, pad_token_id) + 1] for ids in pairs]
        shared = min(_common_length(read), min(map(len, read)) - 1)
        layers = self._keys_and_values(read[0][:shared]) if shared else []
        rests = [ids[shared:] for ids in read]
        logits: list[torch.Tensor] = [torch.empty(0)] * len(pairs)
        for batch in batches_by_cost([len(rest) for rest in rests], self.max_tokens, self.batch_tokens):
            scored = self._score([rests[index] for index in batch], layers, shared)
            for index, row in zip(batch, scored, strict=True):
                logits[index] = row
        return torch.stack(logits)

    def _keys_and_values(self, ids: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        cache = self._cache([], 1)
        self._run([ids], cache, 0, [0])
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _score(
        self, rests: Sequence[Sequence[int]], layers: list[tuple[torch.Tensor, torch.Tensor]], position: int
    ) -> torch.Tensor:
        """Logits `(len(rests), labels)` of rests that begin at `position`, behind the cached layers."""
        longest = max(map(len, rests))
        # Padded on the right, where a causal model does not look.
        ids = [[*rest, *[0] * (longest - len(rest))] for rest in rests]
        last = [len(rest) - 1 for rest in rests]
        return self.model.score(self._run(ids, self._cache(layers, len(rests)), position, last))

    def _cache(self, layers: list[tuple[torch.Tensor, torch.Tensor]], rows: int) -> Any:
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        for index, (keys, values) in enumerate(layers):
            cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), index)
        return cache

    def _run(self, ids: Sequence[Sequence[int]], cache: Any, position: int, read: Sequence[int]) -> torch.Tensor:
        """Hidden states `(batch, hidden_size)` in the columns to `read`, one of each row."""
        device = self.model.device
        columns, tokens = torch.tensor(read, device=device), torch.tensor(ids, device=device)
        positions = torch.arange(position, position + tokens.shape[1], device=device)[None]
        options = {self._cache_name: cache, "use_cache": True}
        self._read.columns = columns
        try:
            hidden = self._decoder(input_ids=tokens, position_ids=positions, **options).last_hidden_state
        finally:
            self._read.columns = None
        return _picked(hidden, columns)


def _picked(hidden: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """One column of each row, `(batch, hidden_size)`."""
    return hidden[torch.arange(len(hidden), device=hidden.device), columns]


def _last_read(ids: Sequence[int], pad_token_id: int | None) -> int:
    """Index of the token the head reads: the last that is no padding, as transformers has it."""
    return max((index for index, token in enumerate(ids) if token != pad_token_id), default=0)


def _common_length(rows: Sequence[Sequence[int]]) -> int:
    return sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*rows, strict=False)))
