# SPDX-License-Identifier: Apache-2.0
"""What Darling's reward step costs beside TRL's own and beside the diversity measure."""

import statistics
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from trl_diversity import DarlingConfig, DarlingTrainer
from trl_diversity.diversity import CompletionGroup, GroupDiversity


pytestmark = pytest.mark.benchmark

GROUP_SIZE = 8
# About 200 words, the length of an answer to an open question
COMPLETION = "a completion of some length that says something " * 25


class FreeMeasure:
    """A diversity measure that costs nothing."""

    name = "free"
    needs_logprobs = False

    def __call__(self, groups: list[CompletionGroup]) -> list[GroupDiversity]:
        return [GroupDiversity([1.0] * GROUP_SIZE, labels=list(range(GROUP_SIZE))) for _ in groups]


def length_reward(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


@pytest.fixture
def trainer(causal_lm_path: str, tmp_path: Path) -> DarlingTrainer:
    args = DarlingConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=GROUP_SIZE,
        num_generations=GROUP_SIZE,
        beta=0.0,
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
    )
    trainer = DarlingTrainer(
        model=AutoModelForCausalLM.from_pretrained(causal_lm_path, dtype=torch.float32),
        reward_funcs=length_reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["question"]}),
        diversity=FreeMeasure(),
    )
    trainer.model.train()
    return trainer


@pytest.fixture
def seconds_in_super(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time of every call of TRL's own reward step."""
    seconds: list[float] = []
    original = GRPOTrainer._calculate_rewards

    def timed(self: GRPOTrainer, *args: Any) -> torch.Tensor:
        started = time.perf_counter()
        rewards = original(self, *args)
        seconds.append(time.perf_counter() - started)
        return rewards

    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", timed)
    yield seconds


def batch(n_completions: int) -> tuple[list, ...]:
    """The arguments of one reward step."""
    prompts = [f"question {row // GROUP_SIZE}" for row in range(n_completions)]
    completions = [f"{row} {COMPLETION}" for row in range(n_completions)]
    return [{"prompt": prompt} for prompt in prompts], prompts, completions, [[1]] * n_completions


def reward_step(trainer: DarlingTrainer, arguments: tuple[list, ...]) -> None:
    """One reward step, and what TRL does with the pending logs after it."""
    rewards = trainer._calculate_rewards(*arguments)
    assert rewards.shape == (len(arguments[0]), 2)
    trainer._pending_extra_logs.clear()
    trainer._pending_metrics.clear()


def test_time_of_the_hook(trainer: DarlingTrainer, seconds_in_super: list[float]) -> None:
    arguments, overheads = batch(64), []
    for _ in range(25):
        started = time.perf_counter()
        reward_step(trainer, arguments)
        overheads.append(time.perf_counter() - started - seconds_in_super[-1])
    median = statistics.median(overheads[-20:])  # the first calls warm up
    in_super = statistics.median(seconds_in_super)
    print(f"\n64 completions: {1000 * median:.2f} ms in the hook, {1000 * in_super:.2f} ms in TRL's own step")
    assert median < 0.005


def test_memory_of_the_hook(trainer: DarlingTrainer) -> None:
    arguments = batch(1000)
    reward_step(trainer, arguments)
    tracemalloc.start()
    try:
        reward_step(trainer, arguments)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(5):
            reward_step(trainer, arguments)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept_per_step = (after - before) / 5
    print(
        f"\n1000 completions: {(peak - before) / 1e6:.3f} MB at the peak, {kept_per_step / 1e6:.4f} MB kept per step"
    )
    assert peak - before < 1e6
    assert kept_per_step < 1e4
