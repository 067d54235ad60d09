# SPDX-License-Identifier: Apache-2.0
"""From the names of rewards in a configuration to the reward functions and models of a trainer."""

import difflib
import os
from collections.abc import Sequence
from typing import Any

from trl_diversity.rewards.loading import load_reward_model
from trl_diversity.rewards.registry import REGISTERED_REWARDS, registered_reward
from trl_diversity.rewards.remote import is_remote_reward, remote_reward_from


def resolve_reward_functions(
    names: Sequence[str] | None,
    weights: Sequence[float] | None = None,
    *,
    max_completion_length: int,
    dtype: str | None = None,
    device: str | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    trust_remote_code: bool = False,
) -> list[Any]:
    """
    Turn names of rewards into reward functions and reward models.

    Args:
        names (`Sequence[str]`):
            Each is one of `REGISTERED_REWARDS` (TRL's functions), a directory or Hub name of a reward model (it holds
            a slash), addresses of servers of a reward model (see [`remote_reward_from`]), or the dotted path of a
            function, or of a class that needs no arguments and whose instances are called.
        weights (`Sequence[float]`, *optional*):
            Their weights, which are only counted here.
        max_completion_length (`int`):
            In tokens. `get_soft_overlong_punishment` begins to punish at four fifths of it.
        dtype (`str`, *optional*):
            Data type of reward models. That of their checkpoints by default.
        device (`str`, *optional*):
            Where reward models lie, outside of the trainer ([`LocalRewardModel`]). By default the trainer gets them as
            modules and moves them to its own device.
        chat_template_kwargs (`dict`, *optional*):
            Of the training arguments: the trainer hands them to its modules, and models elsewhere must read the same.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint of a reward model may run.

    Returns:
        `list`: one function or model for every name, in order.

    Raises:
        `FileNotFoundError`: if a name looks like a directory and is not there.
        `ImportError`: if a function needs a package that is not installed.
        `ValueError`: if there are no names, a weight is missing, a name is none of the above, or there is no such
            device.
    """
    names = names or []
    _check_counts(names, weights)
    kinds = [_kind(name) for name in names]  # all names are checked before the first model is loaded
    return [
        registered_reward(name, max_completion_length)
        if kind == "registered"
        else _dotted(name)
        if kind == "dotted"
        else remote_reward_from(name, trust_remote_code, chat_template_kwargs)
        if kind == "remote"
        else _reward_model(os.path.expanduser(name), device, chat_template_kwargs, dtype, trust_remote_code)
        for name, kind in zip(names, kinds, strict=True)
    ]


def reward_function(name: str) -> Any:
    """
    What is called for a reward that is a function, and `None` for a reward model. Nothing is built or loaded.

    Raises:
        `FileNotFoundError`, `ImportError`, `ValueError`: as [`resolve_reward_functions`] does.
    """
    kind = _kind(name)
    if kind == "registered":
        return registered_reward(name, max_completion_length=1)
    if kind != "dotted":
        return None
    from trl_diversity.trainers.diversity_source import import_dotted

    found = import_dotted(name)
    return found.__call__ if isinstance(found, type) else found


def _reward_model(
    name: str, device: str | None, chat_template_kwargs: dict[str, Any] | None, dtype: str | None, trust: bool
) -> Any:
    if device is None:
        return load_reward_model(name, dtype=dtype, trust_remote_code=trust)
    from trl_diversity.rewards.local import LocalRewardModel

    return LocalRewardModel(
        name, device=device, dtype=dtype, chat_template_kwargs=chat_template_kwargs, trust_remote_code=trust
    )


def _check_counts(names: Sequence[str], weights: Sequence[float] | None) -> None:
    if not names:
        raise ValueError(
            f"`reward_funcs` is empty: name at least one of {', '.join(REGISTERED_REWARDS)}, the dotted path of a "
            "function, or the name or path of a reward model."
        )
    if weights is not None and len(weights) != len(names):
        raise ValueError(
            f"`reward_weights` has {len(weights)} values ({list(weights)}) for the {len(names)} of `reward_funcs` "
            f"({list(names)}). Give one for each, in the same order."
        )


def _kind(name: str) -> str:
    if name in REGISTERED_REWARDS:
        return "registered"
    if is_remote_reward(name):
        return "remote"
    if os.path.isdir(os.path.expanduser(name)):
        return "model"
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"there is no directory {name!r} to load a reward model from")
    if "/" in name:
        return "model"
    if "." in name:
        return "dotted"
    nearest = difflib.get_close_matches(name, REGISTERED_REWARDS, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"{name!r} names no reward. Accepted are {', '.join(REGISTERED_REWARDS)} (the nearest is {nearest}), a dotted "
        "path such as my_module.my_reward, the Hub name (owner/name) or directory of a reward model, and addresses of "
        "servers of one (http://localhost:8000)."
    )


def _dotted(name: str) -> Any:
    from trl_diversity.trainers.diversity_source import import_dotted

    found = import_dotted(name)
    reward = found() if isinstance(found, type) else found
    if not callable(reward):
        raise ValueError(f"{name!r} is of type {type(reward).__name__}, which cannot be called as a reward function.")
    return reward
