# SPDX-License-Identifier: Apache-2.0
"""Groups of completions, their diversity, and which text of a TRL completion is compared."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


DIVERSITY_TEXTS = ("full", "after_think", "answer", "last_tokens")

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)(?:</answer>|\Z)", re.DOTALL)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is text: it opens and closes nothing
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True)
class CompletionGroup:
    """
    One prompt and its completions.

    Attributes:
        prompt (`str`):
            Text of the last user turn, or the prompt itself where prompts are plain strings.
        completions (`list[str]`):
            The `n` texts that are compared, in order. A text of white space alone is an empty completion.
        mean_logprobs (`list[float]`, *optional*):
            The policy's own mean token log-probability of every completion, in nats. Filled in for measures whose
            `needs_logprobs` is true.
    """

    prompt: str
    completions: list[str]
    mean_logprobs: list[float] | None = None


@dataclass(frozen=True)
class GroupDiversity:
    """
    How unlike the others each completion of one group is.

    Attributes:
        scores (`list[float]`):
            `n` values in `[0, 1]`; higher means more unlike the others.
        labels (`list[int]` or `None`):
            Cluster of every completion, numbered by first appearance. `None` where the measure has no clusters.
    """

    scores: list[float]
    labels: list[int] | None = None


def is_empty(text: str) -> bool:
    """Whether a completion has no text besides white space. Empty completions get diversity 0."""
    return not text.strip()


def message_text(content: Any) -> str:
    """
    Text of the `content` of a chat message: the string itself, or its text parts joined by line breaks.

    `None` and parts that are not text (images, tool calls) count as no text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = (part if isinstance(part, str) else part.get("text") for part in content)
    return "\n".join(part for part in parts if part)


def prompt_text(prompt: str | list[dict[str, Any]]) -> str:
    """Text of the last user turn of a conversational prompt, or the plain prompt as it is."""
    if isinstance(prompt, str):
        return prompt
    for message in reversed(prompt):
        if message.get("role") == "user":
            return message_text(message.get("content"))
    return ""


def completion_text(completion: str | list[dict[str, Any]]) -> str:
    """
    All text of the last assistant turn of a completion.

    Consecutive assistant messages at the end are one turn. Tool output and earlier turns are left out; reasoning that
    a response parser took out of the content is put back between `<think>` tags, so that the text is the same whether
    or not the tokenizer parses responses.
    """
    if isinstance(completion, str):
        return completion
    turn: list[str] = []
    for message in reversed(completion):
        if message.get("role") == "assistant":
            turn.append(_assistant_text(message))
        elif turn:
            break
    return "\n".join(text for text in reversed(turn) if text)


def _assistant_text(message: dict[str, Any]) -> str:
    content = message_text(message.get("content"))
    reasoning = message_text(next((message[key] for key in _REASONING_FIELDS if message.get(key)), None))
    return f"{_THINK_OPEN}\n{reasoning}\n{_THINK_CLOSE}\n\n{content}" if reasoning else content


def narrow_text(text: str, part: str = "full", keep_last_tokens: Callable[[str], str] | None = None) -> str:
    """
    The part of a completion's text that is compared.

    Args:
        text (`str`):
            Text of the last assistant turn.
        part (`str`, *optional*, defaults to `"full"`):
            - `"full"`: all of it.
            - `"after_think"`: what follows the last `</think>`. Reasoning that never ends leaves nothing; a text
              without think tags is kept whole.
            - `"answer"`: the content of the last `<answer>` tag, else of the last `\\boxed{}`, else nothing: a
              completion without an answer counts as an empty one.
            - `"last_tokens"`: its end, as cut by `keep_last_tokens`.
        keep_last_tokens (`Callable[[str], str]`, *optional*):
            Cuts a text to its last tokens. Needed by `"last_tokens"` alone.

    Returns:
        `str`: the text to compare.

    Raises:
        `ValueError`: if `part` is unknown, or `"last_tokens"` has no `keep_last_tokens`.
    """
    if part == "full":
        return text
    if part == "after_think":
        _, closed, answer = text.rpartition(_THINK_CLOSE)
        if closed:
            return answer.strip()
        return "" if _THINK_OPEN in text else text
    if part == "answer":
        return final_answer(text) or ""
    if part == "last_tokens":
        if keep_last_tokens is None:
            raise ValueError("`diversity_text='last_tokens'` needs `keep_last_tokens`, which cuts a text to its end.")
        return keep_last_tokens(text)
    raise ValueError(f"`diversity_text` is {part!r}; accepted are {', '.join(map(repr, DIVERSITY_TEXTS))}.")


def final_answer(text: str) -> str | None:
    """The content of the last `<answer>` tag, else of the last `\\boxed{}` (nested braces kept), else `None`."""
    tagged = _ANSWER.findall(text)
    if tagged:
        return tagged[-1].strip()
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[start : brace.start()].strip()
    return None  # the box is never closed


def make_groups(rows: Sequence[tuple[str, str, float | None]], group_size: int) -> list[CompletionGroup]:
    """
    Cut a batch in rank order into its groups.

    Args:
        rows (`Sequence[tuple[str, str, float or None]]` of length `P * group_size`):
            Prompt, completion and mean log-probability (or `None`), those of one prompt side by side.
        group_size (`int`):
            Completions per prompt.

    Returns:
        `list[CompletionGroup]` of length `P`.

    Raises:
        `ValueError`: if the batch does not hold whole groups.
    """
    if len(rows) % group_size:
        raise ValueError(
            f"{len(rows)} completions cannot be cut into groups of {group_size}: the batch must hold all completions "
            "of every prompt."
        )
    groups = []
    for start in range(0, len(rows), group_size):
        prompts, completions, logprobs = zip(*rows[start : start + group_size], strict=True)
        has_logprobs = all(value is not None for value in logprobs)
        groups.append(CompletionGroup(prompts[0], list(completions), list(logprobs) if has_logprobs else None))
    return groups
