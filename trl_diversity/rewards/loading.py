# SPDX-License-Identifier: Apache-2.0
"""Loads reward models, and refuses a checkpoint that would get a random head."""

from typing import Any


def load_reward_model(name_or_path: str, *, dtype: str | None = None, trust_remote_code: bool = False) -> Any:
    """
    Load a reward model: a sequence classifier with one label.

    Args:
        name_or_path (`str`):
            Hub name or directory.
        dtype (`str`, *optional*):
            Data type of the weights, or `"auto"`. That of the checkpoint by default.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run.

    Returns:
        [`~transformers.PreTrainedModel`].

    Raises:
        `ValueError`: if the checkpoint lacks weights of such a model, which would be made up at random.
    """
    from transformers import AutoModelForSequenceClassification

    model, report = AutoModelForSequenceClassification.from_pretrained(
        name_or_path,
        num_labels=1,
        dtype=dtype or "auto",
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    if report["missing_keys"]:
        raise ValueError(
            f"{name_or_path!r} is no reward model: its checkpoint has no weights {sorted(report['missing_keys'])}, "
            "which would be random. Name a checkpoint of a sequence classifier with one label."
        )
    return model
