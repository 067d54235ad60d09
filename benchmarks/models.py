# SPDX-License-Identifier: Apache-2.0
"""Models of the right shape with random weights, and texts of as many tokens as wanted."""

import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from trl_diversity.diversity.groups import CompletionGroup


BERT_VOCABULARY, DECODER_VOCABULARY, POLICY_VOCABULARY = 30522, 8192, 49152
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = 8000  # words w0, w1, ... are one token each in every vocabulary


def word_tokenizer(size: int, pair_template: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer in which every word `w0`, `w1`, ... is one token."""
    vocabulary = {word: index for index, word in enumerate([*_SPECIAL, *(f"w{n}" for n in range(size - 5))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if pair_template is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair=pair_template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=4096
    )


def _cross_encoder(model: Any, tokenizer: PreTrainedTokenizerFast) -> CrossEncoder:
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        return CrossEncoder(str(Path(directory)), device="cpu")


def minilm_classifier() -> CrossEncoder:
    """A pair classifier of MiniLM-L6's shape with two labels."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=BERT_VOCABULARY,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        initializer_range=0.1,
    )
    config.num_labels = 2
    tokenizer = word_tokenizer(BERT_VOCABULARY, "[CLS] $A [SEP] $B:1 [SEP]:1")
    tokenizer.model_max_length = config.max_position_embeddings
    return _cross_encoder(BertForSequenceClassification(config), tokenizer)


def qwen3_classifier() -> CrossEncoder:
    """A pair classifier of Qwen3's architecture, small, with two labels."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=DECODER_VOCABULARY,
        hidden_size=384,
        intermediate_size=1152,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        initializer_range=0.05,
        pad_token_id=0,
    )
    config.num_labels = 2
    return _cross_encoder(
        Qwen3ForSequenceClassification(config), word_tokenizer(DECODER_VOCABULARY, "$A [SEP] $B [SEP]")
    )


def smollm2() -> LlamaForCausalLM:
    """A causal language model of SmolLM2-135M's shape."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=POLICY_VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def between(shortest: int, longest: int) -> Callable[[random.Random], int]:
    """Lengths that are log-uniform, as those of completions are: many short, few long."""
    return lambda numbers: round(math.exp(numbers.uniform(math.log(shortest), math.log(longest))))


def groups_of(
    count: int, size: int, length: Callable[[random.Random], int], clusters: int, seed: int = 0
) -> list[CompletionGroup]:
    """Groups of different texts; the first word of a text tells its cluster."""
    numbers = random.Random(seed)

    def text(index: int) -> str:
        words = [f"w{index % clusters}", *(f"w{numbers.randrange(100, WORDS)}" for _ in range(length(numbers) - 1))]
        return " ".join(words)

    return [CompletionGroup(prompt="", completions=[text(index) for index in range(size)]) for _ in range(count)]


def counted(number: int, what: str) -> str:
    """`1 group`, `2 groups`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
