# SPDX-License-Identifier: Apache-2.0
"""Teaches a tokenizer to say where the first text of a pair ends: those of many decoders run the two together."""

import logging
from itertools import groupby
from typing import Any


logger = logging.getLogger(__name__)

_FIRST, _SECOND = "$A", "$B"
# For a tokenizer that has no token to spare.
_TEXT_SEPARATOR = "\n\n---\n\n"


def ensure_separator(tokenizer: Any) -> None:
    """
    Have `tokenizer(a, b)` put a token between the two texts and one at the end, if it puts nothing between them.

    What the tokenizer adds elsewhere stays, one at the end included. The tokenizer saves the separator with itself, so
    whoever loads the checkpoint joins pairs as in training. The separator is never the pad token, by which a decoder's
    head finds the end of a pair.

    Args:
        tokenizer (`PreTrainedTokenizerFast`):
            Changed in place. It must have its pad token already.
    """
    from tokenizers.processors import TemplateProcessing

    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    single, pair = _pieces(backend.encode("a")), _pieces(backend.encode("a", "a"))
    if pair.index(_SECOND) - pair.index(_FIRST) > 1:
        return
    separator = _separator(tokenizer)
    pair.insert(pair.index(_SECOND), separator)
    if pair[-1] == _SECOND:
        pair.append(separator)
    added = {piece for piece in [*single, *pair] if isinstance(piece, tuple)}
    names = {_FIRST: _FIRST, _SECOND: f"{_SECOND}:1"} | {ids: str(ids[0]) for ids in added}
    backend.post_processor = TemplateProcessing(
        single=[names[piece] for piece in single],
        pair=[names[piece] for piece in pair],
        special_tokens=[
            {"id": names[ids], "ids": list(ids), "tokens": tokenizer.convert_ids_to_tokens(ids)} for ids in added
        ],
    )
    logger.info("the tokenizer puts nothing between two texts: from now on %r", tokenizer.decode(separator))


def _pieces(encoding: Any) -> list[Any]:
    """The tokenizer's template: the texts by name, and the ids of each token that it adds."""
    owners = zip(encoding.ids, encoding.sequence_ids, strict=True)
    pieces = ({0: _FIRST, 1: _SECOND}.get(owner, (token,)) for token, owner in owners)
    return [piece for piece, _ in groupby(pieces)]  # a text may be several tokens


def _separator(tokenizer: Any) -> tuple[int, ...]:
    candidates = (tokenizer.sep_token, tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token)
    for token in candidates:
        token_id = None if token is None else tokenizer.convert_tokens_to_ids(token)
        if token_id not in (None, tokenizer.pad_token_id):
            return (token_id,)
    return tuple(tokenizer.encode(_TEXT_SEPARATOR, add_special_tokens=False))
