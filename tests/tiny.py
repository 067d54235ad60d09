# SPDX-License-Identifier: Apache-2.0
"""Tiny random models and tokenizers, built from configs in seconds without a network and saved to a directory."""

import json
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
)


# A content may be a text or a list of parts, of which the texts are joined.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ["<pad>", "<bos>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
BERT_SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_WORDS = ["word", "yes", "no", "the", "a", "answer", "is", "cat", "dog", "river", "blue", "green", "not", "it"]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch for the body only: building a model leaves the generator of a test as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def tiny_tokenizer(words: Sequence[str] = (), chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """
    Byte-level tokenizer: 6 special tokens, 256 bytes and `words`, each of which is one token. Every text round-trips.

    Token 0 pads, 1 begins, 2 ends a text or a turn. The words have the ids from 262 on, in order.
    """
    bytes_in_order = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *bytes_in_order])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL_TOKENS)
    backend.add_tokens(list(words))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<|end|>",
        model_max_length=512,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def tiny_bert_tokenizer(max_length: int = 128) -> BertTokenizer:
    """WordPiece tokenizer: printable ASCII letter by letter, and `BERT_WORDS` as whole words."""
    characters = [character for character in string.printable if not character.isspace() and not character.isupper()]
    pieces = [*BERT_SPECIAL_TOKENS, *characters, *(f"##{character}" for character in characters), *BERT_WORDS]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    return BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=max_length)


def _decoder_settings(tokenizer: PreTrainedTokenizerFast, **overrides: Any) -> dict[str, Any]:
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": False,
    }
    return settings | overrides


def _bert_config(vocab_size: int, max_length: int, **overrides: Any) -> BertConfig:
    settings = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": max_length,
        "initializer_range": 0.2,
        "pad_token_id": 0,
    }
    return BertConfig(**(settings | overrides))


def _save(path: str | Path, model: Any, tokenizer: Any) -> str:
    model.eval().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def save_tiny_causal_lm(
    path: str | Path, architecture: str = "llama", words: Sequence[str] = (), seed: int = 0, **config_overrides: Any
) -> str:
    """Random 2-layer policy (`"llama"` or `"qwen2"`, hidden 64, head_dim 32) with its chat tokenizer."""
    tokenizer = tiny_tokenizer(words)
    settings = _decoder_settings(tokenizer, **config_overrides)
    with seeded(seed):
        if architecture == "llama":
            model: Any = LlamaForCausalLM(LlamaConfig(**settings))
        elif architecture == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**settings))
        else:
            raise ValueError(f"unknown architecture {architecture!r}: use 'llama' or 'qwen2'")
    return _save(path, model, tokenizer)


def save_tiny_terse_lm(path: str | Path) -> str:
    """Random policy that ends a completion at every third token of its vocabulary: most are a few tokens long."""
    save_tiny_causal_lm(path)
    config = GenerationConfig.from_pretrained(path)
    config.eos_token_id = list(range(2, len(tiny_tokenizer()), 3))
    config.save_pretrained(path)
    return str(path)


def save_tiny_reward_model(path: str | Path, words: Sequence[str] = (), seed: int = 1, **config_overrides: Any) -> str:
    """Random one-label reward model that shares the policy's tokenizer."""
    tokenizer = tiny_tokenizer(words)
    with seeded(seed):
        config = LlamaConfig(**_decoder_settings(tokenizer, num_labels=1, **config_overrides))
        model = LlamaForSequenceClassification(config)
    return _save(path, model, tokenizer)


def save_tiny_pair_classifier(
    path: str | Path, num_labels: int = 2, max_length: int = 128, seed: int = 2, **config_overrides: Any
) -> str:
    """Random BERT pair classifier with one or two labels; its scores are spread over [0, 1]."""
    tokenizer = tiny_bert_tokenizer(max_length)
    with seeded(seed):
        config = _bert_config(len(tokenizer), max_length, num_labels=num_labels, **config_overrides)
        model = BertForSequenceClassification(config)
    return _save(path, model, tokenizer)


def save_tiny_decoder_classifier(path: str | Path, num_labels: int = 2, seed: int = 3, **config_overrides: Any) -> str:
    """Random Qwen2 pair classifier of which neither config nor tokenizer has a pad token."""
    tokenizer = tiny_tokenizer(chat_template=None)
    settings = _decoder_settings(tokenizer, num_labels=num_labels, pad_token_id=None, **config_overrides)
    with seeded(seed):
        model = Qwen2ForSequenceClassification(Qwen2Config(**settings))
    tokenizer.pad_token = None
    tokenizer.padding_side = "right"
    return _save(path, model, tokenizer)


def save_tiny_embedding_decoder(path: str | Path) -> str:
    """
    Random decoder as a sentence-transformers model with two ways of Qwen3-Embedding: its config says that it is a
    language model, and its tokenizer ends every text with the pad token.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    base = save_tiny_causal_lm(path, "qwen2")
    transformer = Transformer(base)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="lasttoken")
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save_pretrained(base, create_model_card=False)
    end_with_padding(base)
    config_path = Path(base) / "config.json"
    config = json.loads(config_path.read_text())
    config_path.write_text(json.dumps(config | {"architectures": ["Qwen2ForCausalLM"]}))
    return base


def end_with_padding(path: str | Path) -> None:
    """Have the tokenizer of a checkpoint put its pad token behind every text."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    pad = tokenizer.pad_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {pad}", pair=f"$A {pad} $B {pad}", special_tokens=[(pad, tokenizer.pad_token_id)]
    )
    tokenizer.save_pretrained(path)


def save_tiny_sentence_transformer(
    path: str | Path, max_length: int = 128, seed: int = 4, **config_overrides: Any
) -> str:
    """Random 2-layer BERT with mean pooling, saved as a sentence-transformers model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    backbone_path = Path(path) / "backbone"
    tokenizer = tiny_bert_tokenizer(max_length)
    with seeded(seed):
        backbone = BertModel(_bert_config(len(tokenizer), max_length, **config_overrides))
    _save(backbone_path, backbone, tokenizer)
    transformer = Transformer(str(backbone_path), max_seq_length=max_length)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    model_path = Path(path) / "model"
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save_pretrained(
        str(model_path), create_model_card=False
    )
    return str(model_path)
