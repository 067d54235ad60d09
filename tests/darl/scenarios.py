# SPDX-License-Identifier: Apache-2.0
"""Short Darl runs with given completions, which one process and two ranks carry out alike."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from trl_diversity.trainers import DarlConfig, DarlTrainer


# Measured quantities of time differ between any two runs.
TIMES = ("time", "second")
SILENT = "there is no answer here"


def tagged(prompt: str, position: int) -> str:
    """An answer of one or two letters after a few words, as prompt and position decide."""
    number = sum(map(ord, prompt)) + position
    return f"<think>{'x' * (number % 5)}</think><answer>{'abcdefg'[number % 7]}{'xyz'[position % 3]}</answer>"


def silent_second(prompt: str, position: int) -> str:
    """All completions of the second prompt, which are those of rank 1, are malformed."""
    return SILENT if prompt == "p1" else tagged(prompt, position)


def all_silent(prompt: str, position: int) -> str:
    return SILENT


def long_and_short(prompt: str, position: int) -> str:
    """Completions of 5 and of about 200 tokens."""
    thought = "z" * (170 + position) if prompt == "p1" else ""
    return f"<think>{thought}</think><answer>b</answer>" if thought else "x" * 4


def letters(completions: list, **kwargs: Any) -> list[float]:
    return [sum(character in "xyz" for character in text) / 10 for text in completions]


@dataclass
class Scenario:
    """
    What is run.

    Attributes:
        rows_per_device (`int`):
            `per_device_train_batch_size` on two ranks; one process takes twice as many.
        config (`dict`):
            Further settings of [`DarlConfig`].
        references (`dict`):
            Reference of every prompt, in the order of the batches.
        filter_average (`float` or `None`):
            Moving average of the filter, which then is at work from the first step on.
    """

    rows_per_device: int
    config: dict[str, Any]
    references: dict[str, str] = field(default_factory=lambda: {f"p{i}": "abcdef"[i] * (i + 1) for i in range(6)})
    completion: Callable[[str, int], str] = tagged
    reward_funcs: list[Any] = field(default_factory=list)
    filter_average: float | None = None
    with_lora: bool = False
    with_frozen_scorer: bool = False
    slow_rank: int | None = None
    stream: bool = False
    evaluate: bool = False
    max_steps: int = 2


SCENARIOS = {
    # Rank 1 has nothing to score.
    "empty_rank": Scenario(4, {"num_generations": 4}, completion=silent_second),
    "empty_rank_two_passes": Scenario(4, {"num_generations": 4, "score_path": "two_pass"}, completion=silent_second),
    "all_malformed": Scenario(4, {"num_generations": 4}, completion=all_silent, max_steps=1),
    # The case FC-050: references of 3 and of 900 tokens, which a small budget cuts into unequally many forward calls.
    "unequal_references": Scenario(
        8,
        {"num_generations": 2, "score_tokens_per_forward": 64, "debias": True, "delta_weight": 0.0},
        references={f"p{i}": "abc" if i != 4 else "abc" * 300 for i in range(8)},
    ),
    # The case FC-051, as far as CPUs show it: rank 1 writes longer, and later.
    "unequal_completions": Scenario(
        4, {"num_generations": 4, "score_tokens_per_forward": 300}, completion=long_and_short, slow_rank=1
    ),
    # Three groups, the middle one on both ranks; five baselines for two ranks; the filter at work.
    "everything": Scenario(
        3,
        {
            "num_generations": 6,
            "gradient_accumulation_steps": 3,
            "debias": True,
            "std_filter_beta": 1.0,
            "delta_weight": 0.5,
            "reward_weights": [0.3],
        },
        references={f"p{i}": "abcde"[i] * (i + 1) for i in range(5)},
        reward_funcs=[letters],
        filter_average=0.04,
        evaluate=True,
    ),
    "lora": Scenario(3, {"num_generations": 6, "beta": 0.01}, with_lora=True),
    "stream": Scenario(4, {"num_generations": 4}, stream=True),
    "frozen_scorer": Scenario(4, {"num_generations": 4}, completion=silent_second, with_frozen_scorer=True),
}


class GivenCompletionsTrainer(DarlTrainer):
    """A `DarlTrainer` whose completions depend on prompt and position alone, and that notes what it computes."""

    scenario: Scenario

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.batches: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self._watched: set[int] = set()
        self._is_scoring = False

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        rank = self.accelerator.process_index
        if rank == self.scenario.slow_rank:
            time.sleep(0.5)
        ids = []
        for row, prompt in enumerate(prompt_ids):
            position = (rank * len(prompt_ids) + row) % num_generations
            text = self.scenario.completion(self._tokenizer.decode(prompt), position)
            ids.append([*self._tokenizer.encode(text), self._tokenizer.eos_token_id])
        return ids, None

    def score_rows(self, rows):
        """Notes through which module the policy is called to score."""
        wrapped = self.model_wrapped
        if id(wrapped) not in self._watched:
            self._watched.add(id(wrapped))
            wrapped.register_forward_pre_hook(lambda module, args: self._note_call(module))
        self._is_scoring = True
        try:
            return super().score_rows(rows)
        finally:
            self._is_scoring = False

    def _note_call(self, module):
        if self._is_scoring:
            self.calls.append(type(module).__name__)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.batches.append({"prompts": prompts, "completions": completions, "rewards": rewards.clone()})
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.batches[-1]["advantages"] = output["advantages"].clone()
        return output


def build_trainer(scenario: Scenario, output_dir: Path, policy: str, n_ranks: int) -> GivenCompletionsTrainer:
    """The trainer of a scenario for this number of processes, on the same batches whatever their number."""
    dataset = Dataset.from_dict({"prompt": [*scenario.references], "answer": [*scenario.references.values()]})
    factor = 2 if n_ranks == 1 else 1
    args = DarlConfig(
        output_dir=str(output_dir),
        per_device_train_batch_size=scenario.rows_per_device * factor,
        per_device_eval_batch_size=scenario.rows_per_device * factor,
        max_steps=scenario.max_steps,
        shuffle_dataset=False,
        learning_rate=0.05,  # high, so that a wrong gradient shows in the weights
        lr_scheduler_type="constant",
        optim="sgd",  # Adam would blow rounding differences up
        logging_steps=1,
        save_strategy="no",
        log_completions=True,
        num_completions_to_print=0,
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        disable_tqdm=True,
        scorer_model=policy if scenario.with_frozen_scorer else None,
        **scenario.config,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        trainer = GivenCompletionsTrainer(
            model=AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32),
            reward_funcs=scenario.reward_funcs,
            args=args,
            train_dataset=dataset.to_iterable_dataset() if scenario.stream else dataset,
            eval_dataset=dataset if scenario.evaluate else None,
            peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"]) if scenario.with_lora else None,
        )
    trainer.scenario = scenario
    if scenario.filter_average is not None:
        state = {"step": 10, "moving_average": scenario.filter_average, "averaged_steps": 5}
        trainer.darl_state.std_filter.load_state_dict(state)
    return trainer


def run_scenario(name: str, directory: Path, policy: str, n_ranks: int) -> dict[str, Any]:
    """
    Carry out a scenario.

    Returns:
        `dict`: what this process saw: the world, every reward step, calls to score, state, logs and weights.
    """
    trainer = build_trainer(SCENARIOS[name], directory / name, policy, n_ranks)
    initial = torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach().clone()
    trainer.train()
    n_training_steps = len(trainer.batches)
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
        "batches": trainer.batches,
        "n_training_steps": n_training_steps,
        "calls": trainer.calls,
        "filter_state": trainer.darl_state.filter_state,
        "baseline": trainer.darl_state.baseline,
        "logs": logs,
        "table": {name: list(values) for name, values in trainer._logs["extra"].items()},
        "moved": float((final - initial).abs().max()),
        "weights": final.clone(),
    }
