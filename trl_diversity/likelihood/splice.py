# SPDX-License-Identifier: Apache-2.0
"""Put the reference y* in the place of a completion's own answer, in tokens, and make the row that a scorer reads."""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trl_diversity.likelihood.answer_span import ANSWER, END_ANSWER, AnswerSpan, assistant_tail, find_answer
from trl_diversity.likelihood.token_text import encode_answer, encode_continuation


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class SplicedReference:
    """
    A completion with the reference in the place of its answer.

    Args:
        prefix_ids (`tuple[int, ...]`):
            Sampled ids before the answer, exactly as they were sampled.
        lead_ids (`tuple[int, ...]`):
            Tokens that spell only what joins prefix and reference (white space, the rest of a tag). Not scored.
        reference_ids (`tuple[int, ...]`):
            Tokens that spell the reference: every character, at least one token.
        closing_ids (`tuple[int, ...]`):
            Tokens of the closing tag. Not scored.
        reference (`str`):
            Text of the reference, without white space around it.
        malformed (`str`, *optional*):
            `None`, or why nothing was spliced: a reason of [`AnswerSpan`], or `"empty_reference"`, `"too_long"` (the
            reference does not fit into `max_length`: it is never cut, nor is the prefix), `"unencodable"` (the
            tokenizer cannot spell the reference).
    """

    prefix_ids: tuple[int, ...] = ()
    lead_ids: tuple[int, ...] = ()
    reference_ids: tuple[int, ...] = ()
    closing_ids: tuple[int, ...] = ()
    reference: str = ""
    malformed: str | None = None

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """Ids of the whole spliced completion, closing tag included."""
        return self.prefix_ids + self.lead_ids + self.reference_ids + self.closing_ids


@dataclass(frozen=True)
class ScoringRow:
    """
    One prefix and the two texts whose probability after it is asked for.

    Args:
        prefix_ids (`tuple[int, ...]`):
            Prompt and reasoning. At least one id.
        answer_ids (`tuple[int, ...]`, *optional*, defaults to `()`):
            The completion's own answer y, after `answer_lead` tokens of context. May be empty.
        reference_ids (`tuple[int, ...]`, *optional*, defaults to `()`):
            The reference y*, after `reference_lead` tokens of context. May be empty.
        answer_lead, reference_lead (`int`, *optional*, defaults to `0`):
            How many of the first ids are context only. They are not scored.
        joining, answer, reference, closing (`str`, *optional*):
            Texts, for a scorer with another tokenizer: what stands between prefix and answer, y, y*, what follows.
    """

    prefix_ids: tuple[int, ...]
    answer_ids: tuple[int, ...] = ()
    reference_ids: tuple[int, ...] = ()
    answer_lead: int = 0
    reference_lead: int = 0
    joining: str = ""
    answer: str = ""
    reference: str = ""
    closing: str = ""


@dataclass(frozen=True)
class PreparedCompletion:
    """
    A completion, parsed and spliced.

    Args:
        span (`AnswerSpan`):
            Where its own answer stands.
        spliced (`SplicedReference`):
            The completion with the reference in that place.
        row (`ScoringRow`, *optional*):
            What a scorer reads; `None` if `malformed`.
        malformed (`str`, *optional*):
            `None`, or the reason; then the likelihood part of the reward is 0.
    """

    span: AnswerSpan
    spliced: SplicedReference
    row: ScoringRow | None
    malformed: str | None


def reference_text(value: Any) -> str:
    """
    Text of a value of the reference column, without white space around it.

    Args:
        value (`str`, `int`, `float`, `bool` or `None`):
            A number is spelled as Python spells it (`42` is `"42"`, `0.25` is `"0.25"`). `None`, and NaN as the mark
            of a missing number in a table, are the empty reference `""`.

    Raises:
        `ValueError`: if the value is of another type (a list, a dictionary).
    """
    if value is None or (isinstance(value, numbers.Real) and math.isnan(value)):
        return ""
    if isinstance(value, str | bool | numbers.Number):
        return str(value).strip()
    raise ValueError(
        f"a reference must be a text, a number or None, got {type(value).__name__} {value!r}; "
        "turn the column into text first, for example with dataset.map"
    )


def splice_reference(
    span: AnswerSpan,
    reference: Any,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    prompt_ids: Sequence[int] = (),
    max_length: int | None = None,
) -> SplicedReference:
    """
    Put the reference in the place of an answer, in tokens.

    The prefix keeps the sampled ids. What joined the prefix and the completion's own answer joins the reference too,
    and the closing tag follows; these three are encoded together, once.

    Args:
        span (`AnswerSpan`):
            Result of [`find_answer`].
        reference (`str`, number or `None`):
            See [`reference_text`].
        tokenizer (`PreTrainedTokenizerBase`):
            The policy's tokenizer.
        prompt_ids (`Sequence[int]`, *optional*):
            Ids of the prompt, without padding.
        max_length (`int`, *optional*):
            Most tokens that prompt, prefix and reference may have together. For a server, its model length minus one
            (it generates a token), and then for every other back end too, so that all follow the same rule.

    Returns:
        `SplicedReference`: ids, or the reason why nothing was spliced.
    """
    if span.malformed:
        return SplicedReference(malformed=span.malformed)
    text = reference_text(reference)
    if not text:
        return SplicedReference(malformed="empty_reference")
    encoded = encode_answer(span.joining, text, span.closing, [*prompt_ids, *span.prefix_ids], tokenizer)
    if encoded is None:
        return SplicedReference(reference=text, malformed="unencodable")
    needed = len(prompt_ids) + len(span.prefix_ids) + len(encoded.lead_ids) + len(encoded.answer_ids)
    if max_length is not None and needed > max_length:
        return SplicedReference(reference=text, malformed="too_long")
    return SplicedReference(span.prefix_ids, encoded.lead_ids, encoded.answer_ids, encoded.closing_ids, encoded.answer)


def prepare_completion(
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    reference: Any,
    tokenizer: "PreTrainedTokenizerBase",
    answer_format: str = "tags",
    *,
    max_length: int | None = None,
    eos_token_ids: Sequence[int] = (),
) -> PreparedCompletion:
    """
    Parse one completion, splice its reference, and make the row that a scorer reads.

    Args:
        prompt_ids (`Sequence[int]`):
            Ids of the prompt as the model read them, without padding. At least one.
        completion_ids (`Sequence[int]`):
            Ids as they were sampled, without padding.
        reference (`str`, number or `None`):
            See [`reference_text`].
        tokenizer (`PreTrainedTokenizerBase`):
            The policy's tokenizer.
        answer_format (`str`, *optional*, defaults to `"tags"`):
            See [`find_answer`].
        max_length (`int`, *optional*):
            See [`splice_reference`].
        eos_token_ids (`Sequence[int]`, *optional*):
            See [`find_answer`].

    Returns:
        `PreparedCompletion`: its row is `None` if the completion is malformed.

    Raises:
        `TypeError`: if ids are not a sequence of integers, such as the dictionary that `apply_chat_template` returns.
        `ValueError`: if `prompt_ids` is empty.
    """
    _check_ids("prompt_ids", prompt_ids)
    _check_ids("completion_ids", completion_ids)
    if not len(prompt_ids):
        raise ValueError("prompt_ids is empty; the first token after a prompt needs at least one token before it")
    span = find_answer(completion_ids, tokenizer, answer_format, prompt_ids=prompt_ids, eos_token_ids=eos_token_ids)
    spliced = splice_reference(span, reference, tokenizer, prompt_ids=prompt_ids, max_length=max_length)
    if spliced.malformed:
        return PreparedCompletion(span, spliced, None, spliced.malformed)
    row = ScoringRow(
        prefix_ids=(*prompt_ids, *span.prefix_ids),
        answer_ids=span.answer_ids,
        reference_ids=spliced.lead_ids + spliced.reference_ids,
        reference_lead=len(spliced.lead_ids),
        joining=span.joining,
        answer=span.answer,
        reference=spliced.reference,
        closing=span.closing,
    )
    return PreparedCompletion(span, spliced, row, None)


def baseline_row(
    prompt_ids: Sequence[int],
    reference: Any,
    tokenizer: "PreTrainedTokenizerBase",
    answer_format: str = "tags",
    *,
    opening: str | None = None,
    max_length: int | None = None,
) -> ScoringRow | None:
    r"""
    Row for r(y*|x), the likelihood of the reference without any reasoning (arXiv 2506.18254, debiased reward).

    The reference follows the prompt and the shortest text that opens an answer in this format: `<answer>`, `\boxed{`,
    or nothing for `"after_think"` and for a regular expression. A think block that the prompt has opened is closed
    first. The row has no answer of its own.

    Args:
        prompt_ids (`Sequence[int]`):
            Ids of the prompt, without padding. At least one.
        reference (`str`, number or `None`):
            See [`reference_text`].
        tokenizer (`PreTrainedTokenizerBase`):
            The policy's tokenizer.
        answer_format (`str`, *optional*, defaults to `"tags"`):
            See [`find_answer`].
        opening (`str`, *optional*):
            Text between prompt and reference instead of the one above; a regular expression may need one.
        max_length (`int`, *optional*):
            See [`splice_reference`].

    Returns:
        `ScoringRow` or `None`: `None` where the reference is empty, too long or cannot be spelled.
    """
    _check_ids("prompt_ids", prompt_ids)
    tail = assistant_tail(prompt_ids, tokenizer)
    if opening is None:
        inside = "<think>" in tail and "</think>" not in tail
        opening = "</think>\n\n" if inside else ""
        if not tail.rstrip().endswith(ANSWER):
            opening += {"tags": ANSWER, "boxed": "\\boxed{"}.get(answer_format, "")
    opening_ids = encode_continuation(opening, prompt_ids, tokenizer) if opening else []
    if opening_ids is None:
        raise ValueError(f"the tokenizer cannot spell {opening!r}, which opens an answer; pass another `opening`")
    closing = {"tags": END_ANSWER, "boxed": "}"}.get(answer_format, "")
    span = AnswerSpan(prefix_ids=tuple(opening_ids), closing=closing)
    spliced = splice_reference(span, reference, tokenizer, prompt_ids=prompt_ids, max_length=max_length)
    if spliced.malformed:
        return None
    return ScoringRow(
        prefix_ids=(*prompt_ids, *spliced.prefix_ids),
        reference_ids=spliced.lead_ids + spliced.reference_ids,
        reference_lead=len(spliced.lead_ids),
        reference=spliced.reference,
        closing=closing,
    )


def _check_ids(name: str, ids: Sequence[int]) -> None:
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not all(isinstance(index, int) for index in ids):
        raise TypeError(
            f"{name} must be a list of integers, got {type(ids).__name__} {ids!r:.80}; "
            "take `input_ids` of what a tokenizer or a chat template returns, and `.tolist()` of a tensor"
        )
