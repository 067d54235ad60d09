# SPDX-License-Identifier: Apache-2.0
"""A tiny policy that answers with one of 32 words, and what its answers are worth and mean."""

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


# 32 tokens in all, so that every token is an answer. The three that mark beginning, end and padding decode to nothing.
SPECIAL = ("<pad>", "<begin>", "<end>")
GOOD = ("cat", "dog", "horse", "cow", "sheep", "oak", "rose", "iron")
BAD = tuple(f"nonsense{index}" for index in range(32 - len(SPECIAL) - len(GOOD)))
WORDS = (*SPECIAL, *GOOD, *BAD)
# Five ways to say the first meaning: who spreads over words does not spread over meanings.
MEANINGS = ({"cat", "dog", "horse", "cow", "sheep"}, {"oak"}, {"rose"}, {"iron"})
# A little better than the other seven, and so enough for plain GRPO to say nothing else.
BEST = "dog"

PROMPTS = ["nonsense0 nonsense1", "nonsense2 nonsense3"]


def quality_of(word: str) -> float:
    """Quality of an answer: 1 for a good word, 1.05 for the best, else 0."""
    return 1.05 if word == BEST else float(word in GOOD)


def quality(completions: list[str], **kwargs: Any) -> list[float]:
    """Reward function."""
    return [quality_of(completion) for completion in completions]


class SameMeaning:
    """Partition model: the probability that two words mean the same is 0 or 1."""

    threshold = 0.5

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        return [
            float(first == second or any({first, second} <= words for words in MEANINGS)) for first, second in pairs
        ]


class SameText:
    """Partition model for which only equal texts are equivalent: diversity of words instead of meanings."""

    threshold = 0.5

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        return [float(first == second) for first, second in pairs]


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Tokenizer that knows `WORDS` alone, separated by white space."""
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token=WORDS[-1]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<begin>", eos_token="<end>", padding_side="left"
    )


def word_policy(seed: int) -> LlamaForCausalLM:
    """Random policy that at first gives every word about the same probability."""
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def word_probabilities(model: LlamaForCausalLM) -> torch.Tensor:
    """
    The policy's probability of every answer, exactly.

    Returns:
        `torch.Tensor` of shape `(len(PROMPTS), 32)`.
    """
    input_ids = torch.tensor([word_tokenizer()(prompt)["input_ids"] for prompt in PROMPTS])
    with torch.no_grad():
        return model.eval()(input_ids).logits[:, -1].float().softmax(-1)


def effective_number(probabilities: torch.Tensor) -> float:
    """
    Exponential of the entropy: how many equally likely outcomes would be as uncertain, mean over the prompts.

    Args:
        probabilities (`torch.Tensor` of shape `(P, K)`):
            Non-negative weights of the outcomes; they are normalised here.
    """
    p = probabilities / probabilities.sum(-1, keepdim=True)
    return torch.special.entr(p).sum(-1).exp().mean().item()


def outcome(model: LlamaForCausalLM) -> dict[str, float]:
    """Effective number of meanings and of words among the good answers, and the expected quality."""
    probabilities = word_probabilities(model)
    words = probabilities[:, [WORDS.index(word) for word in GOOD]]  # (P, 8)
    meanings = torch.stack(
        [probabilities[:, [WORDS.index(word) for word in meaning]].sum(-1) for meaning in MEANINGS], dim=1
    )  # (P, 4)
    worth = torch.tensor([quality_of(word) for word in WORDS])
    return {
        "meanings": effective_number(meanings),
        "words": effective_number(words),
        "quality": (probabilities @ worth).mean().item(),
    }
