# SPDX-License-Identifier: Apache-2.0
"""Which token pads the pairs of a classifier. A decoder's head finds the last token of a pair by it."""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

_ANY_ID = range(10**9)  # for a model of which the embeddings are not known


def pad_token(tokenizer: Any, known_ids: range) -> str | None:
    """
    The tokenizer's pad token, or one to spare: some tokenizers have one that the model's embeddings have no row for.

    Args:
        tokenizer (`PreTrainedTokenizerFast`):
            Of the classifier.
        known_ids (`range`):
            Ids of the tokens that the model has.

    Returns:
        `str`, or None if there is no such token.
    """
    return tokenizer.pad_token if tokenizer.pad_token_id in known_ids else spare_token(tokenizer, known_ids)


def spare_token(tokenizer: Any, known_ids: range) -> str | None:
    """A special token of the model that the tokenizer puts into no pair: another one would be taken for padding."""
    added = _added_ids(tokenizer)
    for token in (tokenizer.eos_token, tokenizer.unk_token, tokenizer.bos_token):
        token_id = None if token is None else tokenizer.convert_tokens_to_ids(token)
        if token_id in known_ids and token_id not in added:
            return token
    return None


def ensure_pad_token(cross_encoder: "CrossEncoder") -> None:
    """
    Give a decoder-style classifier a pad token and tell its config.

    Raises:
        `ValueError`: if its tokenizer has none and none to spare.
    """
    token = pad_token(cross_encoder.tokenizer, _known_ids(cross_encoder))
    if token is None:
        raise ValueError("the pair classifier's tokenizer has no pad token and none to spare: set its `pad_token`")
    _set_pad_token(cross_encoder, token)


def keep_padding_out_of_pairs(cross_encoder: "CrossEncoder") -> None:
    """
    Choose another pad token where the tokenizer puts the present one into every pair, if it has one to spare.

    With Qwen3-Embedding's own the head would read the token before the end, and on a server the end itself. Only for
    a head that is still to be trained.
    """
    tokenizer = cross_encoder.tokenizer
    token = spare_token(tokenizer, _known_ids(cross_encoder))
    if tokenizer.pad_token_id in _added_ids(tokenizer) and token is not None:
        _set_pad_token(cross_encoder, token)


def _set_pad_token(cross_encoder: "CrossEncoder", token: str) -> None:
    tokenizer: Any = cross_encoder.tokenizer
    if tokenizer.pad_token != token:
        tokenizer.pad_token = token
    config: Any = cross_encoder.config
    text_config = config.get_text_config()
    if text_config.pad_token_id != tokenizer.pad_token_id:
        text_config.pad_token_id = tokenizer.pad_token_id


def _known_ids(cross_encoder: "CrossEncoder") -> range:
    embeddings: Any = cross_encoder.model.get_input_embeddings() if cross_encoder.model is not None else None
    return range(embeddings.num_embeddings) if hasattr(embeddings, "num_embeddings") else _ANY_ID


def _added_ids(tokenizer: Any) -> set[int]:
    return set(tokenizer.backend_tokenizer.encode("", "", add_special_tokens=True).ids)
