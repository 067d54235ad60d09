# SPDX-License-Identifier: Apache-2.0
"""n-gram novelty against a slow oracle, and texts that are too short to have an n-gram."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_diversity.diversity.ngrams import novel_ngram_fractions, word_ngrams


TEXT = st.lists(st.sampled_from(["a", "b", "c"]), max_size=8).map(" ".join) | st.sampled_from([" \n", "a  b", "你好"])
TEXTS = st.lists(TEXT, max_size=6)


def slow_ngrams(text: str, n: int) -> list[str]:
    """All runs of n words; a text of fewer words is one run of all its words."""
    words = text.split()
    if len(words) < n:
        return ["|".join(words)] if words else []
    runs = []
    start = 0
    while start + n <= len(words):
        runs.append("|".join(words[start : start + n]))
        start += 1
    return runs


def slow_novelty(texts: list[str], n: int) -> list[float]:
    """The set of n-grams that no other text has over the count of n-grams, found by looking everywhere."""
    scores = []
    for index, text in enumerate(texts):
        own = slow_ngrams(text, n)
        others: list[str] = []
        for other_index, other in enumerate(texts):
            if other_index != index:
                others += slow_ngrams(other, n)
        novel: list[str] = []
        for gram in own:
            if gram not in others and gram not in novel:
                novel.append(gram)
        scores.append(len(novel) / len(own) if own else 0.0)
    return scores


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(1, 5))
def test_novelty_equals_the_slow_count(texts: list[str], n: int) -> None:
    scores = novel_ngram_fractions(texts, n)
    assert scores == pytest.approx(slow_novelty(texts, n))
    assert all(0 <= score <= 1 for score in scores)


@settings(max_examples=50, deadline=None)
@given(TEXTS, st.randoms(use_true_random=False))
def test_permuting_the_texts_permutes_the_scores(texts: list[str], shuffler: random.Random) -> None:
    order = shuffler.sample(range(len(texts)), len(texts))
    scores = novel_ngram_fractions(texts, 2)
    assert novel_ngram_fractions([texts[index] for index in order], 2) == [scores[index] for index in order]


@pytest.mark.parametrize(
    ("texts", "n", "expected"),
    [
        pytest.param(["a"], 2, [1.0], id="FC-136 a text shorter than n is compared as a whole"),
        pytest.param(["", ""], 2, [0.0, 0.0], id="FC-136 no words, no novelty, no division by zero"),
        pytest.param(["a", "a b c d e"], 4, [1.0, 1.0], id="FC-136 one short text does not void the others"),
        pytest.param(["buy now", "buy now", "sell"], 4, [0.0, 0.0, 1.0], id="equal short texts are not novel"),
        pytest.param(["a b", "a b c"], 4, [1.0, 1.0], id="short texts that differ are novel as a whole"),
        pytest.param(["the cat sat", "the cat ran"], 2, [0.5, 0.5], id="one bigram of two is shared"),
        pytest.param(["a b a b a"], 2, [0.5], id="repeating oneself lowers the score: 2 different of 4"),
        pytest.param(["你好世界", "你好世界"], 2, [0.0, 0.0], id="words are split at white space"),
        pytest.param([], 4, [], id="no texts"),
    ],
)
def test_examples(texts: list[str], n: int, expected: list[float]) -> None:
    assert novel_ngram_fractions(texts, n) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "n", "expected"),
    [
        ("a b  c\nd", 3, [("a", "b", "c"), ("b", "c", "d")]),
        ("a a a", 2, [("a", "a"), ("a", "a")]),
        ("a b", 2, [("a", "b")]),
        ("a b", 4, [("a", "b")]),
        ("A a", 1, [("A",), ("a",)]),
        (" ", 1, []),
    ],
)
def test_word_ngrams(text: str, n: int, expected: list[tuple[str, ...]]) -> None:
    assert word_ngrams(text, n) == expected


@pytest.mark.parametrize("n", [0, -1])
def test_n_below_one_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1, got {n}"):
        novel_ngram_fractions(["a b"], n)
