# SPDX-License-Identifier: Apache-2.0
"""The text that a reward model reads."""

from collections.abc import Mapping
from typing import Any


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
