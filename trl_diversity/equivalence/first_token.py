# SPDX-License-Identifier: Apache-2.0
"""Saves a pair classifier the work of its last layer that nobody reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch


# Encoders whose head reads the first token alone, and whose layers are built as BERT's are: attribute of the encoder.
_READ_FIRST_TOKEN = {
    "BertForSequenceClassification": "bert",
    "CamembertForSequenceClassification": "roberta",
    "ElectraForSequenceClassification": "electra",
    "RobertaForSequenceClassification": "roberta",
    "XLMRobertaForSequenceClassification": "roberta",
}


@contextmanager
def only_first_token(model: Any) -> Iterator[None]:
    """
    Within the context the last layer of `model` computes its first token only; the logits are the same.

    A classifier head that reads `[CLS]` needs the keys and values of all tokens in the last layer, but query, output
    and feed-forward of one: 5 of 6 of that layer's multiplications are not needed, 14 % of a model of six layers.
    A model of another kind, in training, or with another attention than torch's own is left as it is.

    Args:
        model (`torch.nn.Module`):
            A sequence classifier of transformers. It must not be trained or moved within the context.
    """
    layer = _last_layer(model)
    if layer is None:
        yield
        return
    layer.forward = partial(_forward_first_token, layer)
    try:
        yield
    finally:
        del layer.forward  # the method of the class shows again


def _last_layer(model: Any) -> Any:
    attribute = _READ_FIRST_TOKEN.get(type(model).__name__)
    if attribute is None or model.training or not type(model).__module__.startswith("transformers."):
        return None
    if model.config._attn_implementation != "sdpa" or model.config.is_decoder:
        return None
    return getattr(model, attribute).encoder.layer[-1]


def _forward_first_token(
    layer: Any, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, *_: Any, **__: Any
) -> torch.Tensor:
    """Output of `layer` for the first token, `(batch, 1, hidden_size)`; all tokens go in."""
    attention = layer.attention.self
    first = hidden_states[:, :1]
    heads = (hidden_states.shape[0], -1, attention.num_attention_heads, attention.attention_head_size)
    context = torch.nn.functional.scaled_dot_product_attention(
        attention.query(first).view(heads).transpose(1, 2),
        attention.key(hidden_states).view(heads).transpose(1, 2),
        attention.value(hidden_states).view(heads).transpose(1, 2),
        attn_mask=None if attention_mask is None else attention_mask[:, :, :1],
        scale=attention.scaling,
    )
    context = context.transpose(1, 2).reshape(first.shape[0], 1, -1)
    return layer.feed_forward_chunk(layer.attention.output(context, first))
