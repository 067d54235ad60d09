# SPDX-License-Identifier: Apache-2.0
"""Trains a cross-encoder with sentence-transformers' trainer, calibrates it on development pairs, and saves it."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trl_diversity.classifiers.calibration import fit_temperature, pair_metrics, probabilities_of, stable_threshold
from trl_diversity.classifiers.model_card import write_model_card
from trl_diversity.classifiers.pairs import LabelledPair, both_orders


if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

logger = logging.getLogger(__name__)

BEST_METRIC = "eval_dev_auc"
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class CrossEncoderSettings:
    """
    How a cross-encoder is trained; the fields are those of `trl-diversity train-classifier`.

    Attributes:
        max_side_tokens (`int`, *optional*, defaults to 128):
            A pair is cut to twice as many tokens, fairly: a short text leaves its rest to the other. A base that
            reads less cuts it to that, with a warning.
    """

    base_model: str
    num_labels: int = 1
    max_side_tokens: int = 128
    both_orders: bool = True
    class_weights: bool = False
    num_train_epochs: float = 3.0
    learning_rate: float = 2e-5
    batch_size: int = 16
    gradient_accumulation_steps: int = 1
    patience: int = 2
    lora_rank: int = 0
    bf16: bool = False
    gradient_checkpointing: bool = False
    use_cpu: bool = False
    resume: bool = False
    trust_remote_code: bool = False
    goal: str = "balanced_accuracy"
    false_merge_rate: float = 0.05
    seed: int = 0


def train_cross_encoder(
    pairs: Sequence[LabelledPair],
    dev_pairs: Sequence[LabelledPair],
    output_dir: str,
    settings: CrossEncoderSettings,
    command: str = "trl-diversity train-classifier",
    callbacks: Sequence[Any] = (),
) -> dict[str, float]:
    """
    Train, keep the epoch with the best development AUC, calibrate on the development pairs, save.

    Args:
        pairs (`Sequence[LabelledPair]`):
            Training data.
        dev_pairs (`Sequence[LabelledPair]`):
            For the best epoch, the threshold and the temperature. Not the test split.
        output_dir (`str`):
            Of the checkpoint; `checkpoint-<step>` of the run lie in it too.
        settings ([`CrossEncoderSettings`]):
            How.
        command (`str`, *optional*):
            For the model card.
        callbacks (`Sequence`, *optional*):
            Further callbacks of the trainer.

    Returns:
        `dict[str, float]`: metrics on the development pairs, at the threshold chosen on them.

    Raises:
        `ValueError`: if a part holds one class only, or `resume` finds nothing to continue.
    """
    from transformers import set_seed
    from transformers.trainer_utils import get_last_checkpoint

    from trl_diversity.classifiers.pairs import require_both_classes

    require_both_classes(pairs, "the training pairs")
    require_both_classes(dev_pairs, "the development pairs")
    last = get_last_checkpoint(output_dir) if settings.resume and Path(output_dir).is_dir() else None
    if settings.resume and last is None:
        raise ValueError(f"`resume` is on, but {output_dir} holds no checkpoint of a run: leave it off")
    set_seed(settings.seed)  # a new head is random
    cross_encoder = build_cross_encoder(settings)
    trainer = _trainer(cross_encoder, pairs, dev_pairs, output_dir, settings, callbacks)
    trainer.train(resume_from_checkpoint=last)
    cross_encoder.eval()
    labels = [pair.similar for pair in dev_pairs]
    logits = pair_logits(cross_encoder, dev_pairs, settings.batch_size)
    _check_best_epoch(labels, logits, trainer.state.best_metric)
    temperature = fit_temperature(labels, logits)
    probabilities = probabilities_of(logits / temperature)
    threshold = stable_threshold(labels, probabilities, settings.goal, settings.false_merge_rate)
    metrics = pair_metrics(labels, probabilities, threshold)
    if settings.lora_rank:
        from trl_diversity.classifiers.lora import merge_adapters

        merge_adapters(_transformers_model(cross_encoder))
    if trainer.is_world_process_zero():
        save_calibrated(cross_encoder, output_dir, threshold, temperature)
        settings = replace(settings, max_side_tokens=_side_tokens(cross_encoder))
        _write_card(output_dir, settings, command, metrics, threshold, temperature, len(pairs), len(dev_pairs))
    return metrics


def build_cross_encoder(settings: CrossEncoderSettings) -> "CrossEncoder":
    """The base with a classification head, new where it has none, and adapters if they are asked for."""
    from trl_diversity.classifiers.pair_separator import ensure_separator
    from trl_diversity.equivalence.cross_encoder import max_pair_length
    from trl_diversity.equivalence.loading import read_plain_text
    from trl_diversity.equivalence.pad_token import ensure_pad_token, keep_padding_out_of_pairs
    from trl_diversity.equivalence.pair_encoding import require_tokenizers_backend

    cross_encoder = _with_head(settings)
    read_plain_text(cross_encoder)
    tokenizer: Any = cross_encoder.tokenizer
    require_tokenizers_backend(tokenizer)
    ensure_pad_token(cross_encoder)
    keep_padding_out_of_pairs(cross_encoder)
    ensure_separator(tokenizer)
    # "longest_first", which cuts pairs when training, is what CrossEncoderEquivalence does too
    length = 2 * settings.max_side_tokens + tokenizer.num_special_tokens_to_add(pair=True)
    cross_encoder.max_seq_length = min(length, max_pair_length(cross_encoder) or length)
    if cross_encoder.max_seq_length < length:
        logger.warning(
            "the base reads %d tokens a text, not the %d of `max_side_tokens`",
            _side_tokens(cross_encoder),
            settings.max_side_tokens,
        )
    if settings.lora_rank:
        from trl_diversity.classifiers.lora import add_adapters

        add_adapters(_transformers_model(cross_encoder), settings.lora_rank)
    return cross_encoder


def _side_tokens(cross_encoder: "CrossEncoder") -> int:
    """Tokens that are read of either text where both are long."""
    tokenizer: Any = cross_encoder.tokenizer
    assert cross_encoder.max_seq_length is not None
    return (cross_encoder.max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)) // 2


def _with_head(settings: CrossEncoderSettings) -> "CrossEncoder":
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from transformers import AutoConfig

    shared = {"trust_remote_code": settings.trust_remote_code}
    device = "cpu" if settings.use_cpu else None
    config = AutoConfig.from_pretrained(settings.base_model, **shared)
    architectures = config.architectures or []
    is_classifier = any(name.endswith("ForSequenceClassification") for name in architectures)
    if is_classifier and config.num_labels != settings.num_labels:
        logger.warning(
            "the base is a classifier with %d labels: a new head with %d takes the place of its own",
            config.num_labels,
            settings.num_labels,
        )
    if not any(name.endswith("ForCausalLM") for name in architectures):
        return CrossEncoder(
            settings.base_model,
            num_labels=settings.num_labels,
            device=device,
            model_kwargs={"dtype": "float32", "ignore_mismatched_sizes": True},
            **shared,
        )
    # By its name alone CrossEncoder would ask a decoder whether it says "yes" or "no" next, without any head.
    transformer = Transformer(
        settings.base_model,
        transformer_task="sequence-classification",
        model_kwargs={"dtype": "float32", **shared},
        processor_kwargs=shared,
        config_kwargs={"num_labels": settings.num_labels, **shared},
    )
    return CrossEncoder(modules=[transformer], device=device, **shared)


def pair_logits(cross_encoder: "CrossEncoder", pairs: Sequence[LabelledPair], batch_size: int = 32) -> np.ndarray:
    """Logits of "same", `(pairs,)`: for two labels the difference of the two."""
    import torch

    scores = cross_encoder.predict(
        [(pair.generation_0, pair.generation_1) for pair in pairs],
        batch_size=batch_size,
        show_progress_bar=False,
        activation_fn=torch.nn.Identity(),
        convert_to_numpy=True,
    ).astype(np.float64)
    return scores[:, 1] - scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 2 else scores.reshape(-1)


def save_calibrated(cross_encoder: "CrossEncoder", directory: str, threshold: float, temperature: float) -> None:
    """Save with threshold and temperature in config.json, where `CrossEncoderEquivalence` reads them."""
    from trl_diversity.equivalence.loading import CALIBRATION_KEY

    calibration = {"threshold": threshold, "temperature": temperature}
    setattr(cross_encoder.config, CALIBRATION_KEY, calibration)
    cross_encoder.save_pretrained(directory, create_model_card=False)


def _trainer(
    cross_encoder: "CrossEncoder",
    pairs: Sequence[LabelledPair],
    dev_pairs: Sequence[LabelledPair],
    output_dir: str,
    settings: CrossEncoderSettings,
    callbacks: Sequence[Any],
) -> Any:
    from datasets import Dataset
    from sentence_transformers.cross_encoder import CrossEncoderTrainer
    from transformers import EarlyStoppingCallback

    from trl_diversity.classifiers.pair_evaluator import PairEvaluator

    rows = both_orders(pairs) if settings.both_orders else list(pairs)
    dataset = Dataset.from_dict(
        {
            "generation_0": [pair.generation_0 for pair in rows],
            "generation_1": [pair.generation_1 for pair in rows],
            "label": [float(pair.similar) if settings.num_labels == 1 else pair.similar for pair in rows],
        }
    )
    trainer_class = CrossEncoderTrainer
    if settings.lora_rank:
        from trl_diversity.classifiers.lora import load_checkpoint

        class AdapterTrainer(CrossEncoderTrainer):
            """Reads its own checkpoints, whose weights have the names that adapters give them."""

            def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
                load_checkpoint(_transformers_model(self.model), resume_from_checkpoint)

        trainer_class = AdapterTrainer
    return trainer_class(
        model=cross_encoder,
        args=_training_arguments(output_dir, settings),
        train_dataset=dataset,
        loss=_loss(cross_encoder, pairs, settings),
        evaluator=PairEvaluator(dev_pairs, settings.batch_size),
        callbacks=[EarlyStoppingCallback(settings.patience), *callbacks],
    )


def _training_arguments(output_dir: str, settings: CrossEncoderSettings) -> Any:
    from sentence_transformers.cross_encoder import CrossEncoderTrainingArguments

    return CrossEncoderTrainingArguments(
        output_dir=output_dir,
        num_train_epochs=settings.num_train_epochs,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,  # below 1 it is a share of all steps
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,  # besides the best one
        load_best_model_at_end=True,
        metric_for_best_model=BEST_METRIC,
        greater_is_better=True,
        logging_strategy="epoch",
        bf16=settings.bf16,
        gradient_checkpointing=settings.gradient_checkpointing,
        use_cpu=settings.use_cpu,
        seed=settings.seed,
        data_seed=settings.seed,
        report_to="none",
        # On several devices: the default looks for unused parameters, and then counts those of the head twice
        ddp_find_unused_parameters=False,
    )


def _loss(cross_encoder: "CrossEncoder", pairs: Sequence[LabelledPair], settings: CrossEncoderSettings) -> Any:
    import torch
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss, CrossEntropyLoss

    share = sum(pair.similar for pair in pairs) / len(pairs)
    if settings.num_labels == 1:
        weight = torch.tensor((1 - share) / share) if settings.class_weights else None
        return BinaryCrossEntropyLoss(cross_encoder, pos_weight=weight)
    weight = torch.tensor([0.5 / (1 - share), 0.5 / share]) if settings.class_weights else None
    return CrossEntropyLoss(cross_encoder, weight=weight)


def _check_best_epoch(labels: Sequence[int], logits: np.ndarray, best: float | None) -> None:
    """The trainer only logs it when the best checkpoint cannot be loaded, and goes on with the last epoch."""
    from trl_diversity.classifiers.calibration import area_under_curve

    found = area_under_curve(labels, logits)
    if best is not None and abs(found - best) > _TOLERANCE:
        raise RuntimeError(
            f"the best epoch had the development AUC {best:.4f}, but the model loaded from its checkpoint has "
            f"{found:.4f}: it was not loaded. The log above says why"
        )


def _transformers_model(cross_encoder: "CrossEncoder") -> Any:
    return cross_encoder.model


def _write_card(
    output_dir: str,
    settings: CrossEncoderSettings,
    command: str,
    metrics: dict[str, float],
    threshold: float,
    temperature: float,
    pairs: int,
    dev_pairs: int,
) -> None:
    name = Path(settings.base_model).name
    left_out = ("base_model", "resume", "use_cpu", "trust_remote_code")
    write_model_card(
        output_dir,
        "Pair classifier: a cross-encoder",
        f"Says with which probability two generations mean the same. Base: {name}. Trained on {pairs} labelled pairs; "
        f"the epoch was chosen, and the scores measured, on {dev_pairs} development pairs.",
        command,
        {name: value for name, value in asdict(settings).items() if name not in left_out},
        {"development": metrics},
        {
            "threshold": threshold,
            "temperature": temperature,
            "chosen for": settings.goal,
            "chosen on": f"{dev_pairs} development pairs",
        },
    )
