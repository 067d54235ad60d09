# SPDX-License-Identifier: Apache-2.0
"""Worker: on rank 1 alone, one user function after the other fails, and its process does not end for two minutes."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

from tests.distributed.doubles import SharedWordEquivalence, length_reward
from tests.distributed.launch import WORLD_SIZE
from trl_diversity import DarlingConfig, DarlingTrainer
from trl_diversity.diversity import CompletionGroup, GroupDiversity, UnlikelinessDiversity


RANK = int(os.environ.get("RANK", "-1"))
SLEEP_SECONDS = 120
# What fails, and the error that the user must find in the output of every rank.
MESSAGES = {
    "sync reward": "the sync reward cannot read this completion",
    "async reward": "the async reward cannot reach its service",
    "module reward": "the reward model cannot score this completion",
    "reward tokenizer": "the reward tokenizer cannot read this completion",
    "too few rewards": "returned 1 rewards, but 6 were expected",
    "infinite reward": "returned inf for row 2",
    "diversity measure": "the measure cannot compare these completions",
    "score out of range": "gave the score 1.5",
    "equivalence model": "the equivalence model cannot judge this pair",
    "policy likelihood": "the policy cannot read this completion",
    "plain GRPO": "the sync reward of a run without diversity fails",
}


def fail(message: str) -> None:
    """Fail on rank 1, and note when."""
    if RANK == 1:
        note("failed")
        raise RuntimeError(message)


def note(event: str) -> None:
    """Leave a file that says when something happened to the current case on this rank."""
    unfinished = DIRECTORY / f"{RANK}.tmp"
    unfinished.write_text(json.dumps(time.time()))
    unfinished.rename(DIRECTORY / f"{case}.{event}.{RANK}")


def sync_reward(completions: list, **kwargs: Any) -> list[float]:
    fail(MESSAGES[case])
    return [1.0] * len(completions)


async def async_reward(completions: list, **kwargs: Any) -> list[float]:
    fail(MESSAGES["async reward"])
    return [1.0] * len(completions)


def short_reward(completions: list, **kwargs: Any) -> list[float]:
    note("failed")
    return [1.0] * (1 if RANK == 1 else len(completions))


def infinite_reward(completions: list, **kwargs: Any) -> list[float]:
    note("failed")
    return [float("inf") if RANK == 1 and row == 2 else 1.0 for row in range(len(completions))]


class FailingRewardModel(LlamaForSequenceClassification):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        fail(MESSAGES["module reward"])
        return super().forward(*args, **kwargs)


class FailingTokenizer(PreTrainedTokenizerFast):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fail(MESSAGES["reward tokenizer"])
        return super().__call__(*args, **kwargs)


class FailingMeasure:
    name = "failing"
    needs_logprobs = False

    def __call__(self, groups: list[CompletionGroup]) -> list[GroupDiversity]:
        fail(MESSAGES["diversity measure"])
        return [GroupDiversity([1.0] * len(group.completions)) for group in groups]


class OutOfRangeMeasure:
    name = "out of range"
    needs_logprobs = False

    def __call__(self, groups: list[CompletionGroup]) -> list[GroupDiversity]:
        note("failed")
        return [GroupDiversity([1.5 if RANK == 1 else 1.0] * len(group.completions)) for group in groups]


class FailingEquivalence(SharedWordEquivalence):
    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        fail(MESSAGES["equivalence model"])
        return super().score_pairs(pairs, prompts)


def trainer_arguments(name: str, reward_model: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {"reward_funcs": length_reward, "diversity": SharedWordEquivalence()}
    if name == "module reward":
        arguments["reward_funcs"] = [
            length_reward,
            FailingRewardModel.from_pretrained(reward_model, num_labels=1, dtype=torch.float32),
        ]
    elif name == "reward tokenizer":
        arguments["reward_funcs"] = reward_model
        arguments["reward_processing_classes"] = FailingTokenizer.from_pretrained(reward_model)
    elif name == "diversity measure":
        arguments["diversity"] = FailingMeasure()
    elif name == "score out of range":
        arguments["diversity"] = OutOfRangeMeasure()
    elif name == "equivalence model":
        arguments["diversity"] = FailingEquivalence()
    elif name == "policy likelihood":
        arguments["diversity"] = UnlikelinessDiversity()
    else:
        functions: dict[str, Callable] = {
            "sync reward": sync_reward,
            "plain GRPO": sync_reward,
            "async reward": async_reward,
            "too few rewards": short_reward,
            "infinite reward": infinite_reward,
        }
        arguments["reward_funcs"] = [length_reward, functions[name]]
        arguments["diversity"] = None if name == "plain GRPO" else arguments["diversity"]
    return arguments


def build_trainer(name: str, policy: str, reward_model: str) -> DarlingTrainer:
    """A trainer whose generation batch has three groups, so that every rank has one to score."""
    args = DarlingConfig(
        output_dir=str(DIRECTORY / "output"),
        per_device_train_batch_size=3,
        num_generations=4,
        gradient_accumulation_steps=2,
        max_completion_length=4,
        max_steps=1,
        diversity_measure="none" if name == "plain GRPO" else "partition",
        beta=0.0,
        save_strategy="no",
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
    )
    trainer = DarlingTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["first", "second", "third"]}),
        **trainer_arguments(name, reward_model),
    )
    if name == "policy likelihood":
        original = trainer._get_per_token_logps_and_entropies
        trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: (
            fail(MESSAGES[name]) or original(*args, **kwargs)  # type: ignore[func-returns-value]
        )
    return trainer


def run_case(name: str, policy: str, reward_model: str, is_last: bool) -> None:
    trainer = build_trainer(name, policy, reward_model)
    try:
        trainer.train()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        assert trainer.accelerator.num_processes == WORLD_SIZE
        assert type(trainer.model_wrapped).__name__ == "DistributedDataParallel", type(trainer.model_wrapped)
        note("raised")
    deadline = time.monotonic() + SLEEP_SECONDS
    # The failed process does nothing more; it wakes early only when the other one has told its user already.
    while time.monotonic() < deadline and (is_last or not (DIRECTORY / f"{case}.raised.{1 - RANK}").exists()):
        time.sleep(0.1)


if __name__ == "__main__":
    DIRECTORY = Path(sys.argv[1])
    (DIRECTORY / f"rank{RANK}.pid").write_text(str(os.getpid()))
    for index, case in enumerate(MESSAGES):
        run_case(case, sys.argv[2], sys.argv[3], is_last=index == len(MESSAGES) - 1)
