# SPDX-License-Identifier: Apache-2.0
"""Quality of completions by a reward that is named as in a recipe's `reward_funcs`, outside of a trainer."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


def load_quality(
    name: str, device: str | None = None, dtype: str | None = None, trust_remote_code: bool = False
) -> Callable[[Sequence[Any], Sequence[str]], list[float]]:
    """
    A function of prompts and completions that gives one reward each.

    Args:
        name (`str`):
            Hub name or directory of a reward model, addresses of its servers, the dotted path of a function, or the
            name of one of TRL's.
        device (`str`, *optional*), dtype (`str`, *optional*), trust_remote_code (`bool`, *optional*):
            Of a reward model.

    Returns:
        `Callable[[Sequence[Any], Sequence[str]], list[float]]`: prompts are texts or conversations; functions get both
        as conversations.

    Raises:
        `ValueError`: on use, if a reward is missing or not finite.
    """
    from trl_diversity.devices import process_device
    from trl_diversity.evaluation.generation import as_messages
    from trl_diversity.scripts.reward_functions import resolve_reward_functions

    (reward,) = resolve_reward_functions(
        [name],
        max_completion_length=4096,
        dtype=dtype,
        device=device or str(process_device()),
        trust_remote_code=trust_remote_code,
    )

    def checked(prompts: Sequence[Any], completions: Sequence[str]) -> list[float]:
        answers = [[{"role": "assistant", "content": completion}] for completion in completions]
        given = reward(prompts=[as_messages(prompt) for prompt in prompts], completions=answers)
        if inspect.isawaitable(given):
            given = asyncio.run(_value_of(given))
        rewards = [math.nan if value is None else float(value) for value in given]
        if len(rewards) != len(completions) or not all(map(math.isfinite, rewards)):
            raise ValueError(f"the reward {name!r} must give {len(completions)} finite numbers; got {rewards!r:.200}")
        return rewards

    return checked


async def _value_of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
