# SPDX-License-Identifier: Apache-2.0
"""RLPR's filter: groups whose rewards barely vary, compared with past steps, teach nothing."""

import math
from collections.abc import Sequence
from typing import Any


def keep_group(std: float, moving_average: float | None, beta: float) -> bool:
    """
    Whether a group's rewards vary enough (arXiv 2506.18254).

    Args:
        std (`float`):
            Standard deviation of the group's rewards. NaN (no reward in the group is known) is not enough.
        moving_average (`float`, *optional*):
            Average of past steps; `None` while there is none.
        beta (`float`):
            A group is kept if `std >= beta * moving_average`.
    """
    return moving_average is None or std >= beta * moving_average


class StandardDeviationFilter:
    """
    Keeps the groups whose reward standard deviation is at least `beta` times the moving average of past steps.

    Steps are numbered from 1. The mean standard deviation of each step from `average_from` on is averaged: until
    `filter_from` as a plain mean, from then on as an exponential moving average, as in RLPR's released code. A step is
    judged by what came before it, and all its groups count for the average, kept or not. A step without any known
    standard deviation leaves the average as it is.

    Args:
        beta (`float`):
            Paper: 0.5 for Qwen, 0.9 for Llama. Above 0.
        decay (`float`, *optional*, defaults to `0.99`):
            Weight of the past. In `[0, 1)`.
        average_from (`int`, *optional*, defaults to `6`):
            First step that is averaged.
        filter_from (`int`, *optional*, defaults to `11`):
            First step that is filtered. Above `average_from`.

    Attributes:
        step (`int`):
            Number of steps seen.
        moving_average (`float` or `None`):
            Average so far.

    Raises:
        `ValueError`: if an argument is out of range.
    """

    def __init__(self, beta: float, *, decay: float = 0.99, average_from: int = 6, filter_from: int = 11) -> None:
        if not beta > 0:
            raise ValueError(f"beta={beta} must be above 0; leave the filter out to keep every group")
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} lies outside [0, 1)")
        if not 1 <= average_from < filter_from:
            raise ValueError(f"average_from={average_from} must be at least 1 and below filter_from={filter_from}")
        self.beta = beta
        self.decay = decay
        self.average_from = average_from
        self.filter_from = filter_from
        self.step = 0
        self.moving_average: float | None = None
        self._averaged_steps = 0

    def update(self, stds: Sequence[float]) -> list[bool]:
        """
        Judge the groups of one training step, then add the step to the average.

        Args:
            stds (`Sequence[float]`):
                Standard deviation of the rewards of each group of the whole (gathered) batch. The average is only a
                yardstick for these, so one definition must be kept to.

        Returns:
            `list[bool]`: for every group whether it is kept.
        """
        self.step += 1
        kept = [True] * len(stds)
        if self.step >= self.filter_from:
            kept = [keep_group(std, self.moving_average, self.beta) for std in stds]
        known = [std for std in stds if math.isfinite(std)]
        if self.step >= self.average_from and known:
            self._add(math.fsum(known) / len(known))
        return kept

    def _add(self, mean: float) -> None:
        self._averaged_steps += 1
        if self.moving_average is None:
            self.moving_average = mean
        elif self.step < self.filter_from:
            self.moving_average += (mean - self.moving_average) / self._averaged_steps
        else:
            self.moving_average = self.decay * self.moving_average + (1 - self.decay) * mean

    def state_dict(self) -> dict[str, Any]:
        """What must be saved to go on exactly: plain JSON values."""
        return {
            "step": self.step,
            "moving_average": self.moving_average,
            "averaged_steps": self._averaged_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Go on from a saved state.

        Raises:
            `KeyError`: if a value is missing.
        """
        self.step = int(state["step"])
        self.moving_average = None if state["moving_average"] is None else float(state["moving_average"])
        self._averaged_steps = int(state["averaged_steps"])
