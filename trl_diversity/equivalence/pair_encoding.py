# SPDX-License-Identifier: Apache-2.0
"""Turns pairs of texts into token ids, cutting both sides fairly where a pair is too long."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


# Fewer tokens a side would compare nothing.
_MINIMUM_BUDGET = 2


@dataclass(frozen=True)
class EncodedPair:
    """Token ids of one pair with its special tokens, without padding."""

    input_ids: list[int]
    token_type_ids: list[int]
    truncated: bool


def fair_lengths(first: int, second: int, budget: int) -> tuple[int, int]:
    """
    How many tokens of either text are kept, so that a long one cannot push the other one out.

    Each has a right to half of the budget; what one does not use, the other one gets. Swapping the texts swaps the
    result.

    Args:
        first (`int`):
            Tokens of the first text.
        second (`int`):
            Tokens of the second text.
        budget (`int`):
            Tokens for both together.

    Returns:
        `tuple[int, int]`: tokens kept of either text, at most `budget` together.
    """
    half = budget // 2
    if first + second <= budget:
        return first, second
    if first <= half:
        return first, budget - first
    if second <= half:
        return budget - second, second
    return half, half


def require_tokenizers_backend(tokenizer: Any) -> None:
    """
    Refuse a tokenizer that joins pairs in a way of its own.

    Raises:
        `ValueError`: if it is not backed by the `tokenizers` library.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{type(tokenizer).__name__} is not backed by the `tokenizers` library, which scoring pairs needs: "
            "convert it (a checkpoint with a tokenizer.json)"
        )


class PairEncoder:
    """
    Encodes each distinct text of a call once and joins pairs exactly as the tokenizer joins `tokenizer(a, b)`.

    Args:
        tokenizer (`PreTrainedTokenizerFast`):
            Must be backed by the `tokenizers` library. Its `truncation_side` decides which end of a text is cut.
        max_length (`int`, *optional*):
            Tokens of a pair, special tokens included. No limit by default.
        max_side_tokens (`int`, *optional*):
            Tokens of either text, special tokens excluded. No limit by default.
        pad_token_id (`int`, *optional*):
            A token that is left out at the end of a pair, for a model that would read it there. By default none.

    Raises:
        `ValueError`: if the tokenizer is not backed by `tokenizers`, or if a limit leaves no room for both texts.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int | None = None,
        max_side_tokens: int | None = None,
        pad_token_id: int | None = None,
    ):
        require_tokenizers_backend(tokenizer)
        if max_side_tokens is not None and max_side_tokens < 1:
            raise ValueError(f"max_side_tokens is {max_side_tokens!r}: it must be at least 1, or None for no limit")
        self.tokenizer = tokenizer
        self.max_side_tokens = max_side_tokens
        self.pad_token_id = pad_token_id
        self.budget: int | None = None
        if max_length is not None:
            self.budget = max_length - tokenizer.num_special_tokens_to_add(pair=True)
            if self.budget < _MINIMUM_BUDGET:
                raise ValueError(f"a maximum of {max_length} tokens a pair leaves no room for two texts: raise it")

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[EncodedPair]:
        """Encode pairs, in order."""
        backend = self.tokenizer.backend_tokenizer
        # Whoever used the tokenizer last may have left either switched on.
        backend.no_truncation()
        backend.no_padding()
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        whole = dict(zip(texts, backend.encode_batch(texts, add_special_tokens=False), strict=True))
        cut: dict[tuple[str, int], Any] = {}
        encoded = []
        for first, second in pairs:
            lengths = self._kept_lengths(len(whole[first]), len(whole[second]))
            sides = []
            for text, length in zip((first, second), lengths, strict=True):
                if length == len(whole[text]):
                    sides.append(whole[text])
                    continue
                if (text, length) not in cut:
                    cut[text, length] = self._cut(text, length)
                sides.append(cut[text, length])
            joined = backend.post_process(*sides, add_special_tokens=True)
            truncated = lengths != (len(whole[first]), len(whole[second]))
            kept = self._length_without_padding(joined.ids)
            encoded.append(EncodedPair(joined.ids[:kept], joined.type_ids[:kept], truncated))
        return encoded

    def _length_without_padding(self, ids: list[int]) -> int:
        return max((end for end, token in enumerate(ids, start=1) if token != self.pad_token_id), default=0)

    def _kept_lengths(self, first: int, second: int) -> tuple[int, int]:
        if self.max_side_tokens is not None:
            first, second = min(first, self.max_side_tokens), min(second, self.max_side_tokens)
        return (first, second) if self.budget is None else fair_lengths(first, second, self.budget)

    def _cut(self, text: str, length: int) -> Any:
        encoding = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        encoding.truncate(length, direction=self.tokenizer.truncation_side)
        return encoding


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """
    Sort pairs into batches of one size and of similar length, the longest first.

    Args:
        lengths (`Sequence[int]`):
            Tokens of every pair.
        batch_size (`int`):
            Pairs of a batch; the last may have fewer.

    Returns:
        `list[list[int]]`: the indices of each batch.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def batches_by_cost(lengths: Sequence[int], max_tokens: int, batch_tokens: int) -> list[list[int]]:
    """
    Sort pairs into batches so that padding and the cost of having many batches are least together.

    Every batch is a run of the pairs in order of their length, the longest first. A batch costs its tokens, padding
    included, plus `batch_tokens`.

    Args:
        lengths (`Sequence[int]`):
            Tokens of every pair.
        max_tokens (`int`):
            Most tokens of a batch, padding included, but at least one pair.
        batch_tokens (`int`):
            What a batch costs beside its tokens, in tokens.

    Returns:
        `list[list[int]]`: the indices of each batch.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    costs, starts = [0], [0]  # of the first 0, 1, 2, ... pairs: least cost, and where their last batch begins
    for end in range(1, len(order) + 1):
        best, best_start = costs[end - 1] + lengths[order[end - 1]], end - 1
        for start in range(end - 2, -1, -1):
            # Going down, pairs only get longer: once a batch is full it stays so.
            tokens = lengths[order[start]] * (end - start)
            if tokens > max_tokens:
                break
            if costs[start] + tokens < best:
                best, best_start = costs[start] + tokens, start
        costs.append(best + batch_tokens)
        starts.append(best_start)
    batches: list[list[int]] = []
    end = len(order)
    while end:
        batches.append(order[starts[end] : end])
        end = starts[end]
    return batches[::-1]


def pad_pairs(pairs: Sequence[EncodedPair], tokenizer: Any, device: Any) -> dict[str, Any]:
    """
    Pad pairs on the right to the longest of them.

    Returns:
        `dict[str, torch.Tensor]`: `input_ids`, `attention_mask` (1 = counts) and, where the model reads them,
        `token_type_ids`, each of shape `(len(pairs), longest)`, int64.
    """
    import torch

    longest = max(len(pair.input_ids) for pair in pairs)

    def padded(rows: list[list[int]], value: int) -> torch.Tensor:
        return torch.tensor([row + [value] * (longest - len(row)) for row in rows], device=device)

    features = {
        "input_ids": padded([pair.input_ids for pair in pairs], tokenizer.pad_token_id),
        "attention_mask": padded([[1] * len(pair.input_ids) for pair in pairs], 0),
    }
    if "token_type_ids" in tokenizer.model_input_names:
        features["token_type_ids"] = padded([pair.token_type_ids for pair in pairs], tokenizer.pad_token_type_id)
    return features
