# SPDX-License-Identifier: Apache-2.0
"""Rewards that read only the text of a completion: its format, and RLPR's penalty for repetition."""

import re
from collections import Counter

from trl_diversity.likelihood.answer_span import ANSWER, END_ANSWER, END_THINK, THINK


FORMAT_STYLES = {"r1": (THINK, END_THINK, ANSWER, END_ANSWER), "r1_nothink": (ANSWER, END_ANSWER)}


def format_reward(completion: str, style: str = "r1", *, prompt_tail: str = "") -> float:
    """
    Whether a completion has the tags that it should have (arXiv 2506.18254, format reward).

    Args:
        completion (`str`):
            Text of the completion, special tokens included where tags are special tokens.
        style (`str`, *optional*, defaults to `"r1"`):
            `"r1"`: each of `<think> </think> <answer> </answer>` occurs exactly once, in this order. `"r1_nothink"`:
            the same for `<answer> </answer>` only.
        prompt_tail (`str`, *optional*, defaults to `""`):
            What the prompt already holds of the assistant's turn, see [`assistant_tail`]. Its tags count.

    Returns:
        `float`: 1.0 or 0.0.

    Raises:
        `ValueError`: if `style` is unknown.
    """
    if style not in FORMAT_STYLES:
        raise ValueError(f"format style {style!r} is unknown; expected one of {', '.join(FORMAT_STYLES)}")
    text = prompt_tail + completion
    places = [text.find(tag) for tag in FORMAT_STYLES[style]]
    once = all(text.count(tag) == 1 for tag in FORMAT_STYLES[style])
    return float(once and places == sorted(places))


def repetition_penalty(completion: str, *, window: int = 10, limit: int = 10) -> float:
    """
    RLPR's penalty for a completion that repeats itself (arXiv 2506.18254, released code).

    Args:
        completion (`str`):
            Text of the completion. Words are separated by white space or underscores.
        window (`int`, *optional*, defaults to `10`):
            Number of words in a window. Windows overlap.
        limit (`int`, *optional*, defaults to `10`):
            How often one window must occur.

    Returns:
        `float`: -1.0 if some window occurs at least `limit` times, else 0.0. It is added to the reward.

    Raises:
        `ValueError`: if `window` or `limit` is below 1.
    """
    if window < 1 or limit < 1:
        raise ValueError(f"window={window} and limit={limit} must be at least 1")
    words = re.findall(r"[^\s_]+", completion)
    counts = Counter(tuple(words[start : start + window]) for start in range(len(words) - window + 1))
    return -1.0 if max(counts.values(), default=0) >= limit else 0.0
