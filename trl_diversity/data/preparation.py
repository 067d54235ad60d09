# SPDX-License-Identifier: Apache-2.0
"""From a stream of published rows to a seeded sample of prompts, with counts of what was dropped and why."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from trl_diversity.data.prompt_lengths import prompt_token_counts
from trl_diversity.data.sources import Kept, Source


DUPLICATE = "duplicate"
TOO_LONG = "too many tokens"
_BATCH = 512


@dataclass
class Preparation:
    """
    The outcome of [`prepare`].

    Attributes:
        rows (`list[dict]`):
            Rows with the column `prompt` (one user message) and the source's others, in a seeded order.
        read (`int`):
            Rows that were read.
        dropped (`dict[str, int]`):
            Rows by the first reason why they were dropped.
        not_sampled (`int`):
            Rows that could have been taken. `read` is the sum of all three.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    read: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    not_sampled: int = 0


def prepare(
    stream: Iterable[Mapping[str, Any]],
    source: Source,
    *,
    tokenizer: Any = None,
    max_prompt_tokens: int | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    language: str = "English",
) -> Preparation:
    """
    Filter, de-duplicate and sample a stream of rows, holding no more than the sample in memory.

    A row's place in the sample is the hash of the seed and its text: the sample does not depend on the order of the
    rows, and a longer data set changes only what its new rows displace.

    Args:
        stream (`Iterable`):
            Rows with the source's columns.
        source ([`Source`]):
            What the rows are.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            The policy's. Needed for `max_prompt_tokens`.
        max_prompt_tokens (`int`, *optional*):
            Prompts with more tokens, the chat template's included, are dropped, never cut.
        num_samples (`int`, *optional*):
            Rows to keep. All by default.
        seed (`int`, *optional*, defaults to `0`):
            Of the sample and of the order.
        language (`str`, *optional*, defaults to `"English"`):
            Kept where the source tells languages apart; `"all"` for any.

    Returns:
        [`Preparation`].

    Raises:
        `KeyError`: if a row lacks a column of the source.
        `ValueError`: if there is a limit and no tokenizer.
    """
    if max_prompt_tokens is not None and tokenizer is None:
        raise ValueError(
            f"`max_prompt_tokens={max_prompt_tokens}` is counted with the policy's tokenizer: name a model."
        )
    result, dropped = Preparation(), Counter[str]()
    sample: list[tuple[int, int, dict[str, Any]]] = []  # a heap whose first entry is the next to be displaced
    for batch in _batches(_selected(stream, source, language, result, dropped)):
        prompts = [[{"role": "user", "content": kept.text}] for kept in batch]
        counts = [0] * len(batch) if max_prompt_tokens is None else prompt_token_counts(prompts, tokenizer)
        for kept, prompt, tokens in zip(batch, prompts, counts, strict=True):
            if max_prompt_tokens is not None and tokens > max_prompt_tokens:
                dropped[TOO_LONG] += 1
                continue
            taken = len(sample) + result.not_sampled  # a number of its own, so that no two entries are equal
            entry = (-_digest(f"{seed}\n{kept.text}"), taken, {"prompt": prompt, **kept.columns})
            if num_samples is None or len(sample) < num_samples:
                heapq.heappush(sample, entry)
            else:
                result.not_sampled += 1
                heapq.heappushpop(sample, entry)
    result.rows = [row for *_, row in sorted(sample, key=lambda entry: -entry[0])]
    result.dropped = dict(sorted(dropped.items()))
    return result


def _selected(
    stream: Iterable[Mapping[str, Any]], source: Source, language: str, result: Preparation, dropped: Counter[str]
) -> Iterator[Kept]:
    seen: set[int] = set()  # 8 bytes of a hash a row: a chance of one in 10^7 that a million rows lose one
    for row in stream:
        result.read += 1
        if missing := [column for column in source.columns if column not in row]:
            raise KeyError(
                f"{source.name} needs the column {missing[0]!r}; row {result.read - 1} has only "
                f"{', '.join(map(repr, row))}."
            )
        kept = source.select(row, language)
        if isinstance(kept, str):
            dropped[kept] += 1
            continue
        key = _digest(" ".join(kept.text.lower().split()))
        if key in seen:
            dropped[DUPLICATE] += 1
            continue
        seen.add(key)
        yield kept


def _batches(items: Iterator[Kept]) -> Iterator[list[Kept]]:
    while batch := list(islice(items, _BATCH)):
        yield batch


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
