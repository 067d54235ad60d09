# SPDX-License-Identifier: Apache-2.0
"""An equivalence model that reads each text alone: the cosine of two sentence embeddings."""

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import torch

from trl_diversity.equivalence.loading import (
    preserved_rng_state,
    read_calibration,
    read_json,
    read_plain_text,
    require_trusted_modules,
    resolve_device,
    resolve_dtype,
    resolve_threshold,
)


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

DEFAULT_THRESHOLD = 0.7
_NO_LIMIT = 10**9


class EmbeddingEquivalence:
    """
    Cosine of the two texts' sentence embeddings, clipped to `[0, 1]`.

    Each distinct text is encoded once, also over several calls, as long as `cache_size` reaches. The model reads a
    fixed number of tokens of a text; two texts that are equal that far count as the same.
    [`~EmbeddingEquivalence.pop_statistics`] counts the pairs in which a text was cut.

    Args:
        model (`str` or [`~sentence_transformers.SentenceTransformer`]):
            Hub name or directory of a sentence-transformers model, or a loaded one.
        threshold (`float`, *optional*):
            Cosine in `[0, 1]` above which two texts are one cluster. By default the checkpoint's own
            (`{"trl_diversity": {"threshold": ...}}` in its config.json), else 0.7.
        batch_size (`int`, *optional*, defaults to 32):
            Texts per forward pass.
        cache_size (`int`, *optional*, defaults to 4096):
            Texts whose embeddings are kept for later calls.
        device (`str` or `torch.device`, *optional*):
            By default this process's GPU, else the CPU; a loaded model stays where it is.
        dtype (`str` or `torch.dtype`, *optional*):
            By default `float32` on a CPU and `bfloat16` elsewhere; a loaded model keeps its own.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run. Passed to config, tokenizer and model alike.
        revision (`str`, *optional*):
            Branch, tag or commit on the Hub.

    Attributes:
        sentence_transformer ([`~sentence_transformers.SentenceTransformer`]):
            The model that is asked.

    Raises:
        `ValueError`: if an argument has an impossible value.
    """

    def __init__(
        self,
        model: "str | SentenceTransformer",
        threshold: float | None = None,
        batch_size: int = 32,
        cache_size: int = 4096,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
    ):
        for argument, value, least in (("batch_size", batch_size, 1), ("cache_size", cache_size, 0)):
            if value < least:
                raise ValueError(f"{argument} is {value!r}: it is a number of texts and must be at least {least}")
        if isinstance(model, str):
            self.sentence_transformer = load_sentence_transformer(model, device, dtype, trust_remote_code, revision)
        else:
            self.sentence_transformer = model if device is None else model.to(device)
            if dtype is not None:
                self.sentence_transformer = model.to(resolve_dtype(dtype, model.device))
        self.sentence_transformer.eval()
        self.batch_size = batch_size
        self.cache_size = cache_size
        name = model if isinstance(model, str) else type(model).__name__
        checkpoint_threshold, _ = read_calibration(
            getattr(self.sentence_transformer.transformers_model, "config", None)
        )
        self.threshold = resolve_threshold(threshold, checkpoint_threshold, DEFAULT_THRESHOLD, name)
        # Unit vector of a text, and whether the model saw only a part of it.
        self._known: OrderedDict[str, tuple[np.ndarray, bool]] = OrderedDict()
        self._truncated_pairs = 0
        self._warned_of_truncation = False

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.sentence_transformer.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the model's weights."""
        return next(self.sentence_transformer.parameters()).dtype

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        """
        Score pairs of completions.

        Args:
            pairs (`list[tuple[str, str]]`):
                Pairs of texts to compare.
            prompts (`list[str]`, *optional*):
                Not read.

        Returns:
            `list[float]`: the clipped cosine in `[0, 1]` for every pair, in order.
        """
        if not pairs:
            return []
        known = self._read(list(dict.fromkeys(text for pair in pairs for text in pair)))
        self._count_truncated(sum(known[one][1] or known[other][1] for one, other in pairs))
        first = np.stack([known[one][0] for one, _ in pairs])
        second = np.stack([known[other][0] for _, other in pairs])
        return np.clip((first * second).sum(axis=1), 0.0, 1.0).tolist()

    def pop_statistics(self) -> dict[str, int]:
        """Number of pairs with a cut text since the last call, as `{"truncated_pairs": k}`; then it starts at 0."""
        statistics = {"truncated_pairs": self._truncated_pairs}
        self._truncated_pairs = 0
        return statistics

    def _read(self, texts: list[str]) -> dict[str, tuple[np.ndarray, bool]]:
        """What is known of every text; the model encodes those that are new."""
        known = {text: self._known[text] for text in texts if text in self._known}
        new = [text for text in texts if text not in known]
        if new:
            self.sentence_transformer.eval()
            vectors = self.sentence_transformer.encode(
                new, batch_size=self.batch_size, show_progress_bar=False, convert_to_numpy=True
            ).astype(np.float64)
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            units = vectors / np.where(norms == 0, 1.0, norms)
            known.update(zip(new, zip(units, self._are_cut(new), strict=True), strict=True))
        for text in texts:
            self._known[text] = known[text]
            self._known.move_to_end(text)
        while len(self._known) > self.cache_size:
            self._known.popitem(last=False)
        return known

    def _are_cut(self, texts: list[str]) -> list[bool]:
        """Whether each text is longer than the model reads."""
        limit, tokenizer = self.sentence_transformer.max_seq_length, self.sentence_transformer.tokenizer
        if limit is None or limit > _NO_LIMIT or not callable(tokenizer):
            return [False] * len(texts)  # a model that reads every token
        token_ids = tokenizer(texts, truncation=False, verbose=False)["input_ids"]
        return [len(ids) > limit for ids in token_ids]

    def _count_truncated(self, count: int) -> None:
        self._truncated_pairs += count
        if count and not self._warned_of_truncation:
            self._warned_of_truncation = True
            logger.warning(
                "The embedding model reads %d tokens of a text, and in %d pairs a text is longer: texts that differ "
                "only beyond that count as the same. Compare the end or the answer of a completion "
                "(`diversity_text`). Said once; the number is logged as `diversity/truncated_pairs`.",
                self.sentence_transformer.max_seq_length,
                count,
            )


def load_sentence_transformer(
    name_or_path: str,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    trust_remote_code: bool,
    revision: str | None,
) -> "SentenceTransformer":
    """Load a sentence-transformers model; no global random generator moves."""
    from sentence_transformers import SentenceTransformer

    require_trusted_modules(name_or_path, trust_remote_code, revision)
    target = resolve_device(device)
    model_kwargs = {"dtype": resolve_dtype(dtype, target), "use_safetensors": True}
    with preserved_rng_state():
        model = SentenceTransformer(
            name_or_path,
            device=str(target),
            trust_remote_code=trust_remote_code,
            revision=revision,
            model_kwargs=model_kwargs,
        )
    if read_json(name_or_path, "modules.json", revision) is None:  # no embedding model yet, but the base of one
        read_plain_text(model)
    return model
