# SPDX-License-Identifier: Apache-2.0
"""Diversity of the words of a group: Distinct-n and self-BLEU."""

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from trl_diversity.diversity.ngrams import novel_ngram_fractions


def distinct_ngrams(completions: Sequence[str], n: int = 4) -> float:
    """
    Distinct-n of a group: mean share of a completion's n-grams that no other completion has (arXiv 2509.02534).

    Words are split at white space. A completion of fewer than `n` words counts as one n-gram of all its words, an
    empty one as 0. Tables show it in percent.

    Args:
        completions (`Sequence[str]`):
            The completions of one prompt.
        n (`int`, *optional*, defaults to 4):
            Words per n-gram.

    Returns:
        `float` in `[0, 1]`.

    Raises:
        `ValueError`: if there is no completion or `n` is below 1.
    """
    if not completions:
        raise ValueError("Distinct-n needs at least one completion; got none.")
    return fmean(novel_ngram_fractions(completions, n))


def corpus_distinct_ngrams(texts: Sequence[str], n: int = 1, unit: Literal["word", "character"] = "word") -> float:
    """
    Distinct-n of a corpus: different n-grams of all texts over the count of all n-grams (arXiv 1510.03055).

    Unlike [`distinct_ngrams`] it depends on the number and length of the texts. A text of fewer than `n` units has no
    n-gram and changes nothing.

    Args:
        texts (`Sequence[str]`):
            The corpus.
        n (`int`, *optional*, defaults to 1):
            Units per n-gram.
        unit (`str`, *optional*, defaults to `"word"`):
            `"word"` splits at white space. Languages written without it need `"character"`, where white space is left
            out.

    Returns:
        `float` in `[0, 1]`; 0 if there is no n-gram at all.

    Raises:
        `ValueError`: if `n` is below 1 or `unit` is unknown.
    """
    if n < 1:
        raise ValueError(f"n-grams need n of at least 1, got {n}.")
    if unit not in ("word", "character"):
        raise ValueError(f"`unit` is {unit!r}; accepted are 'word' and 'character'.")
    units: list[Sequence[str]] = [text.split() if unit == "word" else "".join(text.split()) for text in texts]
    grams = [tuple(items[start : start + n]) for items in units for start in range(len(items) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


def self_bleu(completions: Sequence[str]) -> float:
    """
    Mean BLEU of every completion against all others of its group; high means alike.

    sacrebleu's sentence BLEU with its default tokenizer, exponential smoothing and effective order. An empty
    completion has BLEU 0.

    Args:
        completions (`Sequence[str]`):
            At least two completions of one prompt.

    Returns:
        `float` in `[0, 100]`.

    Raises:
        `ImportError`: if sacrebleu is not installed.
        `ValueError`: if there are fewer than two completions.
    """
    if len(completions) < 2:
        raise ValueError(f"self-BLEU compares completions with each other; got {len(completions)}.")
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise ImportError("self-BLEU needs sacrebleu: pip install 'trl-diversity[eval]'") from error

    bleu = BLEU(effective_order=True)
    scores = []
    for position, completion in enumerate(completions):
        others = [*completions[:position], *completions[position + 1 :]]
        scores.append(bleu.sentence_score(completion, others).score if completion.strip() else 0.0)
    return min(100.0, fmean(scores))  # equal texts give a little more than 100
