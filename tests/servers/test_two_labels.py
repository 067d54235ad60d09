# SPDX-License-Identifier: Apache-2.0
"""A real server of a classifier with two labels and no token types, which is asked by token ids."""

import pytest

from tests.servers.test_one_server import mixed_pairs
from trl_diversity.equivalence import CrossEncoderEquivalence, ServerEquivalence


pytestmark = pytest.mark.slow


def test_scores_equal_the_local_models(two_label_server, decoder_classifier_path):
    """But for two empty texts: without a token of the tokenizer's own there is nothing to read, there or here."""
    pairs = [pair for pair in mixed_pairs(200) if pair != ("", "")]
    scores = ServerEquivalence(two_label_server).score_pairs(pairs)
    expected = CrossEncoderEquivalence(decoder_classifier_path).score_pairs(pairs)
    difference = max(abs(one - other) for one, other in zip(scores, expected, strict=True))
    print(f"\n{len(pairs)} pairs by ids: largest difference {difference:.1e}")
    assert difference < 1e-3 and max(expected) - min(expected) > 0.3
