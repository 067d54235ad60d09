# SPDX-License-Identifier: Apache-2.0
"""What both configurations refuse, and which of their settings were changed."""

import math
from collections.abc import Iterable
from dataclasses import fields

from trl import GRPOConfig


def settings_that_differ(args: GRPOConfig, names: Iterable[str]) -> list[str]:
    """Those of the named arguments that were changed from their defaults."""
    defaults = {field.name: field.default for field in fields(args)}
    return [name for name in names if getattr(args, name) != defaults[name]]


def check_aggregation(args: GRPOConfig) -> None:
    """
    Refuse an aggregation that would treat the columns of the rewards as equals.

    Raises:
        `ValueError`: if `multi_objective_aggregation="normalize_then_sum"`.
    """
    if args.multi_objective_aggregation == "normalize_then_sum":
        raise ValueError(
            "`multi_objective_aggregation='normalize_then_sum'` would normalise the combined reward again. Use "
            "'sum_then_normalize', and `reward_weights` to weigh the rewards."
        )


def generation_period(args: GRPOConfig) -> int:
    """Optimizer steps from one boundary between generations to the next one that is a boundary between steps too."""
    micro_steps = int(args.steps_per_generation or 1) * args.num_iterations  # TRL has set it by now
    return micro_steps // math.gcd(micro_steps, args.gradient_accumulation_steps)


def check_save_steps(args: GRPOConfig, save_steps: float | None = None) -> None:
    """
    Refuse checkpoints that cut a generation batch, from which a run cannot be resumed exactly.

    Args:
        args ([`~trl.GRPOConfig`]):
            Arguments of the run.
        save_steps (`int`, *optional*):
            Optimizer steps between checkpoints, where it is known better than from `args` (a share of the run was
            configured).

    Raises:
        `ValueError`: with the nearest valid values.
    """
    save_steps = args.save_steps if save_steps is None else save_steps
    if args.save_strategy != "steps" or save_steps < 1:
        return
    period = generation_period(args)
    below, rest = divmod(int(save_steps), period)
    if rest:
        nearest = max(round(save_steps / period), 1) * period
        raise ValueError(
            f"`save_steps={int(save_steps)}` cuts a generation batch, which spans {period} optimizer steps "
            f"(steps_per_generation={args.steps_per_generation} x num_iterations={args.num_iterations}, "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}). A run resumes exactly only between "
            f"generations: the nearest valid value is {nearest}, as is any multiple of {period}."
        )
