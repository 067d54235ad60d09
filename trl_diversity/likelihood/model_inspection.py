# SPDX-License-Identifier: Apache-2.0
"""What a policy is under its wrappers: signature, attention, adapter, and training mode."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


# DDP and FSDP1, torch.compile, and PEFT keep the model that they wrap under these names.
_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module")
# TRL keeps the policy as it was at the start under this adapter name.
REFERENCE_ADAPTER = "ref"
_DEFAULT_ADAPTER = "default"


def _unwrapped(model: Any) -> Any | None:
    """The model inside DDP, FSDP or `torch.compile`, one layer down; `None` if there is no such wrapper."""
    inner = (getattr(model, name, None) for name in _WRAPPED)
    return next((module for module in inner if isinstance(module, nn.Module)), None)


def peft_layer(model: nn.Module) -> Any | None:
    """The PEFT model among a model's wrappers, or `None`."""
    layer: Any = model
    while layer is not None and not (hasattr(layer, "peft_config") and hasattr(layer, "get_base_model")):
        layer = _unwrapped(layer)
    return layer


def base_model(model: nn.Module) -> Any:
    """The transformers model under all wrappers."""
    peft = peft_layer(model)
    layer: Any = model if peft is None else peft.get_base_model()
    while (inner := _unwrapped(layer)) is not None:
        layer = inner
    return layer


def forward_parameters(model: nn.Module) -> frozenset[str]:
    """Names of the parameters of the transformers model's own `forward`, whatever has been patched over it."""
    return frozenset(inspect.signature(type(base_model(model)).forward).parameters)


def shared_pass_obstacle(model: nn.Module) -> str | None:
    """
    Why a model cannot score two continuations in one pass with a mask of its own, or `None` if nothing speaks against.

    The one pass needs an attention that takes a 4-dimensional mask and positions, in every layer.
    """
    base = base_model(model)
    config = base.config.get_text_config()
    attention = getattr(config, "_attn_implementation", None)
    if attention not in ("sdpa", "eager"):
        return f"attention implementation {attention!r} takes no mask of its own (sdpa and eager do)"
    layers = set(getattr(config, "layer_types", None) or ())
    if layers - {"full_attention"}:
        return f"layers of type {sorted(layers - {'full_attention'})}"
    window = getattr(config, "sliding_window", None)
    if window and not layers and getattr(config, "use_sliding_window", True):
        return f"attention within a sliding window of {window}"
    for name in ("position_ids", "logits_to_keep"):
        if name not in forward_parameters(model):
            return f"{type(base).__name__}.forward has no parameter {name!r}"
    if has_virtual_tokens(model):
        return "a prompt-learning adapter puts tokens of its own in front"
    return None


def has_virtual_tokens(model: nn.Module) -> bool:
    """Whether an adapter puts tokens of its own in front (prompt tuning, prefix tuning)."""
    peft = peft_layer(model)
    return peft is not None and any(settings.is_prompt_learning for settings in peft.peft_config.values())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the body; afterwards every module has the mode that it had, also after an exception."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def policy_adapter(model: nn.Module, adapter_name: str | None = None) -> Iterator[None]:
    """
    The policy's adapter for the body, where the model has adapters; afterwards everything is as it was.

    Args:
        model (`nn.Module`):
            Model with or without PEFT and other wrappers.
        adapter_name (`str`, *optional*):
            Adapter to use. By default the active one, or `"default"` if the reference policy's (`"ref"`) is active.

    Raises:
        `ValueError`: if there is no such adapter.
    """
    peft = peft_layer(model)
    active = None if peft is None else peft.active_adapter
    wanted = adapter_name or (_DEFAULT_ADAPTER if active == REFERENCE_ADAPTER else active)
    if peft is None or wanted == active:
        if wanted is not None and peft is None:
            raise ValueError(f"adapter_name={adapter_name!r}, but the model has no adapters; leave adapter_name out")
        yield
        return
    if wanted not in peft.peft_config:
        raise ValueError(f"no adapter {wanted!r}; the model has {sorted(peft.peft_config)}; pass adapter_name")
    trainable = [(parameter, parameter.requires_grad) for parameter in peft.parameters()]
    peft.set_adapter(wanted)
    try:
        yield
    finally:
        peft.set_adapter(active)
        for parameter, requires_grad in trainable:
            parameter.requires_grad_(requires_grad)
