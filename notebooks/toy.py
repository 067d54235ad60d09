# SPDX-License-Identifier: Apache-2.0
"""A world of a few words for the notebooks: policies that train in seconds on a CPU, without a download."""

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


SPECIAL = ("<pad>", "<begin>", "<end>")
# Animals are one meaning said in five ways; tree, flower and metal are three more.
MEANINGS = (("cat", "dog", "horse", "cow", "sheep"), ("oak",), ("rose",), ("iron",))
GOOD = tuple(word for meaning in MEANINGS for word in meaning)
BEST = "dog"  # better than the rest, which is all that plain GRPO needs to say nothing else
FILLER = tuple(f"word{index}" for index in range(13))
PROMPTS = ("name something", "anything else")
# Questions with a reference; the answers in brackets would be right too.
QUESTIONS = {
    "colour of the sky": ("blue", ("azure",)),
    "colour of grass": ("green", ("emerald",)),
    "capital of france": ("paris", ()),
    "one and one": ("two", ()),
}
ANSWERS = tuple(dict.fromkeys(word for answer, others in QUESTIONS.values() for word in (answer, *others)))
TAGS = ("<answer>", "</answer>")
QUESTION_WORDS = tuple(dict.fromkeys(word for question in QUESTIONS for word in question.split()))
WORDS = (*SPECIAL, *GOOD, *FILLER, *"name something anything else".split(), *TAGS, *ANSWERS, *QUESTION_WORDS)


def quality(completions: list[str], **columns: Any) -> list[float]:
    """Reward function: 1 for a word that fits, more for the best one, else 0."""
    return [2.0 if text.strip() == BEST else float(text.strip() in GOOD) for text in completions]


class SameMeaning:
    """Equivalence model: the probability that two words mean the same is 0 or 1."""

    threshold = 0.5

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        groups = [set(meaning) for meaning in MEANINGS]
        return [float(a == b or any({a.strip(), b.strip()} <= group for group in groups)) for a, b in pairs]


def tokenizer() -> PreTrainedTokenizerFast:
    """Tokenizer that knows `WORDS` alone, separated by white space."""
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token=FILLER[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<begin>", eos_token="<end>", padding_side="left"
    )


def policy(seed: int = 0) -> LlamaForCausalLM:
    """Random policy of one layer that at first gives every word about the same probability."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=32,
            initializer_range=0.1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=False,
        )
    )


def policy_that_answers(seed: int = 0, steps: int = 150) -> LlamaForCausalLM:
    """A policy that was shown to think of a word and to answer with it, right or wrong, and sometimes without tags."""
    model, words = policy(seed), tokenizer()
    texts = [f"{question} {word} <answer> {word} </answer> <end>" for question in QUESTIONS for word in ANSWERS]
    texts += [f"{question} {word} {word} <end>" for question in QUESTIONS for word in ANSWERS[::2]]
    batch = words(texts, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model
