# SPDX-License-Identifier: Apache-2.0
"""A classifier that `trl-diversity train-classifier` trained says on a real server what it says here."""

import numpy as np
import pytest

from tests import tiny
from tests.classifiers.conftest import word_pairs
from tests.servers.processes import ClassifierCommand
from trl_diversity.classifiers.cross_encoder_training import CrossEncoderSettings, train_cross_encoder
from trl_diversity.equivalence import CrossEncoderEquivalence, ServerEquivalence


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["encoder", "language model with adapters", "embedding model"])
def test_probabilities_threshold_and_temperature_are_those_of_the_checkpoint(tmp_path, kind):
    shared = {"learning_rate": 2e-3, "max_side_tokens": 64, "use_cpu": True}
    if kind == "encoder":
        base = tiny.save_tiny_pair_classifier(tmp_path / "base", num_labels=1, max_length=512)
        settings = CrossEncoderSettings(base, **shared)
    elif kind == "embedding model":  # its tokenizer ends a text with the pad token, as Qwen3-Embedding's does
        base = tiny.save_tiny_embedding_decoder(tmp_path / "base")
        settings = CrossEncoderSettings(base, **shared)
    else:
        base = tiny.save_tiny_causal_lm(tmp_path / "base")
        settings = CrossEncoderSettings(base, lora_rank=4, **shared)
    train_cross_encoder(word_pairs(48), word_pairs(24, seed=1), str(tmp_path / "trained"), settings)
    local = CrossEncoderEquivalence(str(tmp_path / "trained"), device="cpu")
    pairs = [(pair.generation_0, pair.generation_1) for pair in word_pairs(100, seed=2)]
    expected = local.score_pairs(pairs)
    with ClassifierCommand(str(tmp_path / "trained"), tmp_path, 600, port=18210) as command:
        served = ServerEquivalence(
            command.settings["partition_server_urls"], model=command.settings["partition_model"], timeout=60.0
        )
        assert (served.threshold, served.temperature) == (local.threshold, local.temperature)
        np.testing.assert_allclose(served.score_pairs(pairs), expected, atol=1e-3)
    assert max(expected) - min(expected) > 0.3
