# SPDX-License-Identifier: Apache-2.0
"""Adapters for training a large pair classifier, merged into its weights before it is saved."""

from pathlib import Path
from typing import Any


_DROPOUT = 0.05


def add_adapters(model: Any, rank: int) -> None:
    """
    Add LoRA adapters to every linear layer of a sequence classifier; its head is trained whole.

    Args:
        model (`PreTrainedModel`):
            The classifier.
        rank (`int`):
            Of the adapters; they are scaled by two.
    """
    from peft import LoraConfig, inject_adapter_in_model

    heads = head_names(model)
    config = LoraConfig(
        task_type="SEQ_CLS",
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=_DROPOUT,
        target_modules="all-linear",
        exclude_modules=heads,
        modules_to_save=heads,
    )
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or "modules_to_save" in name)


def head_names(model: Any) -> list[str]:
    """Names of all parts with weights that a sequence classifier has besides its base."""
    children = ((name, next(child.parameters(), None)) for name, child in model.named_children())
    return [name for name, weight in children if name != model.base_model_prefix and weight is not None]


def merge_adapters(model: Any) -> None:
    """Put the adapters' product into the weights and take the adapters away: the model is a plain one again."""
    from peft.tuners.lora import LoraLayer
    from peft.utils import ModulesToSaveWrapper

    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()
            _replace(model, name, module.get_base_layer())
        elif isinstance(module, ModulesToSaveWrapper):
            (adapter,) = module.modules_to_save
            _replace(model, name, module.modules_to_save[adapter])
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def load_checkpoint(model: Any, directory: str) -> None:
    """Read the weights of a model with adapters from a checkpoint of its run, which no loader of models knows."""
    from safetensors.torch import load_file

    model.load_state_dict(load_file(Path(directory) / "model.safetensors"))


def _replace(model: Any, name: str, module: Any) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
