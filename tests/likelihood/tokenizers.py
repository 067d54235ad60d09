# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers of the kinds that policies have, written out by hand: their tokens cross every kind of border."""

from collections.abc import Sequence
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests import tiny


SPECIAL = ["<pad>", "<s>", "<|im_end|>", "<|im_start|>"]
ASCII = [chr(code) for code in range(32, 127)]
WORDS = ["<think>", "</think>", "answer", "boxed", "frac", "user", "assistant", "so", "is", "capi", "tal", "yes", "é"]


def _bpe(alphabet: Sequence[str], pieces: Sequence[str], **kwargs: object) -> models.BPE:
    """BPE with the given pieces as tokens, the first with the highest priority, each merged from left to right."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    merges: dict[tuple[str, str], None] = {}
    for piece in pieces:
        for length in range(1, len(piece)):
            merges[piece[:length], piece[length]] = None
            vocabulary.setdefault(piece[: length + 1], len(vocabulary))
    return models.BPE(vocab=vocabulary, merges=list(merges), **kwargs)


def _wrap(backend: Tokenizer, special: Sequence[str] = (), **kwargs: str) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([*SPECIAL, *special])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", *special],
        clean_up_tokenization_spaces=False,
        **kwargs,
    )


def _bytes(text: str) -> str:
    """The characters that stand for the bytes of a text in a byte-level vocabulary."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]


def _byte_level(pieces: Sequence[str], words_only: bool, special: Sequence[str] = (), nfc: bool = False):
    backend = Tokenizer(_bpe(sorted(pre_tokenizers.ByteLevel.alphabet()), pieces))
    if nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words_only)
    backend.decoder = decoders.ByteLevel()
    return _wrap(backend, special)


@cache
def merging_bpe() -> PreTrainedTokenizerFast:
    """Byte-level BPE without a split into words: `>5`, `}</`, ` 7`, and bytes of one character with the next one's."""
    across = _bytes("東京")
    pieces = [across[:2], across[2:5], ">5", ">>", "><", "Ġ7", "Ġa", "}</", "7</", "{1}", "ed{", "sw", "er"]
    return _byte_level([*pieces, *map(_bytes, WORDS)], words_only=False)


@cache
def gpt_bpe(nfc: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE with the usual split into words, with or without Qwen's NFC."""
    pieces = [*map(_bytes, WORDS), ">>", "><", "Ġ7", "</", "}</", "Ġ\\", "Ġanswer", _bytes("東京")[:4], "Ċ"]
    return _byte_level(pieces, words_only=True, nfc=nfc)


@cache
def tagged_bpe() -> PreTrainedTokenizerFast:
    """Byte-level BPE in which all four tags are special tokens."""
    special = ["<think>", "</think>", "<answer>", "</answer>"]
    return _byte_level([*map(_bytes, WORDS), ">>", "Ġ7"], words_only=True, special=special)


@cache
def metaspace_bpe() -> PreTrainedTokenizerFast:
    """Llama 2's kind: a space before every text, spaces as `▁`, bytes for what it has no token for."""
    alphabet = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *ASCII[1:], *"東京本é"]
    pieces = ["▁東", "東京", "▁7", "▁<", "7</", "er>", *(word for word in WORDS if word.isascii())]
    backend = Tokenizer(_bpe(alphabet, pieces, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    return _wrap(backend, unk_token="<unk>")


@cache
def metaspace_unigram() -> PreTrainedTokenizerFast:
    """XLM-R's and DeBERTa-v3's kind: Unigram over `▁`, an unknown token for what it has never seen."""
    characters = [(character, -9.0) for character in ["▁", *ASCII[1:], *"東京本"]]
    words = [(word, -6.0) for word in [*WORDS, "日本", "東京", "<answer>", "▁<answer>", "</answer>", ">5"]]
    pieces = [*((token, 0.0) for token in SPECIAL), ("<unk>", -20.0), *characters, *words]
    backend = Tokenizer(models.Unigram(pieces, unk_id=len(SPECIAL)))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return _wrap(backend, unk_token="<unk>")


@cache
def one_per_character() -> PreTrainedTokenizerFast:
    """One token for every character of ASCII."""
    backend = Tokenizer(_bpe(["<unk>", "\n", *ASCII], []))
    backend.decoder = decoders.Fuse()
    return _wrap(backend)


@cache
def glued_bytes() -> PreTrainedTokenizerFast:
    """Byte-level, with whole tokens that lie across the borders of an answer."""
    return tiny.tiny_tokenizer([">5", ">>", "><", " 7", "2</", "}</", "{4", "</answer>\n"])


# Tokenizers that spell every text as it is.
EXACT = {
    "merging_bpe": merging_bpe,
    "gpt_bpe": gpt_bpe,
    "tagged_bpe": tagged_bpe,
    "metaspace_bpe": metaspace_bpe,
    "glued_bytes": glued_bytes,
}
