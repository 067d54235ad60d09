# SPDX-License-Identifier: Apache-2.0
"""Turns a pair classifier with two labels into its exact equivalent with one, for servers that need that."""

from pathlib import Path
from typing import Any


def needs_one_label(config: Any) -> bool:
    """
    Whether vLLM can score pairs exactly only with one label: it drops token types on the endpoint for two.

    Args:
        config (`PretrainedConfig`):
            Of a pair classifier.
    """
    return config.num_labels == 2 and getattr(config, "type_vocab_size", 0) > 1


def save_with_one_label(
    name_or_path: str,
    directory: str | Path,
    *,
    trust_remote_code: bool = False,
    tokenizer_name_or_path: str | None = None,
) -> str:
    """
    Save a classifier with one label whose sigmoid is the probability of label 1 of one with two labels.

    The softmax of two logits is the sigmoid of their difference: the new head has the difference of the two rows as
    its weights, and that of the two biases as its bias. Threshold and temperature of the checkpoint stay valid.

    Args:
        name_or_path (`str`):
            Hub name or directory of a sequence classifier with two labels.
        directory (`str`):
            Where to save it.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run.
        tokenizer_name_or_path (`str`, *optional*):
            Where the tokenizer is. By default the checkpoint.

    Returns:
        `str`: the directory.

    Raises:
        `ValueError`: if the checkpoint has not two labels, lacks weights, or its head is not one linear layer.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    shared = {"trust_remote_code": trust_remote_code}
    model, report = AutoModelForSequenceClassification.from_pretrained(
        name_or_path, output_loading_info=True, dtype="auto", use_safetensors=True, **shared
    )
    if model.config.num_labels != 2 or report["missing_keys"]:
        raise ValueError(
            f"{name_or_path!r} is no trained classifier with two labels: it has {model.config.num_labels}, and its "
            f"weights lack {sorted(report['missing_keys'])}"
        )
    heads = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module.out_features == 2
    ]
    if len(heads) != 1:
        raise ValueError(
            f"{name_or_path!r} has {len(heads)} linear layers with two outputs; its head must be the only one"
        )
    name, head = heads[0]
    single = torch.nn.Linear(head.in_features, 1, bias=head.bias is not None, dtype=head.weight.dtype)
    with torch.no_grad():
        single.weight.copy_(head.weight[1:] - head.weight[:1])
        if head.bias is not None:
            single.bias.copy_(head.bias[1:] - head.bias[:1])
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, single)
    model.config.num_labels = 1
    model.config.problem_type = None
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(tokenizer_name_or_path or name_or_path, **shared).save_pretrained(directory)
    return str(directory)
