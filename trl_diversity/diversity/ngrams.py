# SPDX-License-Identifier: Apache-2.0
"""Novelty of a text's n-grams against other texts."""

from collections import Counter
from collections.abc import Sequence


def word_ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    """
    The n-grams of a text's words, in order, repetitions kept. Words are split at white space.

    A text of fewer than `n` words is one n-gram of all its words: it is compared as a whole. A text without words has
    none.

    Raises:
        `ValueError`: if `n` is below 1.
    """
    if n < 1:
        raise ValueError(f"n-grams need n of at least 1, got {n}.")
    words = text.split()
    if not words:
        return []
    size = min(n, len(words))
    return [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]


def novel_ngram_fractions(texts: Sequence[str], n: int) -> list[float]:
    """
    Share of each text's n-grams that no other text has (arXiv 2509.02534, section 6.2).

    The distinct n-grams that are found in no other text, over the count of all n-grams of the text: repeating oneself
    lowers the score.

    Args:
        texts (`Sequence[str]`):
            Texts that are compared with each other.
        n (`int`):
            Words per n-gram.

    Returns:
        `list[float]`: one value in `[0, 1]` for every text; 0 for a text without words.
    """
    grams = [word_ngrams(text, n) for text in texts]
    owners = Counter(gram for text_grams in grams for gram in set(text_grams))
    return [
        sum(owners[gram] == 1 for gram in set(text_grams)) / len(text_grams) if text_grams else 0.0
        for text_grams in grams
    ]
