# SPDX-License-Identifier: Apache-2.0
"""Distinct-n against a slow oracle, self-BLEU against BLEU written out, and embedding distances pair by pair."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest

from trl_diversity.evaluation import corpus_distinct_ngrams, distinct_ngrams, mean_pairwise_distance, self_bleu
from trl_diversity.evaluation.embeddings import mean_embedding_distance


def slow_distinct_ngrams(texts: list[str], n: int) -> float:
    """Every n-gram is looked for in every other text."""
    total = 0.0
    for position, text in enumerate(texts):
        words = text.split()
        grams = [words[i : i + n] for i in range(len(words) - n + 1)] if len(words) >= n else [words] * bool(words)
        found = []
        for gram in grams:
            elsewhere = False
            for other_position, other in enumerate(texts):
                other_words = other.split()
                size = min(n, len(other_words))
                pieces = [other_words[i : i + size] for i in range(len(other_words) - size + 1)]
                elsewhere = elsewhere or (other_position != position and gram in pieces)
            if not elsewhere and gram not in found:
                found.append(gram)
        total += len(found) / len(grams) if grams else 0.0
    return total / len(texts)


def test_distinct_ngrams_equals_the_slow_oracle():
    draw = random.Random(1)
    for _ in range(500):
        texts = [" ".join(draw.choices("abc", k=draw.randint(0, 8))) for _ in range(draw.randint(1, 6))]
        n = draw.randint(1, 5)  # often longer than the text
        assert distinct_ngrams(texts, n) == pytest.approx(slow_distinct_ngrams(texts, n), abs=1e-12)


def test_distinct_ngrams_by_hand():
    assert distinct_ngrams(["a b c d e", "a b c d f"], n=4) == pytest.approx(0.5)
    assert distinct_ngrams(["", "x"]) == 0.5 and distinct_ngrams(["x", "x"]) == 0.0
    with pytest.raises(ValueError, match="at least one"):
        distinct_ngrams([])


def test_corpus_distinct_ngrams_with_an_empty_text():
    """FC-137: an empty text adds no n-gram and fails nothing."""
    texts = ["", "the cat sat", "the cat sat"]
    assert corpus_distinct_ngrams(texts, 1) == 0.5 == corpus_distinct_ngrams(texts, 2)
    assert corpus_distinct_ngrams(["", ""], 2) == 0.0 == corpus_distinct_ngrams(["a"], 2) == corpus_distinct_ngrams([])


def test_corpus_distinct_ngrams_without_spaces():
    """FC-138: white space finds one word in such a text; characters are the other unit."""
    texts = ["你好世界", "你好世界"]
    assert corpus_distinct_ngrams(texts, 2) == 0.0
    assert corpus_distinct_ngrams(texts, 2, unit="character") == 0.5
    with pytest.raises(ValueError, match="'word' and 'character'"):
        corpus_distinct_ngrams(texts, 2, unit="token")  # type: ignore[arg-type]


def bleu(candidate: str, references: list[str]) -> float:
    """Sentence BLEU of up to four words in order, exponential smoothing, for texts of plain words."""
    words = candidate.split()
    log_precisions, smoothing = [], 1.0
    for n in range(1, min(4, len(words)) + 1):
        grams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        most: Counter[tuple[str, ...]] = Counter()
        for reference in references:
            other = reference.split()
            most |= Counter(tuple(other[i : i + n]) for i in range(len(other) - n + 1))
        matches = sum((grams & most).values())
        if n == 1 and not matches:
            return 0.0
        if not matches:
            smoothing *= 2
        log_precisions.append(math.log((matches or 1 / smoothing) / sum(grams.values())))
    lengths = [len(reference.split()) for reference in references]
    closest = min(lengths, key=lambda length: (abs(length - len(words)), length))
    brevity = min(0.0, 1 - closest / len(words))
    return 100 * math.exp(brevity + sum(log_precisions) / len(log_precisions))


def test_self_bleu_is_bleu_against_the_others():
    pytest.importorskip("sacrebleu")
    draw = random.Random(2)
    for _ in range(50):
        texts = [" ".join(draw.choices(["a", "b", "c", "d"], k=draw.randint(1, 9))) for _ in range(draw.randint(2, 5))]
        expected = [bleu(text, texts[:i] + texts[i + 1 :]) for i, text in enumerate(texts)]
        assert self_bleu(texts) == pytest.approx(sum(expected) / len(expected))
    assert self_bleu(["the same words here", "the same words here"]) == 100.0
    assert self_bleu(["", "a b"]) == 0.0
    with pytest.raises(ValueError, match="got 1"):
        self_bleu(["alone"])


def test_mean_pairwise_distance_goes_over_all_pairs():
    vectors = np.random.default_rng(0).normal(size=(6, 5))
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.combinations(vectors, 2)]
    assert mean_pairwise_distance(vectors) == pytest.approx(1 - np.mean(cosines))
    assert mean_pairwise_distance([[1, 0], [5, 0]]) == 0.0 and mean_pairwise_distance([[1, 0], [-1, 0]]) == 2.0
    for wrong in ([[1, 0]], [1, 0], [[1, 0], [0, 0]], [[1, 0], [math.nan, 1]]):
        with pytest.raises(ValueError, match="vector|embedding"):
            mean_pairwise_distance(wrong)


def test_mean_embedding_distance_of_a_model(sentence_transformer_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(sentence_transformer_path, device="cpu")
    texts = ["the cat", "a blue river", "the cat"]
    one, other = model.encode(texts[:2])
    distance = 1 - float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
    assert mean_embedding_distance(texts, model) == pytest.approx(2 / 3 * distance, abs=1e-6)
