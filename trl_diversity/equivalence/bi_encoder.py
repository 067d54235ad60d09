# SPDX-License-Identifier: Apache-2.0
"""An equivalence model that encodes each text alone and puts features of the pair into a small trained head."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trl_diversity.equivalence.embedding import load_sentence_transformer
from trl_diversity.equivalence.loading import (
    BI_ENCODER_ARCHITECTURE,
    CALIBRATION_KEY,
    checked_threshold,
    checkpoint_file,
    minilm_path,
    read_json,
)
from trl_diversity.equivalence.pair_features import (
    TextFacts,
    check_features,
    feature_names,
    pair_features,
    shortness,
)
from trl_diversity.equivalence.text_reader import TextReader


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
BASE_DIRECTORY = "base"  # where a base that was tuned is saved, inside the checkpoint
_SURE_LOGIT = 30.0


@dataclass(frozen=True)
class PairHead:
    """
    From the features of a pair to the logit of "same": linear, or with one hidden layer of tanh units.

    Attributes:
        features (`tuple[str, ...]`):
            Groups of features out of `pair_features.FEATURE_GROUPS`.
        weights (`dict[str, np.ndarray]`):
            `mean` and `scale` of the inputs, `weight` and `bias`, and with a hidden layer `hidden_weight` and
            `hidden_bias`; float32.
        by_length (`bool`, *optional*, defaults to `True`):
            Whether the inputs stand there a second time, times the shortness of the pair: short texts get weights of
            their own, and texts in between a mixture.
        window_tokens (`int`, *optional*, defaults to 254):
            Most tokens of a text that are encoded together. A longer one is read in windows of equal length.
        max_windows (`int`, *optional*, defaults to 16):
            Windows that are read of a text; what lies beyond is not compared.
    """

    features: tuple[str, ...]
    weights: dict[str, np.ndarray]
    by_length: bool = True
    window_tokens: int = 254
    max_windows: int = 16

    def __post_init__(self):
        check_features(self.features)

    def logits(self, inputs: np.ndarray) -> np.ndarray:
        """Logits of "same", `(pairs,)`, from the rows of [`head_inputs`], `(pairs, columns)`."""
        values = (inputs - self.weights["mean"]) / self.weights["scale"]
        if "hidden_weight" in self.weights:
            values = np.tanh(values @ self.weights["hidden_weight"].T + self.weights["hidden_bias"])
        return values @ self.weights["weight"] + self.weights["bias"]


def head_inputs(one: TextFacts, other: TextFacts, features: Sequence[str], by_length: bool) -> np.ndarray:
    """One row of a head's inputs, `(columns,)`."""
    values = pair_features(one, other, features)
    if not by_length:
        return values
    short = shortness(one, other)
    return np.concatenate([values, short * values, [short]])


def input_names(features: Sequence[str], by_length: bool, dimension: int | None) -> list[str]:
    """Names of the columns of [`head_inputs`], for embeddings of `dimension` numbers."""
    names = feature_names(features, dimension)
    return [*names, *(f"short_{name}" for name in names), "short"] if by_length else names


class BiEncoderEquivalence:
    """
    Probability that two completions mean the same, by a small head over features of the two texts.

    A sentence-transformers model encodes each distinct text once, in windows over its whole length, so a group of n
    costs n encodings and not n(n-1)/2. The head sees similarities of the embeddings and overlaps of words, tokens and
    layout; which ones, the checkpoint says. The score of a pair does not depend on its order. Two texts that are equal
    but for white space have the score 1.

    Args:
        head ([`PairHead`]):
            The trained head. [`~BiEncoderEquivalence.from_pretrained`] loads it together with its base.
        sentence_transformer ([`~sentence_transformers.SentenceTransformer`]):
            The base that the head was trained on.
        threshold (`float`, *optional*, defaults to 0.5):
            Probability in `[0, 1]` above which two texts are one cluster.
        temperature (`float`, *optional*, defaults to 1.0):
            Logits are divided by it.
        batch_size (`int`, *optional*, defaults to 32):
            Windows per forward pass.
        cache_size (`int`, *optional*, defaults to 4096):
            Texts whose facts are kept for later calls.

    Raises:
        `ValueError`: if an argument has an impossible value, or the head has the weights of another base.
    """

    def __init__(
        self,
        head: PairHead,
        sentence_transformer: "SentenceTransformer",
        threshold: float = 0.5,
        temperature: float = 1.0,
        batch_size: int = 32,
        cache_size: int = 4096,
    ):
        if not temperature > 0:
            raise ValueError(f"the temperature is {temperature!r}: it must be above 0")
        self.head = head
        self.threshold = checked_threshold(threshold)
        self.temperature = float(temperature)
        self.reader = TextReader(sentence_transformer, head.window_tokens, head.max_windows, batch_size, cache_size)
        dimension = sentence_transformer.get_embedding_dimension()
        expected, found = len(input_names(head.features, head.by_length, dimension)), len(head.weights["mean"])
        if expected != found:
            raise ValueError(
                f"the head has {found} inputs, but {head.features} of a base with {dimension} dimensions are "
                f"{expected}: it belongs to another base"
            )
        self._truncated_pairs = 0

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        threshold: float | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        **options: Any,
    ) -> "BiEncoderEquivalence":
        """
        Load a head and its base.

        Args:
            name_or_path (`str`):
                Directory or Hub name of a checkpoint that [`~BiEncoderEquivalence.save_pretrained`] wrote.
            threshold (`float`, *optional*):
                By default the checkpoint's own.
            device (`str` or `torch.device`, *optional*):
                Of the base. By default this process's GPU, else the CPU. The head runs in numpy.
            dtype (`str` or `torch.dtype`, *optional*):
                Of the base. By default `float32` on a CPU and `bfloat16` elsewhere.
            trust_remote_code (`bool`, *optional*, defaults to `False`):
                Whether code from the base's checkpoint may run.
            revision (`str`, *optional*):
                Branch, tag or commit of the checkpoint on the Hub.
            options (*optional*):
                `batch_size` and `cache_size`.
        """
        from safetensors.numpy import load_file

        config = read_json(name_or_path, "config.json", revision)
        settings = config["head"]
        head = PairHead(
            features=tuple(settings["features"]),
            weights=load_file(checkpoint_file(name_or_path, WEIGHTS_FILE, revision)),
            by_length=settings["by_length"],
            window_tokens=settings["window_tokens"],
            max_windows=settings["max_windows"],
        )
        base = load_sentence_transformer(
            _base_path(name_or_path, config["base_model"], revision),
            device,
            dtype,
            trust_remote_code,
            config.get("base_revision"),
        )
        calibration = config.get(CALIBRATION_KEY, {})
        if threshold is None:
            threshold = calibration.get("threshold", 0.5)
        return cls(head, base, threshold, calibration.get("temperature", 1.0), **options)

    def save_pretrained(self, directory: str | Path, base_model: str, save_base: bool = False) -> None:
        """
        Write config.json and model.safetensors.

        Args:
            directory (`str` or `pathlib.Path`):
                Where; made if it is not there.
            base_model (`str`):
                Hub name of the base, or `"minilm"` for all-MiniLM-L6-v2 wherever it is found.
            save_base (`bool`, *optional*, defaults to `False`):
                Whether the base is saved too, in `base/`, as one that was tuned must be.
        """
        from safetensors.numpy import save_file

        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        settings = {name: value for name, value in vars(self.head).items() if name != "weights"}
        config = {
            "architectures": [BI_ENCODER_ARCHITECTURE],
            "base_model": BASE_DIRECTORY if save_base else base_model,
            "head": settings,
            CALIBRATION_KEY: {"threshold": self.threshold, "temperature": self.temperature},
        }
        (path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(
            {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in self.head.weights.items()},
            path / WEIGHTS_FILE,
        )
        if save_base:
            self.reader.sentence_transformer.save_pretrained(str(path / BASE_DIRECTORY), create_model_card=False)

    @property
    def device(self) -> torch.device:
        """Where the base is."""
        return self.reader.sentence_transformer.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the base's weights."""
        return next(self.reader.sentence_transformer.parameters()).dtype

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        """
        Score pairs of completions.

        Args:
            pairs (`list[tuple[str, str]]`):
                Pairs of texts to compare.
            prompts (`list[str]`, *optional*):
                Not read.

        Returns:
            `list[float]`: the probability in `[0, 1]` that the two mean the same, for every pair in order.
        """
        if not pairs:
            return []
        logits = self.pair_logits(pairs) / self.temperature
        return (1 / (1 + np.exp(-np.clip(logits, -_SURE_LOGIT, _SURE_LOGIT)))).tolist()

    def pair_logits(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Logits of "same" before the temperature, `(pairs,)`."""
        known = self.reader(list(dict.fromkeys(text for pair in pairs for text in pair)))
        self._truncated_pairs += sum(known[one][1] or known[other][1] for one, other in pairs)
        rows = [self._row(known[one][0], known[other][0]) for one, other in pairs]
        logits = self.head.logits(np.stack(rows))
        if "both" in self.head.features:
            turned = [self._row(known[other][0], known[one][0]) for one, other in pairs]
            logits = (logits + self.head.logits(np.stack(turned))) / 2
        equal = [one.split() == other.split() for one, other in pairs]
        return np.where(equal, self.temperature * _SURE_LOGIT, logits)

    def pop_statistics(self) -> dict[str, int]:
        """Number of pairs with a cut text since the last call, as `{"truncated_pairs": k}`; then it starts at 0."""
        statistics = {"truncated_pairs": self._truncated_pairs}
        self._truncated_pairs = 0
        return statistics

    def _row(self, one: TextFacts, other: TextFacts) -> np.ndarray:
        return head_inputs(one, other, self.head.features, self.head.by_length)


def _base_path(name_or_path: str, base_model: str, revision: str | None) -> str:
    if base_model == "minilm":
        return minilm_path()
    if base_model != BASE_DIRECTORY:
        return base_model
    if Path(name_or_path).is_dir():
        return str(Path(name_or_path) / BASE_DIRECTORY)
    from huggingface_hub import snapshot_download

    return str(Path(snapshot_download(name_or_path, revision=revision)) / BASE_DIRECTORY)
