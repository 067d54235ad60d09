# SPDX-License-Identifier: Apache-2.0
"""What the trainer tests share: trainers on the tiny policy, rollouts with given texts, and recorders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from trl_diversity.diversity import CompletionGroup, GroupDiversity
from trl_diversity.trainers import DarlingConfig, DarlingTrainer


# Everything a test on this CPU wants to differ from the defaults of TRL: small, quiet, in float32.
QUICK = {
    "bf16": False,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_steps": 1,
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 6,
    "learning_rate": 1e-2,  # the gradients of a random model are tiny
    "beta": 0.0,
    "dataloader_num_workers": 0,
}


class ExactText:
    """Equivalence model: equal after lower-casing. A test oracle that needs no weights."""

    threshold = 0.5

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self.prompts: list[str] = []

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        self.pairs += pairs
        self.prompts += prompts or []
        return [float(first.lower() == second.lower()) for first, second in pairs]


class FixedDiversity:
    """Measure that gives every group the same scores, and remembers the groups."""

    name = "fixed"
    needs_logprobs = False

    def __init__(self, scores: float | Sequence[float] = 1.0):
        self.scores = scores
        self.groups: list[CompletionGroup] = []

    def __call__(self, groups: list[CompletionGroup]) -> list[GroupDiversity]:
        self.groups += groups
        return [GroupDiversity(self._of(len(group.completions))) for group in groups]

    def _of(self, n: int) -> list[float]:
        return [self.scores] * n if isinstance(self.scores, float) else list(self.scores)


def length_reward(completions: list, **kwargs: Any) -> list[float]:
    """Share of lower-case letters: never negative, differs between random completions."""
    texts = [text_of(completion) for completion in completions]
    return [sum(character.islower() for character in text) / (1 + len(text)) for text in texts]


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def prompts_dataset(n: int = 4, conversational: bool = False, **columns: list) -> Dataset:
    texts = [f"p{index}" for index in range(n)]
    prompts = [[{"role": "user", "content": text}] for text in texts] if conversational else texts
    return Dataset.from_dict({"prompt": prompts, **columns})


def make_trainer(
    tmp_path: Path,
    model: Any,
    reward_funcs: Any = length_reward,
    *,
    trainer_class: type[GRPOTrainer] = DarlingTrainer,
    train_dataset: Any = None,
    trainer_settings: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """
    A trainer on the tiny policy. `diversity` goes to the trainer (default: [`ExactText`] unless the settings choose a
    measure), `trainer_settings` too; all other settings go to its configuration.
    """
    extra = dict(trainer_settings or {})
    config_class = GRPOConfig if trainer_class is GRPOTrainer else DarlingConfig
    if trainer_class is not GRPOTrainer:
        chooses = {"diversity_measure", "partition_model"} & set(settings)
        extra["diversity"] = settings.pop("diversity", None if chooses else ExactText())
    args = config_class(str(tmp_path), **{**QUICK, **settings})
    return trainer_class(
        model=model,
        reward_funcs=reward_funcs,
        args=args,
        train_dataset=prompts_dataset() if train_dataset is None else train_dataset,
        **extra,
    )


def fix_completions(trainer: Any, texts: dict[str, list[str]]) -> None:
    """
    Let the policy answer each prompt with the given texts, in order, over and over.

    The texts replace what the model would sample, as token ids: everything after sampling is TRL's.
    """
    tokenizer = trainer.processing_class
    served = dict.fromkeys(texts, 0)

    def generate(prompt_ids: list, *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        completions = []
        for ids in prompt_ids:
            prompt = next(text for text in texts if text in tokenizer.decode(ids))
            text = texts[prompt][served[prompt] % len(texts[prompt])]
            served[prompt] += 1
            completions.append([*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])
        return completions, None

    trainer._generate_single_turn = generate


def fix_messages(trainer: Any, completions: list[list[dict[str, Any]]]) -> None:
    """Replace the messages that reward functions and measures see, whatever was sampled."""
    generate = trainer._generate

    def with_messages(prompts: list) -> tuple:
        output = list(generate(prompts))
        output[3] = [completions[row % len(completions)] for row in range(len(prompts))]
        return tuple(output)

    trainer._generate = with_messages


def record_outputs(trainer: Any) -> list[dict[str, Any]]:
    """What TRL's reward step gives, one entry per generation: advantages, prompts, completions, rewards."""
    recorded: list[dict[str, Any]] = []
    score, calculate = trainer._generate_and_score_completions, trainer._calculate_rewards
    seen: dict[str, Any] = {}

    def remember(inputs: list, prompts: list, completions: list, completion_ids_list: list) -> torch.Tensor:
        rewards = calculate(inputs, prompts, completions, completion_ids_list)
        seen.update(prompts=prompts, completions=completions, rewards_per_func=rewards.clone())
        return rewards

    def scored(inputs: list) -> dict[str, Any]:
        output = score(inputs)
        recorded.append({**seen, "advantages": output["advantages"].clone()})
        return output

    trainer._calculate_rewards, trainer._generate_and_score_completions = remember, scored
    return recorded


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def logged(trainer: Any, key: str) -> list[float]:
    """Values of a key in the log, oldest first."""
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def table_lookup(table: dict[str, float | None], name: str) -> Callable[..., list[float | None]]:
    """A reward function that looks each completion's text up."""

    def reward(completions: list, **kwargs: Any) -> list[float | None]:
        return [table[text_of(completion)] for completion in completions]

    reward.__name__ = name
    return reward
