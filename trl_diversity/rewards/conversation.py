# SPDX-License-Identifier: Apache-2.0
"""The text that a reward model reads."""

import logging
from collections.abc import Mapping
from typing import Any


logger = logging.getLogger(__name__)


def conversation_text(prompt: Any, completion: Any, tokenizer: Any, chat_template_kwargs: Mapping[str, Any]) -> str:
    """
    What TRL gives to a reward model.

    Args:
        prompt, completion (`str` or `list[dict]`):
            Texts are joined as they are; messages go through the reward model's chat template.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The reward model's.
        chat_template_kwargs (`Mapping`):
            Further arguments of the template.
    """
    if isinstance(prompt, str):
        return prompt + completion
    from trl.data_utils import apply_chat_template

    return apply_chat_template({"messages": [*prompt, *completion]}, tokenizer, **chat_template_kwargs)["text"]


def ensure_pad_token(tokenizer: Any) -> None:
    """Pad with the token that ends a text where a reward model's tokenizer has none for it, as TRL does."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def point_out_padding(tokenizer: Any, name: str) -> None:
    """
    Say it if TRL's choice of a pad token moves the place where a reward is read.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            A reward model's, with its pad token.
        name (`str`):
            Of the reward model.
    """
    has_own = getattr(tokenizer, "init_kwargs", {}).get("pad_token") is not None
    if not has_own and tokenizer.pad_token == tokenizer.eos_token:
        logger.warning(
            "The tokenizer of the reward model %s has no pad token. As in TRL, %s pads, so that the reward is read at "
            "the token before the one that ends the text. That is right for a model that TRL's RewardTrainer trained. "
            "If yours was read at the end itself, save its tokenizer with another pad token.",
            name,
            tokenizer.pad_token,
        )
