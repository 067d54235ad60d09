# SPDX-License-Identifier: Apache-2.0
"""Labelled pairs of generations: read from JSONL, Parquet or the Hub, checked, split by prompt, augmented."""

import os
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any


_FILE_TYPES = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
_LABELS = {"0": 0, "1": 1, "false": 0, "true": 1}
_SHOWN_PROBLEMS = 5


@dataclass(frozen=True)
class LabelledPair:
    """Two generations and whether they mean the same (1) or not (0)."""

    generation_0: str
    generation_1: str
    similar: int
    prompt: str = ""


@dataclass(frozen=True)
class PairColumns:
    """Names of the columns that hold a pair. The prompt's may be absent from the data."""

    generation_0: str = "generation_0"
    generation_1: str = "generation_1"
    label: str = "similar"
    prompt: str = "prompt"


def load_pairs(name_or_path: str, columns: PairColumns | None = None, split: str = "train") -> list[LabelledPair]:
    """
    Load labelled pairs.

    Args:
        name_or_path (`str`):
            A .jsonl, .json or .parquet file, or the name of a data set on the Hub.
        columns ([`PairColumns`], *optional*):
            Names of the columns.
        split (`str`, *optional*, defaults to `"train"`):
            Split of a data set on the Hub. A file has all of its rows.

    Returns:
        `list[LabelledPair]`.

    Raises:
        `FileNotFoundError`: if the file is not there.
        `ValueError`: if a column is missing, a label is none of 0, 1, true and false, a text is no text, or all
            labels are equal.
    """
    pairs = checked_pairs(load_rows(name_or_path, split), name_or_path, columns or PairColumns())
    require_both_classes(pairs, name_or_path)
    return pairs


def load_rows(name_or_path: str, split: str = "train") -> list[dict[str, Any]]:
    """
    The rows of a .jsonl, .json or .parquet file, or of one split of a data set on the Hub.

    Raises:
        `FileNotFoundError`: if the file is not there.
        `ValueError`: if the file cannot be read.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    file_type = _FILE_TYPES.get(os.path.splitext(name_or_path)[1].lower())
    if file_type is None and not os.path.exists(name_or_path):
        return list(load_dataset(name_or_path, split=split))
    if not os.path.isfile(name_or_path) or file_type is None:
        raise FileNotFoundError(
            f"there is no file {name_or_path!r} of pairs: give a {', '.join(_FILE_TYPES)} file or a data set's name"
        )
    if file_type == "json" and name_or_path.endswith("l"):  # keeps what mixes numbers and booleans in one column
        from trl_diversity.evaluation.journal import read_rows

        return list(read_rows(name_or_path))
    try:
        return list(load_dataset(file_type, data_files=name_or_path, split="train"))
    except DatasetGenerationError as error:
        raise ValueError(f"{name_or_path} cannot be read: {error.__cause__ or error}") from error


def checked_pairs(rows: Iterable[dict[str, Any]], source: str, columns: PairColumns) -> list[LabelledPair]:
    """
    Turn rows into pairs.

    Args:
        rows (`Iterable[dict]`):
            With the columns named.
        source (`str`):
            Where they are from, for the message.
        columns ([`PairColumns`]):
            Names of the columns.

    Raises:
        `ValueError`: that shows the first rows with a problem.
    """
    pairs, problems = [], []
    for number, row in enumerate(rows, start=1):
        try:
            pairs.append(_checked_pair(row, columns))
        except ValueError as error:
            problems.append(f"row {number}: {error}")
            if len(problems) == _SHOWN_PROBLEMS:
                break
    if problems:
        raise ValueError(f"{source} holds no labelled pairs as they are needed:\n  " + "\n  ".join(problems))
    if not pairs:
        raise ValueError(f"{source} holds no pairs")
    return pairs


def require_both_classes(pairs: Sequence[LabelledPair], source: str) -> None:
    """Raise a `ValueError` where all labels are equal: nothing can be learned or measured then."""
    labels = {pair.similar for pair in pairs}
    if len(labels) < 2:
        raise ValueError(
            f"{source}: all {len(pairs)} pairs have the label {labels.pop()}; training and scoring need pairs that "
            "are similar (1) and pairs that are not (0)"
        )


def split_by_prompt(
    pairs: Sequence[LabelledPair], share: float, seed: int
) -> tuple[list[LabelledPair], list[LabelledPair]]:
    """
    Split off a share of the prompts, so that no prompt is in both parts. Pairs without a prompt count one by one.

    Args:
        pairs (`Sequence[LabelledPair]`):
            What to split.
        share (`float`):
            Of the prompts in the second part, in `(0, 1)`; at least one.
        seed (`int`):
            Seed of the draw.

    Raises:
        `ValueError`: if a part would be left without prompts.
    """
    keys = prompt_keys(pairs)
    prompts = list(dict.fromkeys(keys))
    random.Random(seed).shuffle(prompts)
    held_out = set(prompts[: max(1, round(share * len(prompts)))])
    parts = [pair for pair, key in zip(pairs, keys, strict=True) if key not in held_out]
    others = [pair for pair, key in zip(pairs, keys, strict=True) if key in held_out]
    if not parts:
        raise ValueError(f"the pairs have {len(prompts)} prompts, too few to hold out a share of {share}")
    return parts, others


def folds_by_prompt(pairs: Sequence[LabelledPair], count: int, seed: int) -> list[list[int]]:
    """Indices of the pairs in each of `count` folds; the pairs of one prompt are in one fold."""
    keys = prompt_keys(pairs)
    prompts = list(dict.fromkeys(keys))
    if len(prompts) < count:
        raise ValueError(f"{len(prompts)} prompts cannot be dealt out over {count} folds: give more data")
    random.Random(seed).shuffle(prompts)
    fold_of = {prompt: index % count for index, prompt in enumerate(prompts)}
    return [[index for index, key in enumerate(keys) if fold_of[key] == fold] for fold in range(count)]


def prompt_keys(pairs: Sequence[LabelledPair]) -> list[str]:
    """What tells the pairs of one prompt from others: the prompt, or a number where there is none."""
    return [pair.prompt or f"\0{index}" for index, pair in enumerate(pairs)]


def both_orders(pairs: Sequence[LabelledPair]) -> list[LabelledPair]:
    """Every pair and, after all of them, every pair turned round."""
    turned = [replace(pair, generation_0=pair.generation_1, generation_1=pair.generation_0) for pair in pairs]
    return [*pairs, *turned]


def sure_negatives(pairs: Sequence[LabelledPair], count: int, seed: int) -> list[LabelledPair]:
    """
    Generations for different prompts, which surely differ.

    Raises:
        `ValueError`: if there is only one prompt.
    """
    keys = prompt_keys(pairs)
    if len(set(keys)) < 2:
        raise ValueError("all pairs have the same prompt: there are no unrelated generations to pair")
    generator = random.Random(seed)
    drawn: list[LabelledPair] = []
    while len(drawn) < count:
        one, other = generator.randrange(len(pairs)), generator.randrange(len(pairs))
        if keys[one] != keys[other]:
            sides = generator.choice("01"), generator.choice("01")
            first, second = (
                getattr(pairs[i], f"generation_{side}") for i, side in zip((one, other), sides, strict=True)
            )
            drawn.append(LabelledPair(first, second, 0, pairs[one].prompt))
    return drawn


def sure_positives(pairs: Sequence[LabelledPair], count: int, seed: int) -> list[LabelledPair]:
    """Generations and a trivially edited copy: case, white space, layout marks, a greeting, or one sentence less."""
    generator = random.Random(seed)
    drawn = []
    for _ in range(count):
        pair = generator.choice(pairs)
        text = generator.choice((pair.generation_0, pair.generation_1))
        copy = edited(text, generator)
        first, second = (text, copy) if generator.random() < 0.5 else (copy, text)
        drawn.append(LabelledPair(first, second, 1, pair.prompt))
    return drawn


def edited(text: str, generator: random.Random) -> str:
    """A copy of a text with one edit that leaves its meaning."""
    sentences = re.split(r"(?<=[.!?])\s+", text)
    edits = [
        lambda: text.lower(),
        lambda: re.sub(r"[*#_`]+", "", text),
        lambda: " ".join(text.split()),
        lambda: f"Sure! Here is my answer.\n\n{text}",
        lambda: f"{text}\n\nI hope that helps!",
    ]
    if len(sentences) > 8:
        left_out = generator.randrange(1, len(sentences))
        edits.append(lambda: " ".join(sentences[:left_out] + sentences[left_out + 1 :]))
    return generator.choice(edits)()


def _checked_pair(row: dict[str, Any], columns: PairColumns) -> LabelledPair:
    for option, name in (
        ("generation_0", columns.generation_0),
        ("generation_1", columns.generation_1),
        ("label", columns.label),
    ):
        if name not in row:
            raise ValueError(
                f"the column {name!r} is missing; there are {', '.join(map(repr, row)) or 'none'}. Name it with "
                f"`{option}_column`"
            )
    for name in (columns.generation_0, columns.generation_1):
        if not isinstance(row[name], str):
            raise ValueError(f"{name!r} is {row[name]!r:.80}: expected a text")
    prompt = row.get(columns.prompt)
    return LabelledPair(
        row[columns.generation_0],
        row[columns.generation_1],
        parse_label(row[columns.label], columns.label),
        prompt if isinstance(prompt, str) else "" if prompt is None else str(prompt),
    )


def parse_label(value: Any, name: str = "similar") -> int:
    """
    The label 0 or 1 from a number, a boolean, or a text "0", "1", "true" or "false" in any case.

    Raises:
        `ValueError`: for anything else.
    """
    if isinstance(value, bool | int | float) and value in (0, 1):
        return int(value)
    if isinstance(value, str) and value.strip().lower() in _LABELS:
        return _LABELS[value.strip().lower()]
    raise ValueError(f"{name!r} is {value!r:.80}: a label is 0, 1, true or false")
