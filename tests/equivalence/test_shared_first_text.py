# SPDX-License-Identifier: Apache-2.0
"""Scores of decoders that read a first text once for all its partners, against one whole pass for every pair."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForSequenceClassification,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from tests.tiny import seeded
from trl_diversity.diversity.groups import CompletionGroup
from trl_diversity.diversity.measures import PartitionDiversity
from trl_diversity.equivalence import CrossEncoderEquivalence
from trl_diversity.equivalence.shared_first_text import SharedFirstText


PAD = 3
DECODERS = {
    LlamaForSequenceClassification: LlamaConfig,
    Qwen2ForSequenceClassification: Qwen2Config,
    Qwen3ForSequenceClassification: Qwen3Config,
}


def decoder(model_class, config_class, **options):
    with seeded(0):
        config = config_class(
            vocab_size=20,
            hidden_size=16,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=4,
            intermediate_size=24,
            num_labels=2,
            pad_token_id=PAD,
            initializer_range=0.3,
            **options,
        )
        return model_class(config).eval()


MODELS = [decoder(*classes) for classes in DECODERS.items()]


@torch.no_grad()
def logits_by_hand(model, pairs):
    return torch.cat([model(input_ids=torch.tensor([ids])).logits for ids in pairs])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@settings(max_examples=25, deadline=None)
@given(
    # Also pairs with nothing in common, one within another, equal ones, and any number of padding tokens
    shared=st.lists(st.integers(0, 19), max_size=12),
    rests=st.lists(st.lists(st.integers(0, 19), max_size=12), min_size=1, max_size=5),
    max_tokens=st.integers(1, 40),
)
@torch.no_grad()
def test_logits_are_those_of_whole_passes(model, shared, rests, max_tokens):
    pairs = [[*shared, *rest] or [0] for rest in rests]
    classifier = SharedFirstText(model, max_tokens, 2)
    with classifier.prepared():
        found = classifier.logits(pairs)
    assert torch.allclose(found, logits_by_hand(model, pairs), atol=1e-5)


@torch.no_grad()
def test_the_shared_tokens_are_read_once():
    model = MODELS[-1]
    tokens = []
    handle = model.model.embed_tokens.register_forward_pre_hook(lambda module, args: tokens.append(args[0].numel()))
    classifier = SharedFirstText(model, 100, 2)
    with classifier.prepared():
        classifier.logits([[5] * 10 + [6, 7], [5] * 10 + [7, 6], [5] * 10 + [8, 9]])
    handle.remove()
    assert tokens == [10, 6]


@torch.no_grad()
def test_the_model_is_as_before_afterwards():
    model = MODELS[-1]
    before = logits_by_hand(model, [[1, 2, 4], [1, 5]])
    classifier = SharedFirstText(model, 100, 2)
    with pytest.raises(RuntimeError, match="stop"), classifier.prepared():
        classifier.logits([[1, 2], [1, 4]])
        raise RuntimeError("stop")
    assert torch.equal(logits_by_hand(model, [[1, 2, 4], [1, 5]]), before)


def test_only_causal_models_without_a_sliding_window_are_accepted():
    sliding = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    assert all(map(SharedFirstText.accepts, MODELS))
    assert not SharedFirstText.accepts(decoder(Qwen3ForSequenceClassification, Qwen3Config, **sliding))
    assert not SharedFirstText.accepts(decoder(Qwen3ForSequenceClassification, Qwen3Config, is_causal=False))
    assert not SharedFirstText.accepts(decoder(MistralForSequenceClassification, MistralConfig))
    assert not SharedFirstText.accepts(None)


def random_groups(count, size):
    numbers = random.Random(0)
    words = ["cat", "dog", "blue", "green", "is", "the"]
    return [
        CompletionGroup(
            prompt="", completions=[" ".join(numbers.choices(words, k=numbers.randint(1, 9))) for _ in range(size)]
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("clustering", ["closure", "greedy", "pairwise"])
def test_a_partition_is_that_of_whole_pairs_and_reads_fewer_tokens(decoder_classifier_path, clustering, threads):
    groups = random_groups(3, 6)
    whole = CrossEncoderEquivalence(decoder_classifier_path, batch_size=4, device="cpu")
    shared = CrossEncoderEquivalence(decoder_classifier_path, device="cpu")
    assert shared.shares_first_text and not whole.shares_first_text
    pairs = [pair for group in groups for pair in itertools.combinations(group.completions, 2)]
    expected = whole.score_pairs(pairs)
    threshold = sorted(expected)[len(expected) * 3 // 4]
    tokens = {}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for model in (whole, shared):
            read = tokens[model] = []
            model.cross_encoder.model.model.embed_tokens.register_forward_pre_hook(
                lambda module, args, read=read: read.append(args[0].numel())
            )
        found, plain = (PartitionDiversity(model, clustering, threshold)(groups) for model in (shared, whole))
        read_tokens = [sum(tokens[model]) for model in (shared, whole)]
        assert shared.score_pairs(pairs) == pytest.approx(expected, abs=1e-5)
    finally:
        torch.set_num_threads(before)
    assert found == plain
    assert any(0 < score < 1 for diversity in found for score in diversity.scores)
    assert read_tokens[0] < read_tokens[1]
