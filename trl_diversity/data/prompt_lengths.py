# SPDX-License-Identifier: Apache-2.0
"""How many tokens a prompt has for a policy: prompts that are too long are left out or reported, never cut."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any


logger = logging.getLogger(__name__)


def prompt_token_count(prompt: Any, tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None = None) -> int:
    """
    Tokens of a prompt as the trainer hands it to the policy, the chat template's own tokens included.

    Args:
        prompt (`str` or `list[dict]`):
            A text, or messages to which the template is applied.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The policy's.
        chat_template_kwargs (`dict`, *optional*):
            As in `GRPOConfig`.

    Returns:
        `int`.
    """
    return prompt_token_counts([prompt], tokenizer, chat_template_kwargs)[0]


def prompt_token_counts(
    prompts: Sequence[Any], tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None = None
) -> list[int]:
    """
    As [`prompt_token_count`], for prompts that are all texts or all conversations.

    Returns:
        `list[int]`: one a prompt.
    """
    if not prompts:
        return []
    if isinstance(prompts[0], str):
        return [len(ids) for ids in tokenizer(list(prompts))["input_ids"]]
    encoded = tokenizer.apply_chat_template(
        list(prompts), add_generation_prompt=True, tokenize=True, return_dict=True, **(chat_template_kwargs or {})
    )
    return [len(ids) for ids in encoded["input_ids"]]


def drop_long_prompts(
    dataset: Any, tokenizer: Any, max_prompt_tokens: int, chat_template_kwargs: Mapping[str, Any] | None = None
) -> Any:
    """
    A data set without the prompts that have more tokens than allowed.

    Args:
        dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            With the column `prompt`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The policy's.
        max_prompt_tokens (`int`):
            Most tokens, the chat template's included.
        chat_template_kwargs (`dict`, *optional*):
            As in `GRPOConfig`.

    Raises:
        `ValueError`: if the limit is below 1, or no prompt is left.
    """
    if max_prompt_tokens < 1:
        raise ValueError(f"`max_prompt_tokens` is at least 1; got {max_prompt_tokens}.")
    kept = dataset.filter(
        partial(_fits, tokenizer=tokenizer, limit=max_prompt_tokens, chat_template_kwargs=chat_template_kwargs)
    )
    if not hasattr(kept, "num_rows"):  # rows are read while training
        logger.info("Prompts of more than %d tokens are left out as they are read.", max_prompt_tokens)
        return kept
    if not kept.num_rows:
        raise ValueError(
            f"all {dataset.num_rows} prompts have more than `max_prompt_tokens={max_prompt_tokens}` tokens. Raise it, "
            "or look at the chat template."
        )
    dropped = dataset.num_rows - kept.num_rows
    logger.info(
        "%d of %d prompts have more than %d tokens and are left out.", dropped, dataset.num_rows, max_prompt_tokens
    )
    return kept


def refuse_long_prompts(
    dataset: Any, tokenizer: Any, limit: int, why: str, chat_template_kwargs: Mapping[str, Any] | None = None
) -> Any:
    """
    Report the first prompt that the generator could not take, before it is asked.

    A data set that is read while training is checked as it is read.

    Args:
        dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            With the column `prompt`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The policy's.
        limit (`int`):
            Most tokens of a prompt.
        why (`str`):
            Where the limit comes from, for the message.
        chat_template_kwargs (`dict`, *optional*):
            As in `GRPOConfig`.

    Returns:
        The data set.

    Raises:
        `ValueError`: naming the row and its tokens.
    """
    check = partial(_check_row, tokenizer=tokenizer, limit=limit, why=why, chat_template_kwargs=chat_template_kwargs)
    if not hasattr(dataset, "num_rows"):
        return dataset.map(check, with_indices=True)
    for index, prompt in enumerate(dataset["prompt"]):
        check({"prompt": prompt}, index)
    return dataset


def _fits(row: dict[str, Any], tokenizer: Any, limit: int, chat_template_kwargs: Any) -> bool:
    return prompt_token_count(row["prompt"], tokenizer, chat_template_kwargs) <= limit


def _check_row(
    row: dict[str, Any], index: int, tokenizer: Any, limit: int, why: str, chat_template_kwargs: Any
) -> dict[str, Any]:
    tokens = prompt_token_count(row["prompt"], tokenizer, chat_template_kwargs)
    if tokens > limit:
        raise ValueError(
            f"the prompt of row {index} has {tokens} tokens, and {why} leave room for {limit}: {_beginning(row)!r}. "
            f"Set `max_prompt_tokens: {max(limit, 1)}` to leave such prompts out, or raise the limit."
        )
    return row


def _beginning(row: dict[str, Any]) -> str:
    prompt = row["prompt"]
    text = prompt if isinstance(prompt, str) else str(prompt[-1].get("content", ""))
    return text if len(text) <= 60 else f"{text[:57]}..."
