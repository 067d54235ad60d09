# SPDX-License-Identifier: Apache-2.0
"""Completions, quality rewards and diversity measures with known answers, for runs on two ranks."""

import random
from typing import Any

from trl_diversity.diversity import CompletionGroup, GroupDiversity


WORDS = ("cat", "dog", "river", "blue", "green", "stone", "quiet")


class SharedWordEquivalence:
    """Two texts mean the same if they share a word: not transitive, so that closing the judgements matters."""

    threshold = 0.5

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        return [float(bool(set(first.split()) & set(second.split()))) for first, second in pairs]


class EqualTextEquivalence:
    """Two texts mean the same if they are equal."""

    threshold = 0.5

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        return [float(first == second) for first, second in pairs]


class FirstWordEquivalence:
    """Two texts mean the same if they begin with the same word."""

    threshold = 0.5

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        return [float(first.split()[0] == second.split()[0]) for first, second in pairs]


class RecordingMeasure:
    """A diversity measure that notes which groups it was given on this rank."""

    def __init__(self, measure: Any):
        self.measure, self.name, self.needs_logprobs = measure, measure.name, measure.needs_logprobs
        self.seen: list[CompletionGroup] = []

    def __call__(self, groups: list[CompletionGroup]) -> list[GroupDiversity]:
        self.seen.extend(groups)
        return self.measure(groups)

    def pop_statistics(self) -> dict[str, int]:
        return self.measure.pop_statistics() if hasattr(self.measure, "pop_statistics") else {}


def length_reward(completions: list, **kwargs: Any) -> list[float]:
    return [len(text_of(completion)) / 10 for completion in completions]


async def blue_reward(completions: list, **kwargs: Any) -> list[float | None]:
    """Does not apply to completions that speak of the river, and punishes those that speak of nothing blue."""
    texts = [text_of(completion) for completion in completions]
    return [None if "river" in text else float("blue" in text) - 0.5 for text in texts]


def correct_reward(completions: list, **kwargs: Any) -> list[float]:
    return [float(len(text_of(completion).split()) >= 2) for completion in completions]


def all_correct(completions: list, **kwargs: Any) -> list[float]:
    return [1.0] * len(completions)


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def fixed_completion(prompt: str, position: int) -> str:
    """The completion at a position of its group: none to three words, as the prompt and the position decide."""
    generator = random.Random(f"{prompt}/{position}")
    return " ".join(generator.choices(WORDS, k=generator.choice((0, 1, 2, 2, 3))))


def letters(prompt: str, position: int) -> str:
    return "ABCD"[position % 4]
