# SPDX-License-Identifier: Apache-2.0
"""Which characters a run of token ids spells, and how a text is encoded so that it continues a given run of ids."""

import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What an undecodable byte becomes.
_REPLACEMENT = "\ufffd"
# How many ids of the context are tried: they decide how a continuation is decoded.
_CONTEXT_SIZES = (8, 64)
# Texts before which a continuation is encoded where encoding it alone would add a space to its front.
_ANCHORS = (">", "\n", ".", "0", "a", ")", "}")


def decode(ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase") -> str:
    """Text of token ids, special tokens included, with no space added or removed."""
    if not len(ids):
        return ""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


class TokenText:
    """
    Text of a run of token ids, with the place in the text where each token ends.

    A place is found by decoding the first ids and comparing with the whole text, not from a tokenizer's offsets: those
    overlap where a character is spread over several byte tokens, and where a token is a space only. A look-up decodes
    `O(log n)` prefixes of the n ids, and a few around the place that it finds: a decoder that falls back to bytes
    spells no character of a run of bytes while the run ends inside a character.

    Args:
        ids (`Sequence[int]`):
            Token ids. Special tokens are kept in the text.
        tokenizer (`PreTrainedTokenizerBase`):
            Tokenizer of the ids, slow or fast.

    Attributes:
        text (`str`):
            Text of all ids.
    """

    def __init__(self, ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase") -> None:
        self.ids = list(ids)
        self.text = decode(self.ids, tokenizer)
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[int, bool]] = {0: (0, True)}

    def spelled(self, count: int) -> tuple[int, bool]:
        """
        How much of the text the first `count` ids spell.

        Returns:
            `tuple[int, bool]`: the number of characters that are complete, and whether the ids end exactly there
            (`False` where they end inside the bytes of the next character).
        """
        if count not in self._known:
            prefix = decode(self.ids[:count], self._tokenizer)
            complete = prefix
            while complete.endswith(_REPLACEMENT) and not self.text.startswith(complete):
                complete = complete[:-1]
            if not self.text.startswith(complete):
                complete = commonprefix([complete, self.text])
            self._known[count] = (len(complete), complete == prefix)
        return self._known[count]

    def count_before(self, position: int) -> int:
        """Number of ids in the longest run from the start that ends, on a whole character, at or before `position`."""

        def starts_later(count: int) -> bool:
            complete, whole = self.spelled(count)
            return complete > position or (complete == position and not whole)

        count = bisect_left(range(1, len(self.ids) + 1), True, key=starts_later)
        while not self.spelled(count)[1] or self.spelled(count)[0] > position:
            count -= 1
        return count

    def count_covering(self, position: int) -> int:
        """Number of ids in the shortest run from the start that spells the characters before `position`."""
        count = bisect_left(range(len(self.ids) + 1), position, key=lambda count: self.spelled(count)[0])
        while count and not (self.spelled(count - 1)[1] and self.spelled(count - 1)[0] < position):
            count -= 1
        while self.spelled(count)[0] < position:
            count += 1
        return count


def encode_continuation(
    text: str, context_ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase"
) -> list[int] | None:
    """
    Token ids that spell `text` when they follow `context_ids`, whose own ids stay as they are.

    Tokenizers that put a space in front of every text (Metaspace, or byte-level with a prefix space) would spell
    `" 42"` for `"42"`; there the text is encoded after another short text, which is then cut off.

    Returns:
        `list[int]` or `None`: the ids; `None` where the tokenizer cannot spell the text (it normalises or has no token
        for a character).
    """
    context = _end_of(context_ids, tokenizer)
    wanted = decode(context, tokenizer) + text
    for ids in _candidates(text, tokenizer):
        if decode(context + ids, tokenizer) == wanted:
            return ids
    return None


def _end_of(context_ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The last ids of a context, from a place on that is not inside a character."""
    for size in _CONTEXT_SIZES:
        if not decode(context_ids[-size:], tokenizer).startswith(_REPLACEMENT):
            return list(context_ids[-size:])
    return list(context_ids)


def _candidates(text: str, tokenizer: "PreTrainedTokenizerBase") -> Iterator[list[int]]:
    def encode(part: str) -> list[int]:
        return list(tokenizer.encode(part, add_special_tokens=False))

    yield encode(text)
    for anchor in _ANCHORS:
        anchor_ids, ids = encode(anchor), encode(anchor + text)
        if ids[: len(anchor_ids)] == anchor_ids:
            yield ids[len(anchor_ids) :]


@dataclass(frozen=True)
class EncodedAnswer:
    """
    An answer as token ids that continue a prefix.

    Args:
        lead_ids (`tuple[int, ...]`):
            Tokens that spell only what comes before the answer. They are context, not scored.
        answer_ids (`tuple[int, ...]`):
            Tokens that spell at least one character of the answer: all of them, and at least one. The first may also
            spell what comes before the answer, the last what comes after.
        closing_ids (`tuple[int, ...]`):
            The rest. Scoring does not need them.
        answer (`str`):
            The answer as its tokens spell it: normalised where the tokenizer normalises to NFC or NFKC.
    """

    lead_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    closing_ids: tuple[int, ...]
    answer: str


_FORMS: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    lambda text: unicodedata.normalize("NFC", text),
    lambda text: unicodedata.normalize("NFKC", text),
)


def encode_answer(
    joining: str,
    answer: str,
    closing: str,
    context_ids: Sequence[int],
    tokenizer: "PreTrainedTokenizerBase",
) -> EncodedAnswer | None:
    """
    Encode `joining + answer + closing` as one text that follows `context_ids`, and tell its parts apart by tokens.

    They are encoded together because a policy writes them together: a tokenizer that has a token for `"}</"` uses it.

    Args:
        joining (`str`):
            What stands between the context and the answer: white space, or the rest of a tag.
        answer (`str`):
            The answer, not empty.
        closing (`str`):
            What follows the answer.
        context_ids (`Sequence[int]`):
            The ids before. They are never changed.
        tokenizer (`PreTrainedTokenizerBase`):
            Tokenizer of all ids.

    Returns:
        `EncodedAnswer` or `None`: `None` where the tokenizer cannot spell the text.
    """
    context = _end_of(context_ids, tokenizer)
    for form in _FORMS:
        parts = form(joining), form(answer), form(closing)
        ids = encode_continuation("".join(parts), context, tokenizer)
        if ids is not None:
            break
    else:
        return None
    spelled = TokenText(context + ids, tokenizer)
    start = len(spelled.text) - len(parts[1]) - len(parts[2])
    first = max(spelled.count_before(start) - len(context), 0)
    last = spelled.count_covering(start + len(parts[1])) - len(context)
    return EncodedAnswer(tuple(ids[:first]), tuple(ids[first:last]), tuple(ids[last:]), parts[1])
