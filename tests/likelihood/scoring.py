# SPDX-License-Identifier: Apache-2.0
"""Tiny policies, rows to score, and the slow way of scoring them."""

import random
from functools import cache
from tempfile import mkdtemp
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests import tiny
from trl_diversity.likelihood.splice import ScoringRow, prepare_completion


@cache
def _saved(architecture: str, tied: bool) -> str:
    return tiny.save_tiny_causal_lm(
        mkdtemp(), architecture, words=[">5", " 7", "2</"], tie_word_embeddings=tied, initializer_range=0.35
    )


def policy(architecture: str = "llama", tied: bool = False, **kwargs: Any) -> Any:
    """A policy whose probabilities are far from uniform, and depend on every token before."""
    return AutoModelForCausalLM.from_pretrained(_saved(architecture, tied), dtype=torch.float32, **kwargs)


@cache
def policy_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(_saved("llama", False))


def with_lora(model: Any, seed: int = 1) -> Any:
    """The model with a LoRA adapter that changes its output."""
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.3, init_lora_weights=False)
    with tiny.seeded(seed):
        return get_peft_model(model, config)


@cache
def rows(count: int = 16) -> tuple[ScoringRow, ...]:
    """Rows of plain and chat prompts, of many lengths; some references share a token with what joins them."""
    tokenizer, chooser = policy_tokenizer(), random.Random(0)
    found = []
    for number in range(count):
        question = "".join(chooser.choices("2+x =?é", k=chooser.randint(1, 20)))
        prompt = question
        if number % 2:
            messages = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        thought = "".join(chooser.choices("abc 東\n", k=chooser.randint(0, 25)))
        answer, reference = (
            chooser.choice(["52", " 7", "yes no", "é"]),
            chooser.choice(["5", "42", "東京", "x y z", "8"]),
        )
        prepared = prepare_completion(
            tokenizer.encode(prompt, add_special_tokens=False),
            tokenizer.encode(f"<think>{thought}</think><answer>{answer}</answer>", add_special_tokens=False),
            reference,
            tokenizer,
        )
        assert prepared.row is not None
        found.append(prepared.row)
    return tuple(found)


def one_at_a_time(model: Any, prefix: Any, continuation: Any, lead: int = 0) -> list[float]:
    """Probability of each token of a continuation: one unpadded sequence, full logits, float64."""
    was_training = model.training
    model.eval()
    ids = [*prefix, *continuation]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double()
    model.train(was_training)
    probabilities = torch.softmax(logits, dim=-1)
    return [
        probabilities[len(prefix) + place - 1, token].item()
        for place, token in enumerate(continuation)
        if place >= lead
    ]


def assert_scores(scores: Any, model: Any, scored_rows: Any, tolerance: float = 1e-4) -> None:
    """Scores equal those of the slow way, absolutely and in proportion."""
    assert len(scores) == len(scored_rows)
    for found, row in zip(scores, scored_rows, strict=True):
        assert_close(found.answer, one_at_a_time(model, row.prefix_ids, row.answer_ids, row.answer_lead), tolerance)
        expected = one_at_a_time(model, row.prefix_ids, row.reference_ids, row.reference_lead)
        assert_close(found.reference, expected, tolerance)


def assert_close(found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert abs(left - right) <= tolerance * min(1.0, right * 20 + 1e-6), (left, right)
