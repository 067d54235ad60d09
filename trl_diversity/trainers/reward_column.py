# SPDX-License-Identifier: Apache-2.0
"""One more reward column for a `GRPOTrainer`, and reward functions whose failure no other rank waits for."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from trl import GRPOTrainer
from trl.trainer.utils import is_async_callable


def append_reward_column(trainer: GRPOTrainer, name: str) -> torch.Tensor:
    """
    Append a column that alone counts as the reward, to be filled in after TRL has computed the others.

    The columns before it keep being computed and logged; their weights go to the caller. The user's own list of
    reward functions is left as it is.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            A constructed trainer.
        name (`str`):
            Name of the column: metrics are logged as `rewards/<name>/mean` and so on.

    Returns:
        `torch.Tensor` of shape `(n_functions,)`, float32: the weights of the columns before it.
    """
    quality_weights = trainer.reward_weights
    functions: list[Any] = [*trainer.reward_funcs, _placeholder]
    processing_classes: list[Any] = [*trainer.reward_processing_classes, None]
    trainer.reward_funcs, trainer.reward_processing_classes = functions, processing_classes
    trainer.reward_func_names = [*trainer.reward_func_names, name]
    trainer.reward_weights = torch.cat([torch.zeros_like(quality_weights), torch.ones(1)])
    return quality_weights


def weighted_quality(rewards_per_func: torch.Tensor, quality_weights: torch.Tensor) -> torch.Tensor:
    """
    Weighted sum of the quality columns, by TRL's rule: what a function did not score counts nothing.

    Args:
        rewards_per_func (`torch.Tensor` of shape `(N, n_functions + 1)`):
            Gathered rewards, our own column last.
        quality_weights (`torch.Tensor` of shape `(n_functions,)`):
            Weights of the columns before it.

    Returns:
        `torch.Tensor` of shape `(N,)`, float32: NaN where no function scored the completion.
    """
    columns = rewards_per_func[:, :-1]
    quality = (columns * quality_weights.to(columns.device).unsqueeze(0)).nansum(dim=1)
    quality[torch.isnan(columns).all(dim=1)] = torch.nan
    return quality


@contextmanager
def kept_errors(trainer: GRPOTrainer) -> Iterator[list[Exception]]:
    """
    Let the trainer's reward functions fail quietly: the exception is kept, and NaN stands for their rewards.

    An exception inside TRL's reward step would keep this rank from a gather in which all others wait. With this, the
    gather completes, and the exception can be raised on every rank afterwards.

    Yields:
        `list[Exception]`: filled with what was caught.
    """
    errors: list[Exception] = []
    originals = trainer.reward_funcs
    trainer.reward_funcs = [
        _guard(function, name, errors) for function, name in zip(originals, trainer.reward_func_names, strict=True)
    ]
    try:
        yield errors
    finally:
        trainer.reward_funcs = originals


def _placeholder(prompts: list, **kwargs: Any) -> list[float]:
    return [0.0] * len(prompts)


def _guard(function: Any, name: str, errors: list[Exception]) -> Any:
    if isinstance(function, nn.Module):
        return _GuardedModule(function, name, errors)
    guard = _GuardedAsyncFunction if is_async_callable(function) else _GuardedFunction
    return guard(function, name, errors)


class _GuardedFunction:
    def __init__(self, function: Callable[..., Any], name: str, errors: list[Exception]):
        self.function, self.name, self.errors = function, name, errors

    def __call__(self, prompts: list, **kwargs: Any) -> list[float]:
        try:
            return _checked_rewards(self.function(prompts=prompts, **kwargs), self.name, len(prompts))
        except Exception as error:
            return _keep(error, self.name, self.errors, len(prompts))


class _GuardedAsyncFunction(_GuardedFunction):
    async def __call__(self, prompts: list, **kwargs: Any) -> list[float]:  # type: ignore[override]
        try:
            return _checked_rewards(await self.function(prompts=prompts, **kwargs), self.name, len(prompts))
        except Exception as error:
            return _keep(error, self.name, self.errors, len(prompts))


class _GuardedModule(nn.Module):
    def __init__(self, module: nn.Module, name: str, errors: list[Exception]):
        super().__init__()
        self.module, self.name, self.errors = module, name, errors

    def forward(self, **inputs: Any) -> Any:
        rows = len(inputs["input_ids"])
        device = inputs["input_ids"].device
        try:
            logits = self.module(**inputs).logits  # (rows, 1)
            _checked_rewards(logits[:, 0], self.name, rows)
        except Exception as error:
            logits = torch.tensor(_keep(error, self.name, self.errors, rows), device=device).unsqueeze(1)
        return SimpleNamespace(logits=logits)


def _keep(error: Exception, name: str, errors: list[Exception], rows: int) -> list[float]:
    error.add_note(f"Raised by the reward function '{name}'.")
    errors.append(error)
    return [math.nan] * rows


def _checked_rewards(rewards: Any, name: str, rows: int) -> list[float]:
    """Rewards as floats, `None` as NaN; what is not one finite number (or `None`) per completion is an error."""
    if isinstance(rewards, (int, float, str)) or not hasattr(rewards, "__iter__"):
        raise TypeError(
            f"The reward function '{name}' returned {rewards!r}; return a list, one reward per completion."
        )
    values = rewards.tolist() if isinstance(rewards, torch.Tensor) else list(rewards)
    if len(values) != rows:
        raise ValueError(
            f"The reward function '{name}' returned {len(values)} rewards, but {rows} were expected, one per "
            "completion."
        )
    floats = [math.nan if value is None else float(value) for value in values]
    for row, value in enumerate(floats):
        if math.isinf(value):
            raise ValueError(
                f"The reward function '{name}' returned {value} for row {row}. Return a finite number, or None for a "
                "completion that cannot be scored."
            )
    return floats
