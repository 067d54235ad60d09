# SPDX-License-Identifier: Apache-2.0
"""Samples pairs to be labelled from the generations of several models (arXiv 2509.02534, appendix A.2)."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any


@dataclass(frozen=True)
class Generation:
    """One completion of a prompt, and the model that wrote it."""

    prompt: str
    completion: str
    model: str


def read_generations(path: str) -> list[Generation]:
    """
    Read generations of one model: JSON lines with `prompt` and `completions` or `completion`, and maybe `model`.

    Args:
        path (`str`):
            The file. Its name without the ending stands for the model where a row does not name it.

    Raises:
        `ValueError`: naming the row that is no generation.
    """
    from pathlib import Path

    from trl_diversity.diversity.groups import completion_text, prompt_text
    from trl_diversity.evaluation.journal import read_rows

    generations = []
    for number, row in enumerate(read_rows(path), start=1):
        completions = row.get("completions", [row["completion"]] if "completion" in row else None)
        if "prompt" not in row or not isinstance(completions, list):
            raise ValueError(
                f"{path}, row {number}: expected `prompt` and `completions` (a list) or `completion`; there are "
                f"{', '.join(map(repr, row)) or 'no keys'}"
            )
        model = str(row.get("model", Path(path).stem))
        prompt = prompt_text(row["prompt"])
        generations += [Generation(prompt, completion_text(completion), model) for completion in completions]
    return generations


def sample_pairs(
    generations: Iterable[Generation], pairs_per_prompt: int, seed: int, across_models: float = 0.5
) -> list[dict[str, Any]]:
    """
    Sample distinct pairs of generations of each prompt.

    A pair of equal texts needs no label and is left out, as is a pair that was drawn in the other order. Prompts keep
    their order, and what is drawn for one does not depend on the others.

    Args:
        generations (`Iterable[Generation]`):
            Of all models.
        pairs_per_prompt (`int`):
            At most so many; fewer where there are fewer pairs.
        seed (`int`):
            Seed of the draws.
        across_models (`float`, *optional*, defaults to 0.5):
            Share of a prompt's pairs, rounded, that come from two models, in `[0, 1]`. Where one kind runs out, the
            other fills up.

    Returns:
        `list[dict]`: `prompt`, `generation_0`, `generation_1`, `model_0`, `model_1`.

    Raises:
        `ValueError`: if an option is impossible or no pair can be made.
    """
    if pairs_per_prompt < 1 or not 0 <= across_models <= 1:
        raise ValueError(
            f"`pairs_per_prompt` is at least 1 and `across_models` lies in [0, 1]; got {pairs_per_prompt} and "
            f"{across_models}."
        )
    by_prompt: dict[str, dict[str, Generation]] = {}
    for generation in generations:
        by_prompt.setdefault(generation.prompt, {}).setdefault(generation.completion.strip(), generation)
    rows = []
    for prompt, distinct in by_prompt.items():
        generator = random.Random(f"{seed} {prompt}")
        for first, second in _drawn(list(distinct.values()), pairs_per_prompt, across_models, generator):
            rows.append(
                {
                    "prompt": prompt,
                    "generation_0": first.completion,
                    "generation_1": second.completion,
                    "model_0": first.model,
                    "model_1": second.model,
                }
            )
    if not rows:
        raise ValueError("no prompt has two different generations: there is no pair to label")
    return rows


def _drawn(
    generations: Sequence[Generation], count: int, across_models: float, generator: random.Random
) -> list[tuple[Generation, Generation]]:
    candidates = list(combinations(generations, 2))
    generator.shuffle(candidates)
    across = [pair for pair in candidates if pair[0].model != pair[1].model]
    within = [pair for pair in candidates if pair[0].model == pair[1].model]
    wanted = round(count * across_models)
    chosen = across[:wanted] + within[: count - wanted]
    chosen += (across[wanted:] + within[count - wanted :])[: count - len(chosen)]
    return [pair if generator.random() < 0.5 else (pair[1], pair[0]) for pair in chosen]
