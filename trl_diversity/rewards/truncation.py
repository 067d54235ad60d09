# SPDX-License-Identifier: Apache-2.0
"""Shortens what a reward model reads from the left, so that the end, where the reward is read, always stays."""

from typing import Any

import torch
from torch import nn


def keep_the_end(inputs: dict[str, torch.Tensor], limit: int, first_token_id: int | None) -> dict[str, torch.Tensor]:
    """
    Cut rows of more than `limit` tokens on the left.

    Args:
        inputs (`dict[str, torch.Tensor]` of tensors of shape `(rows, tokens)`):
            `input_ids`, `attention_mask` (1 = counts; rows padded on the right) and what else a tokenizer gives.
        limit (`int`):
            Most tokens of a row.
        first_token_id (`int`, *optional*):
            Token that stays at the beginning of a row that begins with it: models attend to it from everywhere.

    Returns:
        `dict[str, torch.Tensor]` of shape `(rows, at most limit)`; the same where nothing is too long.
    """
    lengths = inputs["attention_mask"].sum(dim=1).tolist()  # (rows,)
    if max(lengths) <= limit:
        return inputs
    rows = []
    for index, length in enumerate(lengths):
        keeps_first = length > limit and inputs["input_ids"][index, 0].item() == first_token_id
        rows.append(_kept_positions(length, limit, keeps_first))
    width = max(map(len, rows))
    kept = {}
    for name, values in inputs.items():
        cut = values.new_zeros((len(rows), width))
        if name == "input_ids":  # positions past a row's end keep its padding token
            cut[:] = values[:, -1:]
        for index, positions in enumerate(rows):
            cut[index, : len(positions)] = values[index, positions]
        kept[name] = cut
    return kept


def readable_tokens(model: Any) -> int | None:
    """
    Most tokens that a model can read, or `None` if nothing says so.

    RoBERTa and its kin count positions from behind the padding token's, so that some of their positions are not used.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            A loaded model.
    """
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is None:
        return None
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return limit if module.padding_idx is None else limit - module.padding_idx - 1
    return limit


def truncate_on_the_left(model: nn.Module, limit: int, first_token_id: int | None) -> None:
    """
    Make a model shorten its inputs to `limit` tokens before it reads them.

    Args:
        model (`nn.Module`):
            Called with keyword arguments, as TRL calls reward models.
        limit (`int`):
            Most tokens.
        first_token_id (`int`, *optional*):
            As in [`keep_the_end`].
    """

    def shorten(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if "input_ids" not in kwargs or "attention_mask" not in kwargs:
            return args, kwargs
        shape = kwargs["input_ids"].shape
        inputs = {
            name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor) and value.shape == shape
        }
        return args, {**kwargs, **keep_the_end(inputs, limit, first_token_id)}

    model.register_forward_pre_hook(shorten, with_kwargs=True)


def _kept_positions(length: int, limit: int, keeps_first: bool) -> list[int]:
    if length <= limit:
        return list(range(length))
    if keeps_first and limit > 1:
        return [0, *range(length - limit + 1, length)]
    return list(range(length - limit, length))
