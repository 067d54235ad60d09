# SPDX-License-Identifier: Apache-2.0
"""Labels pairs of generations with a judge: each distinct pair once, in order, resumed where a run stopped."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trl_diversity.evaluation.journal import Journal


TEXT_KEYS = ("generation_0", "generation_1")


def label_pairs(
    rows: Sequence[dict[str, Any]],
    judge: Any,
    journal: Journal,
    batch_size: int = 64,
    progress: Callable[[int], Any] = lambda count: None,
) -> Iterator[dict[str, Any]]:
    """
    Label pairs.

    Pairs of one prompt and the same two texts, in whatever order, are judged once. Equal texts are the same without
    asking. The order in which a pair is shown is drawn from its texts, so that a judge's liking for the first one
    does not become a pattern of the data.

    Args:
        rows (`Sequence[dict]`):
            With `generation_0`, `generation_1` and `prompt`.
        judge ([`EquivalenceModel`]):
            Usually a [`JudgeEquivalence`].
        journal ([`Journal`]):
            Keeps the labels, one by one, by the key of a pair.
        batch_size (`int`, *optional*, defaults to 64):
            Pairs that are judged before their labels are kept.
        progress (`Callable`, *optional*):
            Gets the number of pairs that are done further.

    Yields:
        `dict`: each row with `similar`, in order. Rows of one pair have the same label.
    """
    keys = [pair_key(row) for row in rows]
    waiting = {key: row for key, row in zip(keys, rows, strict=True) if key not in journal}
    progress(len(set(keys)) - len(waiting))
    items = list(waiting.items())
    for start in range(0, len(items), batch_size):
        batch = items[start : start + batch_size]
        asked = [(key, row) for key, row in batch if row[TEXT_KEYS[0]].strip() != row[TEXT_KEYS[1]].strip()]
        scores = judge.score_pairs([_shown(key, row) for key, row in asked], [_prompt(row) for _, row in asked])
        verdicts = {key: score > judge.threshold for (key, _), score in zip(asked, scores, strict=True)}
        for key, _ in batch:
            journal.append({journal.key_name: key, "similar": int(verdicts.get(key, True))})
        progress(len(batch))
    for key, row in zip(keys, rows, strict=True):
        yield {**row, "similar": journal.rows[key]["similar"]}


def pair_key(row: dict[str, Any]) -> str:
    """What identifies a pair: a hash of its prompt and its two texts, in either order."""
    texts = sorted(str(row[key]) for key in TEXT_KEYS)
    return hashlib.sha256("\0".join([_prompt(row), *texts]).encode()).hexdigest()


def check_rows(rows: Sequence[dict[str, Any]], source: str) -> None:
    """
    Raises:
        `ValueError`: naming the first row without two texts, or if there is no row.
    """
    if not rows:
        raise ValueError(f"{source} holds no pairs")
    for number, row in enumerate(rows, start=1):
        for key in TEXT_KEYS:
            if not isinstance(row.get(key), str):
                raise ValueError(
                    f"{source}, row {number}: {key!r} is {row.get(key)!r:.80}, expected a text. `make-pairs` writes "
                    "such files"
                )


def _shown(key: str, row: dict[str, Any]) -> tuple[str, str]:
    first, second = sorted(row[name] for name in TEXT_KEYS)
    return (first, second) if int(key[0], 16) % 2 else (second, first)


def _prompt(row: dict[str, Any]) -> str:
    return str(row.get("prompt") or "")
