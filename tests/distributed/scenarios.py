# SPDX-License-Identifier: Apache-2.0
"""Short Darling runs with fixed completions, which one process and two ranks carry out alike."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from tests.distributed.doubles import (
    EqualTextEquivalence,
    FirstWordEquivalence,
    RecordingMeasure,
    SharedWordEquivalence,
    all_correct,
    blue_reward,
    correct_reward,
    fixed_completion,
    length_reward,
    letters,
    text_of,
)
from trl_diversity import DarlingConfig, DarlingTrainer
from trl_diversity.diversity import PartitionDiversity, UnlikelinessDiversity


# Measured quantities of time differ between any two runs.
TIMES = ("step_time", "seconds", "runtime", "per_second")


@dataclass
class Scenario:
    """
    What is run.

    Attributes:
        rows_per_device (`int`):
            `per_device_train_batch_size` on two ranks; one process takes twice as many.
        config (`dict`):
            Further settings of [`DarlingConfig`].
    """

    rows_per_device: int
    config: dict[str, Any]
    reward_funcs: list[Any] = field(default_factory=lambda: [length_reward, blue_reward])
    reward_weights: list[float] | None = None
    measure: Any = PartitionDiversity
    equivalence: Any = SharedWordEquivalence
    completion: Any = fixed_completion
    conversational: bool = False
    with_reward_model: bool = False
    n_prompts: int = 12
    streaming: bool = False

    @property
    def weights(self) -> list[float]:
        """Weight of every reward function; the reward model comes last."""
        weights = self.reward_weights or [1.0] * len(self.reward_funcs)
        return [*weights, 0.5] if self.with_reward_model else weights

    def build_measure(self) -> RecordingMeasure | None:
        if self.measure is None:
            return None
        return RecordingMeasure(self.measure() if self.equivalence is None else self.measure(self.equivalence()))


SCENARIOS = {
    # One group over both ranks: one of them has no group to score.
    "one_group": Scenario(
        rows_per_device=3, config={"num_generations": 6}, reward_weights=[1.0, 2.0], with_reward_model=True
    ),
    # Three groups, of which the middle one is cut by the border between the ranks.
    "cut_group": Scenario(
        rows_per_device=3,
        config={"num_generations": 6, "gradient_accumulation_steps": 3},
        reward_weights=[1.0, 2.0],
        conversational=True,
    ),
    "streaming": Scenario(
        rows_per_device=3, config={"num_generations": 6, "gradient_accumulation_steps": 3}, streaming=True
    ),
    # Generations that are used for two steps, twice.
    "reused": Scenario(
        rows_per_device=3,
        config={"num_generations": 4, "steps_per_generation": 2, "num_iterations": 2, "quality_shift": "sigmoid"},
    ),
    "correct_only": Scenario(
        rows_per_device=3,
        config={
            "num_generations": 6,
            "gradient_accumulation_steps": 3,
            "partition_correct_only": True,
            "diversity_floor": 0.1,
        },
        reward_funcs=[correct_reward],
        equivalence=FirstWordEquivalence,
    ),
    "unlikeliness": Scenario(
        rows_per_device=3,
        config={"num_generations": 6, "gradient_accumulation_steps": 3},
        reward_funcs=[length_reward],
        measure=UnlikelinessDiversity,
        equivalence=None,
    ),
    # Evaluation groups of two on three rows a rank: one of three is cut.
    "evaluation": Scenario(
        rows_per_device=3,
        config={"num_generations": 6, "num_generations_eval": 2, "per_device_eval_batch_size": 3},
        reward_funcs=[length_reward],
        n_prompts=6,
    ),
    # Two ranks fill the last batch up with the first prompts.
    "uneven_evaluation": Scenario(
        rows_per_device=3,
        config={"num_generations": 6, "num_generations_eval": 2, "per_device_eval_batch_size": 3},
        reward_funcs=[length_reward],
        n_prompts=5,
    ),
    "single_evaluation": Scenario(
        rows_per_device=3,
        config={"num_generations": 6, "num_generations_eval": 1, "per_device_eval_batch_size": 3},
        reward_funcs=[length_reward],
        n_prompts=6,
    ),
    "no_diversity": Scenario(
        rows_per_device=3,
        config={"num_generations": 6, "gradient_accumulation_steps": 3, "diversity_measure": "none"},
        reward_funcs=[length_reward, blue_reward],
        measure=None,
    ),
    "letters": Scenario(  # the case FC-001
        rows_per_device=4,
        config={"num_generations": 8},
        reward_funcs=[all_correct],
        equivalence=EqualTextEquivalence,
        completion=letters,
    ),
}


class FixedCompletionsTrainer(DarlingTrainer):
    """A `DarlingTrainer` whose completions depend on prompt and position alone, and that notes what it computes."""

    fixed_completion: Any

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.batches: list[dict[str, Any]] = []

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        first_row = self.accelerator.process_index * len(prompt_ids)
        completion_ids = []
        for row, ids in enumerate(prompt_ids):
            text = self.fixed_completion(self._tokenizer.decode(ids), (first_row + row) % num_generations)
            completion_ids.append([*self._tokenizer.encode(text), self._tokenizer.eos_token_id])
        return completion_ids, None

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.batches.append(
            {
                "training": self.model.training,
                "prompts": [text_of(prompt) for prompt in prompts],
                "completions": [text_of(completion) for completion in completions],
                "rewards": rewards.tolist(),
            }
        )
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.batches[-1]["advantages"] = output["advantages"].tolist()
        return output


def build_trainer(
    scenario: Scenario, output_dir: Path, policy: str, reward_model: str, n_ranks: int
) -> FixedCompletionsTrainer:
    """The trainer of a scenario for this number of processes, on the same batches whatever their number."""
    config = dict(scenario.config)
    if n_ranks == 1 and "per_device_eval_batch_size" in config:
        config["per_device_eval_batch_size"] *= 2
    prompts: list[Any] = [f"question {index}" for index in range(scenario.n_prompts)]
    if scenario.conversational:
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    dataset = Dataset.from_dict({"prompt": prompts})
    train_dataset = dataset.to_iterable_dataset() if scenario.streaming else dataset
    args = DarlingConfig(
        output_dir=str(output_dir),
        per_device_train_batch_size=scenario.rows_per_device * (2 if n_ranks == 1 else 1),
        max_steps=2,
        learning_rate=0.05,  # high, so that a wrong gradient shows in the weights
        lr_scheduler_type="constant",
        optim="sgd",  # Adam would blow rounding differences up
        beta=0.0,
        max_completion_length=32,
        logging_steps=1,
        save_strategy="no",
        log_completions=True,
        num_completions_to_print=0,
        reward_weights=scenario.weights,
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        **config,
    )
    trainer = FixedCompletionsTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32),
        reward_funcs=[*scenario.reward_funcs, reward_model] if scenario.with_reward_model else scenario.reward_funcs,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=dataset if "num_generations_eval" in config else None,
        diversity=scenario.build_measure(),
    )
    trainer.fixed_completion = staticmethod(scenario.completion)
    return trainer


def run_scenario(name: str, directory: Path, policy: str, reward_model: str, n_ranks: int) -> dict[str, Any]:
    """
    Carry out a scenario.

    Returns:
        `dict`: what this process saw: the world, every reward step, the groups it scored, the logs and the weights.
    """
    trainer = build_trainer(SCENARIOS[name], directory / name, policy, reward_model, n_ranks)
    initial = torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach().clone()
    trainer.train()
    if trainer.eval_dataset is not None:
        trainer.evaluate()
    final = torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach()
    logs = [
        {key: value for key, value in entry.items() if not any(time in key for time in TIMES)}
        for entry in trainer.state.log_history
    ]
    return {
        "world_size": trainer.accelerator.num_processes,
        "wrapper": type(trainer.model_wrapped).__name__,
        "columns": trainer.reward_func_names,
        "batches": trainer.batches,
        "scored": [] if trainer.diversity is None else trainer.diversity.seen,
        "logs": logs,
        "reward_model_training": [f.training for f in trainer.reward_funcs if isinstance(f, torch.nn.Module)],
        "moved": float((final - initial).abs().max()),
        "weights": final,
    }
