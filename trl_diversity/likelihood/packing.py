# SPDX-License-Identifier: Apache-2.0
"""Pack prefixes and their continuations into padded batches for a causal language model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Branches:
    """
    A prefix and one or two texts that continue it, each as if the other were not there.

    Args:
        keys (`tuple[tuple[int, str], ...]`):
            What the probabilities of each continuation are filed under, such as `(row, "answer")`.
        prefix (`Sequence[int]`):
            Token ids of the prefix. At least one.
        first (`Sequence[int]`):
            Token ids of a continuation. At least one.
        second (`Sequence[int]`, *optional*, defaults to `()`):
            Token ids of another one.
    """

    keys: tuple[tuple[int, str], ...]
    prefix: Sequence[int]
    first: Sequence[int]
    second: Sequence[int] = ()

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Lengths of prefix, first and second continuation."""
        return len(self.prefix), len(self.first), len(self.second)


@dataclass(frozen=True)
class Batch:
    """
    Model inputs of a few rows: B rows of P prefix columns, F columns of first and S of second continuations.

    Prefixes are padded on the left and continuations on the right, so that the columns that predict a continuation
    are the same for every row: `logits_to_keep` can be an index.

    Args:
        input_ids (`torch.Tensor` of shape `(B, P + F + S)`, int64):
            Token ids.
        present (`torch.Tensor` of shape `(B, P + F + S)`, bool):
            Whether the column holds a token of the row.
        position_ids (`torch.Tensor` of shape `(B, P + F + S)`, int64):
            Positions; both continuations start after the prefix.
        sizes (`tuple[int, int, int]`):
            P, F and S.
    """

    input_ids: torch.Tensor
    present: torch.Tensor
    position_ids: torch.Tensor
    sizes: tuple[int, int, int]

    @property
    def predicting(self) -> list[int]:
        """The columns that predict a token: the last of the prefix, and all but the last of each continuation."""
        prefix, first, second = self.sizes
        return [*range(prefix - 1, prefix + first - 1), *range(prefix + first, prefix + first + second - 1)]

    def visible(self) -> torch.Tensor:
        """
        Which column may attend to which: `torch.Tensor` of shape `(B, 1, L, L)`, bool.

        Causal, without padding, and the second continuation does not see the first. Every column sees itself, so that
        no softmax runs over nothing.
        """
        prefix, first, second = self.sizes
        length = prefix + first + second
        allowed = torch.ones(length, length, dtype=torch.bool, device=self.input_ids.device).tril()
        allowed[prefix + first :, prefix : prefix + first] = False
        itself = torch.eye(length, dtype=torch.bool, device=self.input_ids.device)
        return ((allowed & self.present[:, None, :]) | itself)[:, None]


def micro_batches(rows: Sequence[Branches], tokens_per_forward: int) -> list[list[Branches]]:
    """
    Cut rows into batches of similar length, the longest first, none above `tokens_per_forward` padded tokens.

    A row that is longer than that is a batch of its own.
    """
    batches: list[list[Branches]] = []
    sizes = (0, 0, 0)
    for row in sorted(rows, key=lambda row: (-len(row), row.keys)):
        grown = _largest([sizes, row.sizes])
        if batches and (len(batches[-1]) + 1) * sum(grown) <= tokens_per_forward:
            batches[-1].append(row)
            sizes = grown
        else:
            batches.append([row])
            sizes = row.sizes
    return batches


def _largest(sizes: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    prefix, first, second = (max(part) for part in zip(*sizes, strict=True))
    return prefix, first, second


def pack(rows: Sequence[Branches], pad_token_id: int, device: torch.device | str) -> Batch:
    """Pad rows into one [`Batch`]."""
    prefix, first, second = sizes = _largest([row.sizes for row in rows])
    shape = (len(rows), sum(sizes))
    input_ids = torch.full(shape, pad_token_id, dtype=torch.long)
    present = torch.zeros(shape, dtype=torch.bool)
    position_ids = torch.zeros(shape, dtype=torch.long)
    for number, row in enumerate(rows):
        size = len(row.prefix)
        parts = ((prefix - size, row.prefix, 0), (prefix, row.first, size), (prefix + first, row.second, size))
        for begin, ids, position in parts:
            columns = slice(begin, begin + len(ids))
            input_ids[number, columns] = torch.tensor(list(ids), dtype=torch.long)
            present[number, columns] = True
            position_ids[number, columns] = torch.arange(position, position + len(ids))
    return Batch(input_ids.to(device), present.to(device), position_ids.to(device), sizes)


def token_logprobs(
    logits: torch.Tensor, columns: torch.Tensor, targets: torch.Tensor, chunk: int = 512
) -> torch.Tensor:
    """
    Log-probability of each target, in float32 whatever the dtype of the logits.

    Args:
        logits (`torch.Tensor` of shape `(B, K, V)`):
            Plain logits.
        columns (`torch.Tensor` of shape `(T,)`, int64):
            Which of the K columns predicts each of the T targets. One column may predict several.
        targets (`torch.Tensor` of shape `(B, T)`, int64):
            Token ids.
        chunk (`int`, *optional*, defaults to `512`):
            How many positions are turned into float32 at once.

    Returns:
        `torch.Tensor` of shape `(B, T)`, float32, nats.
    """
    flat = logits.flatten(0, 1)
    normalizer = torch.cat([part.float().logsumexp(-1) for part in flat.split(chunk)]).view(logits.shape[:2])
    rows = torch.arange(len(logits), device=logits.device)[:, None]
    return logits[rows, columns, targets].float() - normalizer[:, columns]


def read_probabilities(
    rows: Sequence[Branches], batch: Batch, logits: torch.Tensor
) -> dict[tuple[int, str], list[float]]:
    """
    Probability of every token of the continuations.

    Args:
        rows (`Sequence[Branches]`):
            The rows of the batch.
        batch (`Batch`):
            Their model inputs.
        logits (`torch.Tensor` of shape `(B, K, V)`):
            Plain logits at the columns `batch.predicting`.

    Returns:
        `dict[tuple[int, str], list[float]]`: for every key the probabilities of its tokens, in `[0, 1]` or NaN.
    """
    prefix, first, second = batch.sizes
    column = {place: number for number, place in enumerate(batch.predicting)}
    # The column before a continuation's first token is the last one of the prefix, for both continuations.
    before_first = range(prefix - 1, prefix + first - 1)
    before_second = [prefix - 1, *range(prefix + first, prefix + first + second - 1)][:second]
    columns = torch.tensor([column[place] for place in (*before_first, *before_second)], device=logits.device)
    targets = batch.input_ids[:, prefix:].to(logits.device)
    table: list[list[float]] = token_logprobs(logits, columns, targets).exp().clamp(max=1.0).cpu().tolist()
    found: dict[tuple[int, str], list[float]] = {}
    for row, values in zip(rows, table, strict=True):
        parts = (values[: len(row.first)], values[first : first + len(row.second)])
        found.update(zip(row.keys, parts, strict=False))
    return found


def additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask that is added to attention scores: 0 where visible, the lowest number of `dtype` elsewhere."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill(~visible, torch.finfo(dtype).min)
