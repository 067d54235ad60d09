# SPDX-License-Identifier: Apache-2.0
"""Loads reward models, and refuses a checkpoint that would get a random head."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl_diversity.zero3 import outside_zero3


def load_reward_model(name_or_path: str, *, dtype: str | None = None, trust_remote_code: bool = False) -> Any:
    """
    Load a reward model: a sequence classifier with one label, or a model of the shape of Nexusflow/Athene-RM-8B.

    Which of the two it is, the names of the checkpoint's weights tell. It is loaded whole on each process, also where
    DeepSpeed ZeRO-3 shards the policy. A conversation that is longer than the model can read is cut on the left.

    Args:
        name_or_path (`str`):
            Hub name or directory.
        dtype (`str`, *optional*):
            Data type of the weights, or `"auto"`. That of the checkpoint by default.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run.

    Returns:
        [`~transformers.PreTrainedModel`], which gives `logits` of shape `(rows, 1)`.

    Raises:
        `ValueError`: if the checkpoint lacks weights of such a model, which would be made up at random.
    """
    from trl_diversity.rewards.athene import HEAD_WEIGHT, AtheneRewardModel
    from trl_diversity.rewards.truncation import readable_tokens, truncate_on_the_left

    if HEAD_WEIGHT in weight_names(name_or_path):
        return _load_strictly(AtheneRewardModel, name_or_path, dtype=dtype or "auto")
    from transformers import AutoModelForSequenceClassification

    model = _load_strictly(
        AutoModelForSequenceClassification,
        name_or_path,
        num_labels=1,
        dtype=dtype or "auto",
        trust_remote_code=trust_remote_code,
    )
    if (limit := readable_tokens(model)) is not None:
        truncate_on_the_left(model, limit, getattr(model.config.get_text_config(), "bos_token_id", None))
    return model


def load_named_reward_models(reward_funcs: Any, model_init_kwargs: dict[str, Any] | None, trust: bool) -> Any:
    """
    The reward functions of a trainer with every name replaced by its model, which TRL would give a random head.

    Args:
        reward_funcs (`str`, `Callable` or `list`):
            As [`~trl.GRPOTrainer`] takes them.
        model_init_kwargs (`dict`, *optional*):
            Of the training arguments; `dtype` counts.
        trust (`bool`):
            Whether code from checkpoints may run.

    Returns:
        The same, a list where it was one.
    """
    if isinstance(reward_funcs, str):
        dtype = (model_init_kwargs or {}).get("dtype")
        return load_reward_model(reward_funcs, dtype=dtype, trust_remote_code=trust)
    if isinstance(reward_funcs, list):
        return [load_named_reward_models(function, model_init_kwargs, trust) for function in reward_funcs]
    return reward_funcs


def weight_names(name_or_path: str) -> Sequence[str]:
    """Names of the weights of a checkpoint in safetensors files; none where it has no such files."""
    from safetensors import safe_open
    from transformers.utils import cached_file

    index = cached_file(name_or_path, "model.safetensors.index.json", _raise_exceptions_for_missing_entries=False)
    if index is not None:
        return list(json.loads(Path(index).read_text())["weight_map"])
    whole = cached_file(name_or_path, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    if whole is None:
        return []
    with safe_open(whole, framework="pt") as weights:
        return list(weights.keys())


def _load_strictly(model_class: Any, name_or_path: str, **options: Any) -> Any:
    with outside_zero3():
        model, report = model_class.from_pretrained(
            name_or_path, output_loading_info=True, use_safetensors=True, **options
        )
    if report["missing_keys"]:
        raise ValueError(
            f"{name_or_path!r} is no reward model: its checkpoint has no weights {sorted(report['missing_keys'])}, "
            "which would be random. Name a checkpoint of a sequence classifier with one label."
        )
    return model
