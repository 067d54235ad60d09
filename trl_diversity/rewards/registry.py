# SPDX-License-Identifier: Apache-2.0
"""The reward functions that a configuration may name without a dotted path."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any


REGISTERED_REWARDS = (
    "accuracy_reward",
    "reasoning_accuracy_reward",
    "think_format_reward",
    "get_soft_overlong_punishment",
)
_NEED_MATH_VERIFY = ("accuracy_reward", "reasoning_accuracy_reward")
# Share of the allowed length in which the penalty grows: 256 of 1280 tokens in TRL's script, 4096 of 20480 in DAPO.
_OVERLONG_SHARE = 5


def registered_reward(name: str, max_completion_length: int) -> Callable[..., Any]:
    """
    One of TRL's reward functions.

    Args:
        name (`str`):
            One of `REGISTERED_REWARDS`.
        max_completion_length (`int`):
            In tokens. `get_soft_overlong_punishment` begins to punish at four fifths of it.

    Raises:
        `ImportError`: if the function needs a package that is not installed.
    """
    from trl import rewards

    if name in _NEED_MATH_VERIFY and find_spec("math_verify") is None:
        raise ImportError(f"{name} needs math-verify: `pip install 'trl-diversity[math]'`")
    if name == "get_soft_overlong_punishment":
        return rewards.get_soft_overlong_punishment(
            max_completion_len=max_completion_length,
            soft_punish_cache=max(1, max_completion_length // _OVERLONG_SHARE),
        )
    return getattr(rewards, name)
