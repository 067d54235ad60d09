# SPDX-License-Identifier: Apache-2.0
"""Trains a bi-encoder: tunes its base if asked to, fits the head, and calibrates it out of fold."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trl_diversity.classifiers.calibration import fit_temperature, pair_metrics, probabilities_of, stable_threshold
from trl_diversity.classifiers.head_training import HeadSettings, choose_l2, fit_head, out_of_fold_logits
from trl_diversity.classifiers.pairs import LabelledPair, sure_negatives, sure_positives
from trl_diversity.classifiers.short_pairs import short_pairs


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from trl_diversity.equivalence.bi_encoder import BiEncoderEquivalence

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BiEncoderSettings:
    """
    How a bi-encoder is trained.

    Attributes:
        head ([`HeadSettings`]):
            How the head is fitted.
        l2_candidates (`tuple[float, ...]`, *optional*):
            Penalties to choose from by the AUC over folds. Empty takes the head's own.
        folds (`int`, *optional*, defaults to 5):
            Folds by prompt, for the penalty and the calibration.
        repeats (`int`, *optional*, defaults to 5):
            Deals of the prompts over those folds.
        sure_pairs (`int`, *optional*, defaults to 100):
            Edited copies, and as many pairs of unrelated generations, that are added to the training data.
        short_pairs (`int`, *optional*, defaults to 600):
            Hand-written short answers that are added.
        goal (`str`, *optional*, defaults to `"balanced_accuracy"`):
            What the threshold is chosen for, out of `calibration.GOALS`.
        false_merge_rate (`float`, *optional*, defaults to 0.05):
            For the goal of that name.
        seed (`int`, *optional*, defaults to 0):
            Of folds and augmentation.
    """

    head: HeadSettings = field(default_factory=HeadSettings)
    l2_candidates: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)
    folds: int = 5
    repeats: int = 5
    sure_pairs: int = 100
    short_pairs: int = 600
    goal: str = "balanced_accuracy"
    false_merge_rate: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class TrainedBiEncoder:
    """
    A trained bi-encoder and how well it did on pairs that it did not see.

    Attributes:
        model ([`BiEncoderEquivalence`]):
            Fitted on all pairs.
        metrics (`dict[str, float]`):
            Of the out-of-fold probabilities, at the threshold that was chosen on them.
        l2_areas (`dict[float, float]`):
            AUC over folds of every penalty tried.
    """

    model: "BiEncoderEquivalence"
    metrics: dict[str, float]
    l2_areas: dict[float, float]
    settings: BiEncoderSettings


def train_bi_encoder(
    pairs: Sequence[LabelledPair], sentence_transformer: "SentenceTransformer", settings: BiEncoderSettings
) -> TrainedBiEncoder:
    """
    Fit and calibrate a head over a base that stays as it is.

    Threshold and temperature come from out-of-fold scores: a pair is scored by a head that saw no pair of its prompt.

    Args:
        pairs (`Sequence[LabelledPair]`):
            Training data; the test split is not among them.
        sentence_transformer ([`~sentence_transformers.SentenceTransformer`]):
            The base.
        settings ([`BiEncoderSettings`]):
            How.
    """
    from trl_diversity.equivalence.bi_encoder import BiEncoderEquivalence, PairHead

    extra = augmentation(pairs, settings)
    inputs, extra_inputs = pair_inputs([pairs, extra], sentence_transformer, settings.head)
    labels, extra_labels = (np.array([pair.similar for pair in part]) for part in (pairs, extra))
    folds: dict[str, Any] = {"folds": settings.folds, "seed": settings.seed, "repeats": settings.repeats}
    head_settings = settings.head
    areas: dict[float, float] = {}
    if settings.l2_candidates:
        l2, areas = choose_l2(
            inputs, pairs, head_settings, extra_inputs, extra_labels, settings.l2_candidates, **folds
        )
        head_settings = replace(head_settings, l2=l2)
        logger.info("penalty %s of %s", l2, areas)
    logits = out_of_fold_logits(inputs, pairs, head_settings, extra_inputs, extra_labels, **folds)
    temperature = fit_temperature(labels.tolist(), logits.tolist())
    probabilities = probabilities_of(logits / temperature).tolist()
    threshold = stable_threshold(labels.tolist(), probabilities, settings.goal, settings.false_merge_rate)
    weights = fit_head(np.concatenate([inputs, extra_inputs]), np.concatenate([labels, extra_labels]), head_settings)
    head = PairHead(
        head_settings.features,
        weights,
        head_settings.by_length,
        head_settings.window_tokens,
        head_settings.max_windows,
    )
    return TrainedBiEncoder(
        BiEncoderEquivalence(head, sentence_transformer, threshold, temperature),
        pair_metrics(labels.tolist(), probabilities, threshold),
        areas,
        replace(settings, head=head_settings),
    )


def augmentation(pairs: Sequence[LabelledPair], settings: BiEncoderSettings) -> list[LabelledPair]:
    """Pairs whose label is sure, beside the labelled ones."""
    count, seed = settings.sure_pairs, settings.seed
    sure = [*sure_positives(pairs, count, seed), *sure_negatives(pairs, count, seed)] if count else []
    return [*sure, *short_pairs(settings.short_pairs, seed)]


def pair_inputs(
    parts: Sequence[Sequence[LabelledPair]], sentence_transformer: "SentenceTransformer", settings: HeadSettings
) -> list[np.ndarray]:
    """A head's inputs of several lists of pairs, each `(pairs, columns)`; every distinct text is encoded once."""
    from trl_diversity.equivalence.bi_encoder import head_inputs, input_names
    from trl_diversity.equivalence.text_reader import TextReader

    texts = list(dict.fromkeys(text for part in parts for pair in part for text in pair_texts(pair)))
    reader = TextReader(sentence_transformer, settings.window_tokens, settings.max_windows, cache_size=len(texts))
    known = {text: facts for text, (facts, _) in reader(texts).items()}
    columns = len(input_names(settings.features, settings.by_length, sentence_transformer.get_embedding_dimension()))
    return [
        np.stack(
            [
                head_inputs(known[pair.generation_0], known[pair.generation_1], settings.features, settings.by_length)
                for pair in part
            ]
        )
        if part
        else np.zeros((0, columns))
        for part in parts
    ]


def pair_texts(pair: LabelledPair) -> tuple[str, str]:
    """The two texts of a pair."""
    return pair.generation_0, pair.generation_1
