# SPDX-License-Identifier: Apache-2.0
"""Reads the facts of texts with an embedding model, in windows over their whole length, each distinct text once."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trl_diversity.equivalence.pair_features import TextFacts, read_text


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class TextReader:
    """
    Reads the facts of texts with a sentence-transformers model, each distinct text once.

    Args:
        sentence_transformer ([`~sentence_transformers.SentenceTransformer`]):
            The base; its tokenizer is backed by the `tokenizers` library.
        window_tokens (`int`):
            Most tokens of a window, special tokens excluded. The base's own maximum length limits it too.
        max_windows (`int`):
            Windows that are read of a text.
        batch_size (`int`, *optional*, defaults to 32):
            Windows per forward pass.
        cache_size (`int`, *optional*, defaults to 4096):
            Texts whose facts are kept for later calls.
        cache_characters (`int`, *optional*):
            Characters of all these texts together; a character's facts take about 200 bytes. 2 million by default.
    """

    def __init__(
        self,
        sentence_transformer: "SentenceTransformer",
        window_tokens: int,
        max_windows: int,
        batch_size: int = 32,
        cache_size: int = 4096,
        cache_characters: int = 2_000_000,
    ):
        for argument, value, least in (
            ("window_tokens", window_tokens, 1),
            ("max_windows", max_windows, 1),
            ("batch_size", batch_size, 1),
            ("cache_size", cache_size, 0),
            ("cache_characters", cache_characters, 0),
        ):
            if value < least:
                raise ValueError(f"{argument} is {value!r}: it must be at least {least}")
        if not getattr(sentence_transformer.tokenizer, "is_fast", False):
            raise ValueError(
                f"{type(sentence_transformer.tokenizer).__name__} is not backed by the `tokenizers` library, which "
                "cutting texts into windows needs: use a base with a tokenizer.json"
            )
        self.sentence_transformer = sentence_transformer
        limit = sentence_transformer.max_seq_length
        special = sentence_transformer.tokenizer.num_special_tokens_to_add(pair=False)
        self.window_tokens = window_tokens if limit is None else min(window_tokens, max(1, limit - special))
        self.max_windows = max_windows
        self.batch_size = batch_size
        self.cache_size = cache_size
        self.cache_characters = cache_characters
        # Facts of a text, and whether a part of it was not read.
        self._known: OrderedDict[str, tuple[TextFacts, bool]] = OrderedDict()

    def __call__(self, texts: Sequence[str]) -> dict[str, tuple[TextFacts, bool]]:
        """Facts of every text, and whether it was cut; the model encodes those that are new."""
        known = {text: self._known[text] for text in texts if text in self._known}
        known.update(self._read([text for text in dict.fromkeys(texts) if text not in known]))
        for text in dict.fromkeys(texts):
            self._known[text] = known[text]
            self._known.move_to_end(text)
        kept = sum(map(len, self._known))
        while len(self._known) > self.cache_size or kept > self.cache_characters:
            text, _ = self._known.popitem(last=False)
            kept -= len(text)
        return known

    def _read(self, texts: list[str]) -> dict[str, tuple[TextFacts, bool]]:
        if not texts:
            return {}
        backend = self.sentence_transformer.tokenizer.backend_tokenizer
        # Whoever used the tokenizer last may have left either switched on.
        backend.no_truncation()
        backend.no_padding()
        encodings = backend.encode_batch(texts, add_special_tokens=False)
        cuts = [
            _cut(text, encoding.offsets, self.window_tokens) for text, encoding in zip(texts, encodings, strict=True)
        ]
        windows = list(dict.fromkeys(window for cut in cuts for window, _ in cut[: self.max_windows]))
        self.sentence_transformer.eval()
        vectors = self.sentence_transformer.encode(
            windows, batch_size=self.batch_size, show_progress_bar=False, convert_to_numpy=True
        ).astype(np.float64)
        vector_of = dict(zip(windows, vectors, strict=True))
        facts = {}
        for text, encoding, cut in zip(texts, encodings, cuts, strict=True):
            kept = cut[: self.max_windows]
            rows = np.stack([vector_of[window] for window, _ in kept])
            read = read_text(text, encoding.ids, rows, [tokens for _, tokens in kept])
            facts[text] = (read, len(cut) > self.max_windows)
        return facts


def _cut(text: str, offsets: Sequence[tuple[int, int]], window_tokens: int) -> list[tuple[str, int]]:
    """
    Cut a text into windows of about equal length, between words where it can be.

    Returns:
        `list[tuple[str, int]]`: every window and its number of tokens; one window for a text that is short or empty.
    """
    count = len(offsets)
    if count <= window_tokens:
        return [(text, count)]
    bounds = [0]
    while bounds[-1] < count:
        left = count - bounds[-1]
        size = -(-left // -(-left // window_tokens))
        end = bounds[-1] + size
        if end < count:
            # A window that ended within a word would be tokenised otherwise than the text was.
            starts = (k for k in range(end, end - size // 2, -1) if re.match(r"\s", text[offsets[k][0] - 1]))
            end = next(starts, end)
        bounds.append(end)
    return [
        (text[offsets[start][0] : offsets[end - 1][1]], end - start)
        for start, end in zip(bounds, bounds[1:], strict=False)
    ]
