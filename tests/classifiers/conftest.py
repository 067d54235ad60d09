# SPDX-License-Identifier: Apache-2.0
"""Labelled pairs that a tiny model learns to tell apart in a few steps."""

import json
import random
from pathlib import Path

import pytest

from tests.tiny import BERT_WORDS
from trl_diversity.classifiers.pairs import LabelledPair


def word_pairs(count: int, seed: int = 0) -> list[LabelledPair]:
    """Pairs of texts of six words: "same" pairs have the words of one list, "different" pairs those of another."""
    generator = random.Random(seed)
    lists = (BERT_WORDS[:7], BERT_WORDS[7:])
    pairs = []
    for index in range(count):
        similar = index % 2
        first, second = (" ".join(generator.choices(lists[similar], k=6)) for _ in range(2))
        pairs.append(LabelledPair(first, second, similar, f"prompt {index // 2}"))
    return pairs


@pytest.fixture
def pairs_file(tmp_path: Path) -> str:
    """80 such pairs as JSON lines."""
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(vars(pair)) + "\n" for pair in word_pairs(80)))
    return str(path)
