# SPDX-License-Identifier: Apache-2.0
"""What Darling's reward step costs beside TRL's own and beside the diversity measure."""

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOTrainer

from benchmarks.models import word_tokenizer
from benchmarks.timing import Row
from trl_diversity import DarlingConfig, DarlingTrainer
from trl_diversity.diversity import CompletionGroup, GroupDiversity


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
    """A quality that costs nothing."""
    return [float(len(completion)) for completion in completions]


def make_trainer(output_dir: str) -> DarlingTrainer:
    """A trainer with a tiny policy and a free measure."""
    args = DarlingConfig(
        output_dir=output_dir,
        per_device_train_batch_size=GROUP_SIZE,
        num_generations=GROUP_SIZE,
        beta=0.0,
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
    )
    tokenizer = word_tokenizer(100)
    tokenizer.eos_token = "[SEP]"
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
        eos_token_id=3,
    )
    trainer = DarlingTrainer(
        model=LlamaForCausalLM(config),
        reward_funcs=length_reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["w1 w2"]}),
        processing_class=tokenizer,
        diversity=FreeMeasure(),
    )
    trainer.model.train()
    return trainer


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


def seconds_of_hook(trainer: DarlingTrainer, n_completions: int) -> tuple[float, float]:
    """Median seconds of 20 reward steps outside TRL's own part, and inside it."""
    in_super: list[float] = []
    original = GRPOTrainer._calculate_rewards

    def timed(self: GRPOTrainer, *args: Any) -> torch.Tensor:
        begin = time.perf_counter()
        rewards = original(self, *args)
        in_super.append(time.perf_counter() - begin)
        return rewards

    arguments, outside = batch(n_completions), []
    with mock.patch.object(GRPOTrainer, "_calculate_rewards", timed):
        for _ in range(25):
            begin = time.perf_counter()
            reward_step(trainer, arguments)
            outside.append(time.perf_counter() - begin - in_super[-1])
    return statistics.median(outside[-20:]), statistics.median(in_super[-20:])  # the first calls warm up


def bytes_of_hook(trainer: DarlingTrainer, n_completions: int) -> tuple[float, float]:
    """Bytes at the peak of a reward step, and bytes that a step keeps."""
    arguments = batch(n_completions)
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
    return peak - before, (after - before) / 5


def hook_rows(rounds: int, quick: bool) -> Iterator[Row]:
    """Time and memory of one reward step with a free measure."""
    with tempfile.TemporaryDirectory() as directory:
        trainer = make_trainer(directory)
        outside, inside = seconds_of_hook(trainer, 64)
        figures = {"trl_own_step_ms": round(1000 * inside, 3)}
        yield Row("trainer", "reward step of 64 completions minus TRL's own", {"product": outside}, figures=figures)
        peak, kept = bytes_of_hook(trainer, 1000)
        figures = {"peak_mb": round(peak / 1e6, 3), "kept_mb_per_step": round(kept / 1e6, 4)}
        yield Row("trainer", "memory of a reward step of 1000 completions", figures=figures)
