# SPDX-License-Identifier: Apache-2.0
"""Quality of completions by a reward that is named as in a recipe's `reward_funcs`, outside of a trainer."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


_GIVEN = ("self", "prompts", "completions")


def load_quality(
    name: str,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> Callable[[Sequence[Any], Sequence[str]], list[float]]:
    """
    A function of prompts and completions that gives one reward each.

    Args:
        name (`str`):
            Hub name or directory of a reward model, addresses of its servers, the dotted path of a function, or the
            name of one of TRL's.
        device (`str`, *optional*), dtype (`str`, *optional*), trust_remote_code (`bool`, *optional*):
            Of a reward model.
        chat_template_kwargs (`dict`, *optional*):
            Further arguments of its chat template.

    Returns:
        `Callable[[Sequence[Any], Sequence[str]], list[float]]`: prompts are texts or conversations; functions get both
        as conversations.

    Raises:
        `ValueError`: if a function needs more than prompts and completions; on use, if a reward is missing or not
            finite.
    """
    from trl_diversity.devices import process_device
    from trl_diversity.evaluation.generation import as_messages
    from trl_diversity.scripts.reward_functions import resolve_reward_functions

    require_no_columns(name)
    (reward,) = resolve_reward_functions(
        [name],
        max_completion_length=4096,
        dtype=dtype,
        device=device or str(process_device()),
        chat_template_kwargs=chat_template_kwargs,
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


def require_no_columns(name: str) -> None:
    """
    Refuse a reward function that needs more than prompts and completions, before any is drawn. Nothing is loaded.

    Args:
        name (`str`):
            As for [`load_quality`].

    Raises:
        `ValueError`: naming what it needs, or if the name is no reward.
    """
    from trl_diversity.scripts.reward_functions import reward_function

    function = reward_function(name)
    if function is None:
        return
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in _GIVEN
    ]
    if needed:
        raise ValueError(
            f"the reward {name!r} needs {', '.join(needed)} besides prompts and completions, which there is none of "
            "here. Name a reward model or a function of these two; answers with references are graded by "
            "`trl-diversity evaluate pass-at-k`"
        )
