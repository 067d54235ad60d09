# SPDX-License-Identifier: Apache-2.0
"""Numbers that describe how alike two texts are: their words, tokens and layout, and their embeddings."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


# In the order in which their columns stand. "both" makes the score depend on the order of a pair.
FEATURE_GROUPS = ("tokens", "words", "layout", "cosine", "windows", "difference", "product", "both")
LONGEST_NGRAM = 4
LETTERS = 4  # of a character n-gram

# WordPiece and BPE vocabularies are roughly sorted by frequency, so that the id says how rare a token is. The first
# thousand are special tokens, single letters and punctuation.
_COMMON_IDS = 1000
_LEAST_RARITY = math.log(20)
_SHORT_TOKENS = 40  # a text of as many tokens is short by 1/e

_WORD = re.compile(r"\w+(?:['’]\w+)?")
_NAME = re.compile(r"(?<![.!?:*#\n] )(?<!^)\b[A-Z][a-z]+\b")
_NUMBER = re.compile(r"\d+")
_BOLD = re.compile(r"\*\*(.+?)\*\*")
_LIST_ITEM = re.compile(r"[-*•]|\d+[.)]")
_SPACE = re.compile(r"\s+")
_LAYOUT_NAMES = ("lines", "items", "bold", "headings", "questions", "exclamations", "quotes", "words")
_COLUMNS = {
    "tokens": ("token_overlap", "rare_token_overlap", "token_cosine"),
    "words": (
        *(f"word_{n}_overlap" for n in range(1, LONGEST_NGRAM + 1)),
        "letter_overlap",
        "name_overlap",
        "name_count",
        "number_overlap",
        "length_difference",
        "shorter_length",
        "common_start",
        "variety",
    ),
    "layout": (
        *(f"{name}_difference" for name in _LAYOUT_NAMES),
        *(f"{name}_mean" for name in _LAYOUT_NAMES),
        "bold_overlap",
    ),
    "cosine": ("cosine",),
    "windows": ("best_window_mean", "best_window_least", "first_window_cosine", "last_window_cosine"),
}


@dataclass(frozen=True)
class TextFacts:
    """What is read of one text, once, whatever it is compared with."""

    vector: np.ndarray  # (dim,), unit length: the whole text
    windows: np.ndarray  # (windows, dim), unit length each, in order
    token_counts: Counter[int]
    word_list: tuple[str, ...]
    ngrams: tuple[frozenset[tuple[str, ...]], ...]  # of 1 to LONGEST_NGRAM words
    letters: frozenset[str]
    names: frozenset[str]
    numbers: frozenset[str]
    bold: frozenset[str]
    layout: np.ndarray  # (len(_LAYOUT_NAMES),), log(1 + count)


def read_text(text: str, token_ids: Sequence[int], windows: np.ndarray, weights: Sequence[int]) -> TextFacts:
    """
    Read the facts of one text.

    Args:
        text (`str`):
            The text.
        token_ids (`Sequence[int]`):
            Its tokens, without special ones.
        windows (`np.ndarray` of shape `(windows, dim)`):
            Embeddings of its windows.
        weights (`Sequence[int]`):
            Tokens of every window: the whole text's vector is their weighted mean.
    """
    words = tuple(_WORD.findall(text.lower()))
    flat = _SPACE.sub(" ", text.lower())
    units = _unit(windows)
    return TextFacts(
        vector=_unit(np.average(units, axis=0, weights=np.maximum(np.asarray(weights), 1))[None])[0],
        windows=units,
        token_counts=Counter(token_ids),
        word_list=words,
        ngrams=tuple(
            frozenset(zip(*(words[start:] for start in range(n)), strict=False)) for n in range(1, LONGEST_NGRAM + 1)
        ),
        letters=frozenset(flat[start : start + LETTERS] for start in range(max(1, len(flat) - LETTERS + 1))),
        names=frozenset(_NAME.findall(text)),
        numbers=frozenset(_NUMBER.findall(text)),
        bold=frozenset(word for passage in _BOLD.findall(text) for word in _WORD.findall(passage.lower())),
        layout=_layout(text, len(words)),
    )


def check_features(groups: Sequence[str]) -> None:
    """Raise a `ValueError` if a group is unknown or there is none."""
    unknown = [group for group in groups if group not in FEATURE_GROUPS]
    if unknown or not groups:
        raise ValueError(f"unknown feature groups {unknown}: give at least one of {', '.join(FEATURE_GROUPS)}")


def feature_names(groups: Sequence[str], dimension: int | None) -> list[str]:
    """Names of the columns of [`pair_features`], in order, for embeddings of `dimension` numbers."""
    names: list[str] = []
    count = dimension or 0
    for group in (group for group in FEATURE_GROUPS if group in groups):
        if group in _COLUMNS:
            names += _COLUMNS[group]
        elif group == "both":
            names += [f"{side}_{index}" for side in ("first", "second") for index in range(count)]
        else:
            names += [f"{group}_{index}" for index in range(count)]
    return names


def pair_features(one: TextFacts, other: TextFacts, groups: Sequence[str]) -> np.ndarray:
    """
    Features of one pair; all groups but "both" give the same for the pair turned round.

    Args:
        one (`TextFacts`):
            The first text.
        other (`TextFacts`):
            The second text.
        groups (`Sequence[str]`):
            Names out of `FEATURE_GROUPS`; their order does not matter.

    Returns:
        `np.ndarray` of shape `(len(feature_names(groups, dim)),)`.
    """
    parts = {
        "tokens": lambda: _token_features(one, other),
        "words": lambda: _word_features(one, other),
        "layout": lambda: _layout_features(one, other),
        "cosine": lambda: [float(one.vector @ other.vector)],
        "windows": lambda: _window_features(one, other),
        "difference": lambda: np.abs(one.vector - other.vector),
        "product": lambda: one.vector * other.vector,
        "both": lambda: np.concatenate([one.vector, other.vector]),
    }
    return np.concatenate(
        [np.asarray(parts[group](), dtype=np.float64) for group in FEATURE_GROUPS if group in groups]
    )


def shortness(one: TextFacts, other: TextFacts) -> float:
    """How short the shorter text is, in `(0, 1]`: 1 without a token, 0.88 with five, 0.08 with a hundred."""
    shorter = min(one.token_counts.total(), other.token_counts.total())
    return math.exp(-shorter / _SHORT_TOKENS)


def _token_features(one: TextFacts, other: TextFacts) -> list[float]:
    first, second = one.token_counts, other.token_counts
    shared, together = first & second, first | second
    rarity = {token: _rarity(token) for token in together}
    common = sum(math.sqrt(first[token] * second[token]) * rarity[token] ** 2 for token in shared)
    norms = [sum(count * rarity[token] ** 2 for token, count in counts.items()) for counts in (first, second)]
    return [
        _share(shared.total(), together.total()),
        _share(
            sum(count * rarity[token] for token, count in shared.items()),
            sum(count * rarity[token] for token, count in together.items()),
        ),
        _share(common, math.sqrt(norms[0] * norms[1])),
    ]


def _word_features(one: TextFacts, other: TextFacts) -> list[float]:
    lengths = len(one.word_list), len(other.word_list)
    start = 0
    for first, second in zip(one.word_list, other.word_list, strict=False):
        if first != second:
            break
        start += 1
    variety = [len(facts.ngrams[0]) / max(1, len(facts.word_list)) for facts in (one, other)]
    return [
        *(_overlap(first, second) for first, second in zip(one.ngrams, other.ngrams, strict=True)),
        _overlap(one.letters, other.letters),
        _overlap(one.names, other.names),
        math.log1p(len(one.names | other.names)),
        _overlap(one.numbers, other.numbers),
        abs(math.log((lengths[0] + 1) / (lengths[1] + 1))),
        math.log1p(min(lengths)),
        math.log1p(start),
        sum(variety) / 2,
    ]


def _layout_features(one: TextFacts, other: TextFacts) -> np.ndarray:
    difference, mean = np.abs(one.layout - other.layout), (one.layout + other.layout) / 2
    return np.concatenate([difference, mean, [_overlap(one.bold, other.bold)]])


def _window_features(one: TextFacts, other: TextFacts) -> list[float]:
    cosines = one.windows @ other.windows.T  # (windows of one, windows of other)
    best = np.concatenate([cosines.max(axis=1), cosines.max(axis=0)])
    return [float(best.mean()), float(best.min()), float(cosines[0, 0]), float(cosines[-1, -1])]


def _layout(text: str, words: int) -> np.ndarray:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    counts = (
        len(lines),
        sum(bool(_LIST_ITEM.match(line)) for line in lines),
        text.count("**") / 2,
        sum(line.startswith("#") for line in lines),
        text.count("?"),
        text.count("!"),
        text.count('"') + text.count("“"),
        words,
    )
    return np.log1p(np.asarray(counts, dtype=np.float64))


def _rarity(token_id: int) -> float:
    return math.log(math.exp(_LEAST_RARITY) + max(0, token_id - _COMMON_IDS))


def _overlap(first: frozenset, second: frozenset) -> float:
    """Jaccard index; 0 if both are empty."""
    shared = len(first & second)
    return _share(shared, len(first) + len(second) - shared)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms == 0, 1.0, norms)
