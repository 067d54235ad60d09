# SPDX-License-Identifier: Apache-2.0
"""Batch geometry of a recipe: how many prompts, completions and tokens a generation and an optimizer step hold."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class BatchGeometry:
    """
    Sizes that follow from a recipe and the number of training processes.

    TRL counts in micro-batches: a generation batch is `steps_per_generation` of them on every process, an optimizer
    step `gradient_accumulation_steps` of them, and `num_iterations` passes are made over each generation batch.

    Args:
        num_processes (`int`):
            Training processes, one a GPU. GPUs of servers come on top.
        per_device_train_batch_size (`int`):
            Completions in a micro-batch of one process.
        gradient_accumulation_steps (`int`):
            Micro-batches in an optimizer step.
        steps_per_generation (`int`):
            Micro-batches in a generation batch.
        num_generations (`int`):
            Completions a prompt.
        num_iterations (`int`, *optional*, defaults to `1`):
            Passes over a generation batch.
        max_prompt_tokens (`int`, *optional*):
            Most tokens of a prompt, where the recipe bounds them.
        max_completion_length (`int`, *optional*):
            Most tokens of a completion.

    Raises:
        `ValueError`: if a size is below 1, or a generation batch would cut a group.
    """

    num_processes: int
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    num_generations: int
    num_iterations: int = 1
    max_prompt_tokens: int | None = None
    max_completion_length: int | None = None

    def __post_init__(self):
        for name in (
            "num_processes",
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "steps_per_generation",
            "num_generations",
            "num_iterations",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is at least 1; got {getattr(self, name)}.")
        if self.completions_per_generation_batch % self.num_generations:
            raise ValueError(
                f"a generation batch has {self.completions_per_generation_batch} completions "
                f"({self.num_processes} processes x per_device_train_batch_size={self.per_device_train_batch_size} x "
                f"steps_per_generation={self.steps_per_generation}), which is not divisible by num_generations="
                f"{self.num_generations}: a group would be cut."
            )

    @property
    def completions_per_generation_batch(self) -> int:
        """Completions that are sampled together, over all processes."""
        return self.num_processes * self.per_device_train_batch_size * self.steps_per_generation

    @property
    def prompts_per_generation_batch(self) -> int:
        """Prompts whose completions are sampled together."""
        return self.completions_per_generation_batch // self.num_generations

    @property
    def completions_per_optimizer_step(self) -> int:
        """Completions whose loss makes one optimizer step."""
        return self.num_processes * self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def prompts_per_optimizer_step(self) -> int | float:
        """Prompts in an optimizer step; no whole number where a step cuts a group, which TRL allows."""
        return _plain(Fraction(self.completions_per_optimizer_step, self.num_generations))

    @property
    def optimizer_steps_per_generation(self) -> int | float:
        """Optimizer steps between two generations. 1 is fully on-policy; below 1, several generations feed a step."""
        return _plain(Fraction(self.steps_per_generation * self.num_iterations, self.gradient_accumulation_steps))

    @property
    def max_sequence_tokens(self) -> int | None:
        """Most tokens of a prompt with its completion; `None` where one of the two has no bound."""
        if self.max_prompt_tokens is None or self.max_completion_length is None:
            return None
        return self.max_prompt_tokens + self.max_completion_length

    @property
    def max_tokens_per_optimizer_step(self) -> int | None:
        """Most tokens that go forward and backward in an optimizer step, over all processes."""
        if self.max_sequence_tokens is None:
            return None
        return self.completions_per_optimizer_step * self.max_sequence_tokens

    @property
    def max_pairs_per_generation_batch(self) -> int:
        """Most pairs of completions that an equivalence model is asked for: n(n-1)/2 a prompt."""
        return self.prompts_per_generation_batch * self.num_generations * (self.num_generations - 1) // 2


def _plain(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)
