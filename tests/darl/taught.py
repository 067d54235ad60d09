# SPDX-License-Identifier: Apache-2.0
"""A tiny policy that has seen the format: its likelihoods spread over [0, 1], so that an error in them shows."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests import tiny


LESSONS = (
    "p0<think>a</think><answer>42</answer>",
    "p0<think>b</think><answer> 42</answer>",
    "p1<think>x</think><answer>Paris</answer>",
    "p1<think>x</think><answer>Rome</answer>",
    "p2<think>y</think><answer>7</answer>",
    "p2<answer>71</answer>",
    "p3<think>z</think><answer>東京</answer>",
    "p3<think>z</think><answer>京都</answer>",
    "p0<think>c</think>\n\\boxed{42}",
    "p1<think>c</think>\n\\boxed{Lyon}",
    "p0<think>d</think>\n42",
    "p1 so the answer is: Paris.",
)
# One token that joins white space and answer, as byte-pair encodings have them.
WORDS = (" 42",)


def teach(model: Any, tokenizer: Any, lessons: tuple[str, ...], steps: int = 30) -> None:
    """Fit a model to a few texts."""
    batch = tokenizer(list(lessons), return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(steps):
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def save_taught(directory: Path, words: tuple[str, ...] = WORDS, **settings: Any) -> str:
    path = tiny.save_tiny_causal_lm(directory, words=words, **settings)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with tiny.seeded(0):
        teach(model, AutoTokenizer.from_pretrained(path), LESSONS)
    model.eval().save_pretrained(path)
    return path
