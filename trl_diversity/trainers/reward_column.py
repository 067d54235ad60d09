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


def only_reward_column(name: str) -> Callable[..., list[float]]:
    """A reward function that stands for the column where there is no other: TRL needs at least one."""

    def placeholder(prompts: list, **kwargs: Any) -> list[float]:
        return _placeholder(prompts)

    placeholder.__name__ = name
    return placeholder


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
    functions, processing_classes = trainer.reward_funcs, trainer.reward_processing_classes
    names = trainer.reward_func_names
    trainer.reward_funcs = [_guard(function, name, errors) for function, name in zip(functions, names, strict=True)]
    guarded: list[Any] = [
        None if processing_class is None else _GuardedProcessingClass(processing_class, name, errors)
        for processing_class, name in zip(processing_classes, names, strict=True)
    ]
    trainer.reward_processing_classes = guarded
    try:
        yield errors
    finally:
        trainer.reward_funcs, trainer.reward_processing_classes = functions, processing_classes


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


class _GuardedProcessingClass:
    """A reward model's tokenizer. Where it fails, it hands on one padding token a row: the model is called all the
    same, since its forward pass may be a collective (FSDP, ZeRO-3)."""

    def __init__(self, processing_class: Any, name: str, errors: list[Exception]):
        self.processing_class, self.name, self.errors = processing_class, name, errors

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.processing_class, attribute)

    def __call__(self, text: list[str], **kwargs: Any) -> Any:
        try:
            return self.processing_class(text=text, **kwargs)
        except Exception as error:
            _keep(error, self.name, self.errors, len(text))
            input_ids = torch.full((len(text), 1), self.processing_class.pad_token_id)  # (rows, 1)
            return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.processing_class.apply_chat_template(*args, **kwargs)
        except Exception as error:
            _keep(error, self.name, self.errors, rows=0)
            return ""


def _keep(error: Exception, name: str, errors: list[Exception], rows: int) -> list[float]:
    error.add_note(f"Raised by the reward function '{name}'.")
    errors.append(error)
    return [math.nan] * rows


def _checked_rewards(rewards: Any, name: str, rows: int) -> list[float]:
    """Rewards as floats, `None` as NaN; what is not one finite number (or `None`) per completion is an error."""
    if isinstance(rewards, str) or not hasattr(rewards, "__iter__") or getattr(rewards, "ndim", 1) == 0:
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
        if abs(value) > torch.finfo(torch.float32).max:  # also what is infinite in TRL's tensor alone
            raise ValueError(
                f"The reward function '{name}' returned {value} for row {row}. Return a finite number, or None for a "
                "completion that cannot be scored."
            )
    return floats
