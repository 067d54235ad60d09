# SPDX-License-Identifier: Apache-2.0
"""An equivalence model that reads both texts together: a sequence classifier over pairs."""

import logging
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from trl_diversity.equivalence.cpu_threads import SingleCoreThreads
from trl_diversity.equivalence.first_token import only_first_token
from trl_diversity.equivalence.loading import (
    CHAT_MODALITY,
    chat_template_error,
    checkpoint_kind,
    generative_error,
    preserved_rng_state,
    read_calibration,
    read_plain_text,
    require_plain_pairs,
    require_trusted_modules,
    resolve_device,
    resolve_dtype,
    resolve_threshold,
)
from trl_diversity.equivalence.pad_token import ensure_pad_token
from trl_diversity.equivalence.pair_encoding import (
    EncodedPair,
    PairEncoder,
    batches_by_cost,
    batches_by_length,
    pad_pairs,
)
from trl_diversity.equivalence.shared_first_text import SharedFirstText


if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

logger = logging.getLogger(__name__)

DEFAULT_THRESHOLD = 0.5
# Measured with MiniLM-L6 on cores of 1 MiB: a batch of more than about 500 tokens leaves the cache and gets slower,
# and one more batch costs what 8 more tokens cost.
CPU_BATCH_TOKENS = 512
TOKENS_PER_BATCH = 8
GPU_BATCH_SIZE = 64
GPU_BATCH_TOKENS = 16_384
# A tokenizer without a limit of its own reports a huge number.
_NO_LIMIT = 10**9
# As sentence-transformers names them: it asks such a model for the next token, "yes" or "no".
_GENERATIVE_TASKS = ("text-generation", "any-to-any")


class CrossEncoderEquivalence:
    """
    Probability that two completions mean the same, from a pair classifier with one or two labels.

    One label: the sigmoid of the logit, unless the checkpoint names another activation, which is then used. Two
    labels: the softmax, and label 1 means "same". Logits are divided by the checkpoint's temperature, if its config
    has one. Texts are cut fairly: each side has half of the maximum length, and a short side leaves its rest to the
    other. Beyond that the ends of texts are not compared; [`~CrossEncoderEquivalence.pop_statistics`] counts such
    pairs. The order of a pair matters to most classifiers: by default the score is that of the order asked (in a
    partition the text that comes first in its group is the first), with `both_orders` it is the mean of both and
    the same for a shuffled group.

    Args:
        model (`str` or [`~sentence_transformers.CrossEncoder`]):
            Hub name or directory of a sequence classifier, or a loaded cross encoder.
        threshold (`float`, *optional*):
            Probability in `[0, 1]` above which two texts are one cluster. By default the checkpoint's own
            (`{"trl_diversity": {"threshold": ...}}` in its config.json), else 0.5.
        both_orders (`bool`, *optional*, defaults to `False`):
            Average the scores of `(a, b)` and `(b, a)`. Twice the cost.
        max_side_tokens (`int`, *optional*):
            Tokens that are read of either text, special tokens excluded. By default only the model's own maximum
            length limits a pair.
        batch_size (`int`, *optional*):
            Pairs per forward pass; pairs are sorted by length. By default 64, and on a CPU as many as have 512 tokens
            together, several such batches side by side. By default, too, a decoder (Llama, Qwen2, Qwen3) reads the
            first text of several pairs once; with a number it reads every pair whole.
        device (`str` or `torch.device`, *optional*):
            By default this process's GPU, else the CPU; a loaded cross encoder stays where it is.
        dtype (`str` or `torch.dtype`, *optional*):
            By default `float32` on a CPU and `bfloat16` elsewhere; a loaded cross encoder keeps its own.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run. Passed to config, tokenizer and model alike.
        tokenizer_name_or_path (`str`, *optional*):
            Where the tokenizer is, for a checkpoint that has none. By default the checkpoint.
        revision (`str`, *optional*):
            Branch, tag or commit on the Hub.

    Attributes:
        cross_encoder ([`~sentence_transformers.CrossEncoder`]):
            The model that is asked.

    Raises:
        `ValueError`: if the checkpoint has no trained classification head (its logits would be random), more than two
        labels or a default prompt, or if an argument has an impossible value.
    """

    def __init__(
        self,
        model: "str | CrossEncoder",
        threshold: float | None = None,
        both_orders: bool = False,
        max_side_tokens: int | None = None,
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        trust_remote_code: bool = False,
        tokenizer_name_or_path: str | None = None,
        revision: str | None = None,
    ):
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}: it is a number of pairs and must be at least 1")
        if isinstance(model, str):
            target = resolve_device(device)
            self.cross_encoder = load_cross_encoder(
                model, target, resolve_dtype(dtype, target), trust_remote_code, tokenizer_name_or_path, revision
            )
        else:
            self.cross_encoder = _moved(model, device, dtype)
        self.cross_encoder.eval()
        self.both_orders = both_orders
        self.batch_size = batch_size
        self._num_labels = _checked_num_labels(self.cross_encoder)
        _refuse_default_prompt(self.cross_encoder)
        name = model if isinstance(model, str) else type(model).__name__
        _refuse_generative(self.cross_encoder, name)
        checkpoint_threshold, self.temperature = read_calibration(self._config)
        self.threshold = resolve_threshold(threshold, checkpoint_threshold, DEFAULT_THRESHOLD, name)
        self._encoder = PairEncoder(self.cross_encoder.tokenizer, self.max_length, max_side_tokens)
        ensure_pad_token(self.cross_encoder)
        self._threads = SingleCoreThreads()
        max_tokens = CPU_BATCH_TOKENS if self.device.type == "cpu" else GPU_BATCH_TOKENS
        self._shared = None
        if batch_size is None and SharedFirstText.accepts(self.cross_encoder.model):
            self._shared = SharedFirstText(self.cross_encoder.model, max_tokens, TOKENS_PER_BATCH)
        self._truncated_pairs = 0
        self._warned_of_truncation = False

    @property
    def shares_first_text(self) -> bool:
        """Whether pairs with the same first text cost less together, so that a partition asks for them together."""
        return self._shared is not None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.cross_encoder.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the model's weights."""
        return next(self.cross_encoder.parameters()).dtype

    @property
    def max_length(self) -> int | None:
        """Tokens of a pair, special tokens included; None without a limit."""
        return max_pair_length(self.cross_encoder)

    @property
    def _config(self) -> Any:
        return self.cross_encoder.config

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        """
        Score pairs of completions.

        Args:
            pairs (`list[tuple[str, str]]`):
                Pairs of texts to compare.
            prompts (`list[str]`, *optional*):
                Not read: the classifier sees the two completions alone.

        Returns:
            `list[float]`: the probability in `[0, 1]` that the two mean the same, for every pair in order.
        """
        if not pairs:
            return []
        asked = [*pairs, *((second, first) for first, second in pairs)] if self.both_orders else list(pairs)
        encoded = self._encoder(asked)
        self._count_truncated(sum(pair.truncated for pair in encoded[: len(pairs)]))
        scores = self._score(encoded, [first for first, _ in asked])
        if not self.both_orders:
            return scores
        return [(one + other) / 2 for one, other in zip(scores[: len(pairs)], scores[len(pairs) :], strict=True)]

    def pop_statistics(self) -> dict[str, int]:
        """Number of pairs cut since the last call, as `{"truncated_pairs": k}`; the count starts again at 0."""
        statistics = {"truncated_pairs": self._truncated_pairs}
        self._truncated_pairs = 0
        return statistics

    def _score(self, encoded: list[EncodedPair], first_texts: list[str]) -> list[float]:
        self.cross_encoder.eval()
        begin_alike, others = self._partners(first_texts)
        jobs: list[tuple[Any, list[int]]] = [(self._shared_logits, batch) for batch in begin_alike]
        jobs += [(self._logits, batch) for batch in self._batches(encoded, others)]

        @torch.inference_mode()
        def score(job: tuple[Any, list[int]]) -> torch.Tensor:
            logits, batch = job
            return self._probabilities(logits([encoded[index] for index in batch]).float())

        with only_first_token(self.cross_encoder.model), self._shared.prepared() if self._shared else nullcontext():
            on_cpu = self.device.type == "cpu"
            probabilities = self._threads.map(score, jobs) if on_cpu else [score(job) for job in jobs]
        scores = [0.0] * len(encoded)
        order = chain.from_iterable(batch for _, batch in jobs)
        for index, probability in zip(order, torch.cat(probabilities).tolist(), strict=True):
            scores[index] = probability
        return scores

    def _partners(self, first_texts: list[str]) -> tuple[list[list[int]], list[int]]:
        """Pairs with the same first text, where it can be read once, and all other pairs."""
        if not self.shares_first_text:
            return [], list(range(len(first_texts)))
        partners: dict[str, list[int]] = {}
        for index, text in enumerate(first_texts):
            partners.setdefault(text, []).append(index)
        runs = list(partners.values())
        return [run for run in runs if len(run) > 1], [run[0] for run in runs if len(run) == 1]

    def _batches(self, encoded: list[EncodedPair], chosen: list[int]) -> list[list[int]]:
        lengths = [len(encoded[index].input_ids) for index in chosen]
        if self.device.type == "cpu" and self.batch_size is None:
            batches = batches_by_cost(lengths, CPU_BATCH_TOKENS, TOKENS_PER_BATCH)
        else:
            batches = batches_by_length(lengths, self.batch_size or GPU_BATCH_SIZE)
        return [[chosen[position] for position in batch] for batch in batches]

    def _logits(self, pairs: list[EncodedPair]) -> torch.Tensor:
        return self.cross_encoder(pad_pairs(pairs, self.cross_encoder.tokenizer, self.device))["scores"]

    def _shared_logits(self, pairs: list[EncodedPair]) -> torch.Tensor:
        assert self._shared is not None
        return self._shared.logits([pair.input_ids for pair in pairs])

    def _probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Probabilities of "same", `(batch,)`, from logits, `(batch, labels)`."""
        logits = logits / self.temperature
        if self._num_labels == 2:
            return logits.softmax(dim=-1)[:, 1]
        activation: Any = self.cross_encoder.activation_fn
        if isinstance(activation, torch.nn.Identity):
            activation = torch.nn.Sigmoid()
        return activation(logits).reshape(-1)

    def _count_truncated(self, count: int) -> None:
        self._truncated_pairs += count
        if count and not self._warned_of_truncation:
            self._warned_of_truncation = True
            logger.warning(
                "%d pairs are longer than the pair classifier reads (%s tokens a pair, %s a text): texts that differ "
                "only beyond that count as the same. Compare the end or the answer of a completion "
                "(`diversity_text`). Said once; the number is logged as `diversity/truncated_pairs`.",
                count,
                "any number of" if self.max_length is None else self.max_length,
                "any number" if self._encoder.max_side_tokens is None else self._encoder.max_side_tokens,
            )


def load_cross_encoder(
    name_or_path: str,
    device: torch.device,
    dtype: torch.dtype,
    trust_remote_code: bool = False,
    tokenizer_name_or_path: str | None = None,
    revision: str | None = None,
) -> "CrossEncoder":
    """
    Load a pair classifier of which every weight is in the checkpoint; no global random generator moves.

    Raises:
        `ValueError`: if a weight is missing, or if the checkpoint needs code that `trust_remote_code` does not allow.
    """
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer

    shared = {"trust_remote_code": trust_remote_code, "revision": revision}
    require_trusted_modules(name_or_path, trust_remote_code, revision)
    require_plain_pairs(name_or_path, revision)
    with preserved_rng_state():
        _require_trained_head(name_or_path, shared)
        model_kwargs = {"dtype": dtype, "use_safetensors": True}
        if tokenizer_name_or_path is None:
            cross_encoder = CrossEncoder(name_or_path, device=str(device), model_kwargs=model_kwargs, **shared)
            read_plain_text(cross_encoder)
            return cross_encoder
        transformer = Transformer(
            name_or_path,
            transformer_task="sequence-classification",
            model_kwargs=model_kwargs | shared,
            processor_kwargs={"trust_remote_code": trust_remote_code},
            config_kwargs=shared,
            tokenizer_name_or_path=tokenizer_name_or_path,
        )
        cross_encoder = CrossEncoder(modules=[transformer], device=str(device), trust_remote_code=trust_remote_code)
        read_plain_text(cross_encoder)
        return cross_encoder


def max_pair_length(cross_encoder: "CrossEncoder") -> int | None:
    """
    Tokens of a pair that a cross encoder reads, special tokens included; None without a limit.

    The limit of tokenizer and config, or the number of positions: RoBERTa has some that only padding takes.
    """
    limits = [cross_encoder.max_seq_length or _NO_LIMIT]
    for name, module in cross_encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    return min(limits) if min(limits) < _NO_LIMIT else None


def _require_trained_head(name_or_path: str, shared: dict[str, Any]) -> None:
    """Compare the names of the weights with those the model needs; no weight is read."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    kind = checkpoint_kind(name_or_path, shared["revision"])
    config = AutoConfig.from_pretrained(name_or_path, **shared)
    is_classifier = any(name.endswith("ForSequenceClassification") for name in config.architectures or [])
    if kind == "pair classifier" and not is_classifier:
        return  # saved by sentence-transformers with its head as a module of its own, which it loads strictly
    _, loading_info = AutoModelForSequenceClassification.from_pretrained(
        name_or_path,
        config=config,
        device_map="meta",
        output_loading_info=True,
        use_safetensors=True,
        use_kernels=False,  # there are none for "meta"
        **shared,
    )
    missing = sorted(loading_info["missing_keys"])
    if missing:
        raise ValueError(
            f"{name_or_path!r} has no complete pair classifier: its weights lack {missing}, which would be random. "
            "Use a checkpoint that was trained for sequence classification, or EmbeddingEquivalence for an "
            "embedding model"
        )


def _moved(
    cross_encoder: "CrossEncoder", device: str | torch.device | None, dtype: str | torch.dtype | None
) -> "CrossEncoder":
    if device is not None:
        cross_encoder = cross_encoder.to(device)
    return cross_encoder if dtype is None else cross_encoder.to(resolve_dtype(dtype, cross_encoder.device))


def _checked_num_labels(cross_encoder: "CrossEncoder") -> int:
    if cross_encoder.num_labels not in (1, 2):
        raise ValueError(
            f"the pair classifier has {cross_encoder.num_labels} labels: an equivalence model has one (the logit of "
            "'same') or two (label 1 is 'same')"
        )
    return cross_encoder.num_labels


def _refuse_default_prompt(cross_encoder: "CrossEncoder") -> None:
    name = cross_encoder.default_prompt_name
    if name is not None and cross_encoder.prompts.get(name):
        raise ValueError(
            f"the pair classifier puts the prompt {cross_encoder.prompts[name]!r} before every pair, which is not "
            "supported: load it as a CrossEncoder with default_prompt_name=None if it works without"
        )


def _refuse_generative(cross_encoder: "CrossEncoder", name: str) -> None:
    transformer: Any = cross_encoder[0]
    if getattr(transformer, "transformer_task", None) in _GENERATIVE_TASKS:
        raise ValueError(generative_error(name))
    if CHAT_MODALITY in getattr(transformer, "modality_config", {}):
        raise ValueError(chat_template_error(name))
