# SPDX-License-Identifier: Apache-2.0
"""Find the reasoning z and the answer y of a completion in the token ids that were sampled."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from trl_diversity.likelihood.token_text import TokenText, decode


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINK, END_THINK, ANSWER, END_ANSWER = "<think>", "</think>", "<answer>", "</answer>"
NAMED_FORMATS = ("tags", "boxed", "after_think")

# Besides the tokenizer's own, texts that end a text wherever a model writes them out.
_END_MARKERS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>")
# The start of an assistant's turn after the last special token: its role at most, then a think block.
_THINK_IN_TURN = re.compile(r"\s*[^\w\s]*\w*[^\w\s]*\s*(?=<think>)")
# Tags that a prompt without special tokens ends with.
_TAGS_AT_END = re.compile(r"(?:<think>\s*(?:</think>\s*)?)?(?:<answer>\s*)?\Z")
_TAIL_TOKENS = 64
_CONTEXT_TOKENS = 4


@dataclass(frozen=True)
class AnswerSpan:
    """
    Where the answer stands in one completion.

    A completion that is malformed has a reason and nothing else. The prefix is the longest run of sampled tokens that
    ends, on a whole character, at or before the first character of the answer. White space around the answer is not
    part of it: white space that is a token of its own ends the prefix, white space that is glued to the answer
    (`" 7"`) is `joining`.

    Args:
        prefix_ids (`tuple[int, ...]`):
            Sampled ids before the answer, exactly as they were sampled.
        answer_ids (`tuple[int, ...]`):
            Sampled ids that spell the answer. The first may also spell what stands before it (`">7"`), the last what
            follows (`"7</"`): those cannot be told apart and are scored as they are.
        answer (`str`):
            Text of the answer.
        joining (`str`):
            Text between the prefix and the answer: the part of the first answer token that lies before the answer.
        closing (`str`):
            What follows a spliced answer: the white space and the closing tag of this completion, or the closing tag
            alone where this completion lacks it.
        closed (`bool`):
            Whether the completion itself ends its answer.
        malformed (`str`, *optional*):
            `None`, or why there is no answer. `"no_tag"`: nothing opens one. `"truncated"`: the completion ends
            inside its thinking or inside a box. `"several"`: more than one answer. `"order"`: closed before it is
            opened. `"empty"`: nothing but white space.
    """

    prefix_ids: tuple[int, ...] = ()
    answer_ids: tuple[int, ...] = ()
    answer: str = ""
    joining: str = ""
    closing: str = ""
    closed: bool = False
    malformed: str | None = None


@dataclass(frozen=True)
class _Found:
    start: int
    end: int
    closing: str
    closed: bool


# Text, where to begin, texts that end a text -> the answer's place, or the reason why there is none.
_Finder = Callable[[str, int, Sequence[str]], _Found | str]


def find_answer(
    completion_ids: Sequence[int],
    tokenizer: "PreTrainedTokenizerBase",
    answer_format: str = "tags",
    *,
    prompt_ids: Sequence[int] = (),
    eos_token_ids: Sequence[int] = (),
) -> AnswerSpan:
    r"""
    Find the answer of a completion in its token ids.

    Nothing is searched in the prompt, except the part of the assistant's own turn that a chat template has already
    written: `<think>`, an empty think block, or `<answer>` at the very end.

    Args:
        completion_ids (`Sequence[int]`):
            Ids as they were sampled, without padding; the end-of-text token may be there or not.
        tokenizer (`PreTrainedTokenizerBase`):
            The policy's tokenizer. Tags may be special tokens.
        answer_format (`str`, *optional*, defaults to `"tags"`):
            - `"tags"`: between the only `<answer>` and `</answer>`, with or without a think block. If the closing tag
              is missing, the answer runs to the end of the text (or to a marker of it that is written out).
            - `"boxed"`: in the last `\boxed{...}` that is closed, nested braces included.
            - `"after_think"`: all that follows the only `</think>`.
            - anything else: a regular expression with a group, as for `re.compile`. The answer is the group named
              `answer`, else the first one, of the last match; what the match holds after the group closes it.
        prompt_ids (`Sequence[int]`, *optional*):
            Ids of the prompt as the model read them, without padding.
        eos_token_ids (`Sequence[int]`, *optional*):
            All tokens that generation stops at: the completion ends before the first of them. Many models end a turn
            with another token than the tokenizer's own end of a text, which always counts.

    Returns:
        `AnswerSpan`: ids, texts, or the reason why there is no answer.

    Raises:
        `ValueError`: if `answer_format` is neither a known name nor a regular expression with a group.
    """
    find = answer_finder(answer_format)
    completion_ids = list(takewhile(lambda token: token not in eos_token_ids, completion_ids))
    context_ids, begin = _context(prompt_ids, tokenizer)
    spelled = TokenText([*context_ids, *completion_ids], tokenizer)
    text = spelled.text
    found = find(text, begin, _end_markers(tokenizer))
    if isinstance(found, str):
        return AnswerSpan(malformed=found)
    answer = text[found.start : found.end].strip()
    if not answer:
        return AnswerSpan(malformed="empty")
    start = text.index(answer, found.start)
    first = max(spelled.count_before(start), len(context_ids))
    last = spelled.count_covering(start + len(answer))
    white_space = text[start + len(answer) : found.end] if found.closed else ""
    return AnswerSpan(
        prefix_ids=tuple(spelled.ids[len(context_ids) : first]),
        answer_ids=tuple(spelled.ids[first:last]),
        answer=answer,
        joining=text[spelled.spelled(first)[0] : start],
        closing=white_space + found.closing,
        closed=found.closed,
    )


def answer_finder(answer_format: str) -> _Finder:
    """
    The search that belongs to an answer format; call it with a setting to check that setting.

    Raises:
        `ValueError`: if `answer_format` is neither a known name nor a regular expression with a group.
    """
    if answer_format in NAMED_FORMATS:
        return {"tags": _find_tags, "boxed": _find_boxed, "after_think": _find_after_think}[answer_format]
    expected = f"expected one of {', '.join(NAMED_FORMATS)}, or a regular expression with a group for the answer"
    try:
        pattern = re.compile(answer_format)
    except re.error as error:
        raise ValueError(f"answer_format={answer_format!r} is no regular expression ({error}); {expected}") from error
    if not pattern.groups:
        raise ValueError(f"answer_format={answer_format!r} has no group; {expected}")
    group: int | str = "answer" if "answer" in pattern.groupindex else 1
    return lambda text, begin, markers: _find_pattern(pattern, group, text, begin, markers)


def assistant_tail(prompt_ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase") -> str:
    """
    Text of the assistant's turn that the prompt already holds, from `<think>` or `<answer>` on; `""` if there is none.

    It counts for the format of a completion: judge `assistant_tail(...) + completion`.
    """
    context_ids, begin = _context(prompt_ids, tokenizer)
    return decode(context_ids, tokenizer)[begin:]


def _context(prompt_ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase") -> tuple[list[int], int]:
    """Ids at the end of the prompt, and where in their text the assistant's own turn begins."""
    turn = _turn_start(prompt_ids, tokenizer)
    window = max(turn - _CONTEXT_TOKENS, 0) if turn else max(len(prompt_ids) - _TAIL_TOKENS, 0)
    spelled = TokenText(prompt_ids[window:], tokenizer)
    turn_begin = spelled.spelled(turn - window)[0] if turn else 0
    in_turn = _THINK_IN_TURN.match(spelled.text, turn_begin) if turn else None
    at_end = _TAGS_AT_END.search(spelled.text.rstrip(), turn_begin)
    begin = in_turn.end() if in_turn else at_end.start() if at_end and at_end.group() else len(spelled.text)
    # A few tokens more: how the first token of a completion is spelled may depend on those before it.
    context_ids = spelled.ids[max(spelled.count_before(begin) - _CONTEXT_TOKENS, 0) :]
    return context_ids, max(len(decode(context_ids, tokenizer)) - len(spelled.text) + begin, 0)


def _turn_start(prompt_ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase") -> int:
    """Index after the prompt's last special token, not counting one that begins the text or spells a tag, else 0."""
    tags = {tokenizer.convert_tokens_to_ids(tag) for tag in (THINK, END_THINK, ANSWER, END_ANSWER)}
    special = set(tokenizer.all_special_ids) - tags
    return next((index + 1 for index in range(len(prompt_ids) - 1, 0, -1) if prompt_ids[index] in special), 0)


def _end_markers(tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    own = [token for token in (tokenizer.eos_token, tokenizer.pad_token) if token]
    return list(dict.fromkeys([*own, *_END_MARKERS]))


def _first_marker(text: str, begin: int, markers: Sequence[str]) -> int:
    """Where a text that ends at a marker ends."""
    return min((place for marker in markers if (place := text.find(marker, begin)) >= 0), default=len(text))


def _missing(text: str, begin: int) -> str:
    return "truncated" if text.rfind(THINK, begin) > text.rfind(END_THINK, begin) else "no_tag"


def _find_tags(text: str, begin: int, markers: Sequence[str]) -> _Found | str:
    opening = text.find(ANSWER, begin)
    if opening < 0:
        return _missing(text, begin)
    start = opening + len(ANSWER)
    limit = _first_marker(text, start, markers)
    end = text.find(END_ANSWER, start, limit)
    if text.find(ANSWER, start, limit) >= 0 or (end >= 0 and text.find(END_ANSWER, end + 1, limit) >= 0):
        return "several"
    if text.find(END_ANSWER, begin, opening) >= 0:
        return "order"
    if end >= 0:
        return _Found(start, end, END_ANSWER, closed=True)
    # Cut off in the middle of the closing tag: a lone "<" may be an answer's own.
    begun = (END_ANSWER[:length] for length in range(len(END_ANSWER) - 1, 1, -1))
    tail = next((part for part in begun if text.endswith(part, start, limit)), "")
    return _Found(start, limit - len(tail), END_ANSWER, closed=False)


def _find_after_think(text: str, begin: int, markers: Sequence[str]) -> _Found | str:
    end_of_thinking = text.find(END_THINK, begin)
    if end_of_thinking < 0:
        return _missing(text, begin)
    start = end_of_thinking + len(END_THINK)
    limit = _first_marker(text, start, markers)
    if text.find(END_THINK, start, limit) >= 0:
        return "several"
    return _Found(start, limit, "", closed=True)


def _find_boxed(text: str, begin: int, markers: Sequence[str]) -> _Found | str:
    boxes = [match.end() for match in re.compile(r"\\boxed\s*\{").finditer(text, begin)]
    if not boxes:
        return _missing(text, begin)
    for start in reversed(boxes):
        end = _closing_brace(text, start)
        if end >= 0:
            return _Found(start, end, "}", closed=True)
    return "truncated"


def _closing_brace(text: str, start: int) -> int:
    """Place of the brace that closes the one before `start`, or -1; a brace after a backslash does not count."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return -1


def _find_pattern(
    pattern: re.Pattern[str], group: int | str, text: str, begin: int, markers: Sequence[str]
) -> _Found | str:
    limit = len(text.rstrip())
    while marker := next((marker for marker in markers if text.endswith(marker, begin, limit)), ""):
        limit = len(text[: limit - len(marker)].rstrip())
    matches = [match for match in pattern.finditer(text, begin, limit) if match.start(group) >= 0]
    if not matches:
        return _missing(text, begin)
    start, end = matches[-1].span(group)
    marker_place = _first_marker(text, start, markers)
    if marker_place < end:
        return _Found(start, marker_place, "", closed=False)
    return _Found(start, end, text[end : matches[-1].end()], closed=True)
