# SPDX-License-Identifier: Apache-2.0
"""Faults on rank 1 alone, each in another part of the reward step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.darl.scenarios import GivenCompletionsTrainer, Scenario, build_trainer
from trl_diversity.likelihood import RowScores
from trl_diversity.trainers import baseline


# What both ranks must be told
MESSAGES = {
    "reward function": "the reward function cannot read this completion",
    "parsing": "the answer cannot be found",
    "empty reference of a stream": "The reference in the column 'answer' is empty for the prompt 'p1'",
    "first forward pass": "the policy cannot be called",
    "later forward pass": "the policy cannot be called any more",
    "own scorer": "the scorer cannot score this row",
    "own scorer gives too few": "gave 3 scores for 4 rows",
    "tokenizer of a frozen scorer": "the tokenizer of the scorer cannot read this text",
    "preparing a baseline": "the baseline cannot be prepared",
    "scoring a baseline": "the policy cannot score the baseline",
}


class Failing:
    """Fails on rank 1 from the n-th call on."""

    __name__ = "failing"

    def __init__(self, rank: int, message: str, function: Callable[..., Any], call: int = 1):
        self.rank, self.message, self.function, self.calls_left = rank, message, function, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls_left -= 1
        if self.rank == 1 and self.calls_left <= 0:
            raise RuntimeError(self.message)
        return self.function(*args, **kwargs)


class HalfScorer:
    def score(self, rows: Any) -> list[RowScores]:
        return [RowScores((0.5,), (0.5,)) for _ in rows]


def failing_trainer(
    case: str, rank: int, directory: Path, policy: str, patch: pytest.MonkeyPatch
) -> GivenCompletionsTrainer:
    """A trainer whose first step fails on rank 1."""
    message = MESSAGES[case]
    rewards = [Failing(rank, message, lambda completions, **kwargs: [0.0] * len(completions))]
    scenario = Scenario(
        4,
        {"num_generations": 4, "debias": case.endswith("a baseline"), "score_tokens_per_forward": 1},
        reward_funcs=rewards if case == "reward function" else [],
        with_frozen_scorer=case == "tokenizer of a frozen scorer",
        stream=case == "empty reference of a stream",
        max_steps=1,
    )
    if scenario.stream:
        scenario.references = {"p0": "a", "p1": ""}
    trainer = build_trainer(scenario, directory / case, policy, n_ranks=2)
    if case.startswith("own scorer"):
        trainer.scorer = HalfScorer()
    scorer = trainer.scorer
    if case == "parsing":
        patch.setattr(trainer, "_prepare", Failing(rank, message, trainer._prepare, call=3))
    elif case in ("first forward pass", "later forward pass", "scoring a baseline"):
        # Three calls of the trial that chooses the path come first, if it is not the first to fail
        call = {"first forward pass": 4, "later forward pass": 6, "scoring a baseline": 5}[case]
        patch.setattr(scorer, "_logits", Failing(rank, message, scorer._logits, call))
    elif case == "own scorer":
        patch.setattr(scorer, "score", Failing(rank, message, scorer.score))
    elif case == "own scorer gives too few":
        score = scorer.score
        patch.setattr(scorer, "score", lambda rows: score(rows)[rank:])
    elif case == "tokenizer of a frozen scorer":
        patch.setattr(scorer, "_same_ids", False)
        patch.setattr(scorer, "_translated", Failing(rank, message, scorer._translated))
    elif case == "preparing a baseline":
        patch.setattr(baseline, "baseline_row", Failing(rank, message, baseline.baseline_row))
    return trainer
