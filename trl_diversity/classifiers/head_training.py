# SPDX-License-Identifier: Apache-2.0
"""Fits the head of a bi-encoder: a regularised logistic regression, or one hidden layer, over features of pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trl_diversity.classifiers.calibration import area_under_curve
from trl_diversity.classifiers.pairs import LabelledPair, folds_by_prompt
from trl_diversity.equivalence.pair_features import check_features


if TYPE_CHECKING:
    import torch

_ITERATIONS = 200


@dataclass(frozen=True)
class HeadSettings:
    """
    How a head is fitted.

    Attributes:
        features (`tuple[str, ...]`):
            Groups of features out of `pair_features.FEATURE_GROUPS`.
        by_length (`bool`, *optional*, defaults to `True`):
            Whether short texts get weights of their own.
        hidden_units (`int`, *optional*, defaults to 0):
            0 fits a linear head.
        l2 (`float`, *optional*, defaults to 10.0):
            Penalty `l2 / 2 * |weights|^2` beside the sum of the pairs' log losses; inputs are standardised.
        class_weights (`bool`, *optional*, defaults to `False`):
            Weigh the classes inversely to their frequency. The probability then is that of balanced data.
        window_tokens (`int`, *optional*, defaults to 254):
            Most tokens of a window.
        max_windows (`int`, *optional*, defaults to 16):
            Windows that are read of a text.
        seed (`int`, *optional*, defaults to 0):
            Of the hidden layer's first weights.
    """

    features: tuple[str, ...] = ("tokens", "words", "layout", "cosine", "windows")
    by_length: bool = True
    hidden_units: int = 0
    l2: float = 10.0
    class_weights: bool = False
    window_tokens: int = 254
    max_windows: int = 16
    seed: int = 0

    def __post_init__(self):
        check_features(self.features)


def fit_head(
    inputs: np.ndarray, labels: np.ndarray, settings: HeadSettings, weights: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """
    Fit the weights of a head.

    Args:
        inputs (`np.ndarray` of shape `(pairs, columns)`):
            As `bi_encoder.head_inputs` gives them.
        labels (`np.ndarray` of shape `(pairs,)`):
            0 or 1.
        settings ([`HeadSettings`]):
            How.
        weights (`np.ndarray` of shape `(pairs,)`, *optional*):
            Of the pairs in the loss. 1 by default.

    Returns:
        `dict[str, np.ndarray]`: as [`~trl_diversity.equivalence.bi_encoder.PairHead`] wants them.
    """
    import torch

    mean, scale = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(scale < 1e-6, 1.0, scale)
    values = torch.from_numpy((inputs - mean) / scale)
    truth = torch.from_numpy(labels.astype(np.float64))
    importance = torch.from_numpy(np.ones(len(labels)) if weights is None else weights.astype(np.float64))
    if settings.class_weights:
        importance = importance * torch.where(truth == 1, 0.5 / truth.mean(), 0.5 / (1 - truth.mean()))
    parameters = _start(values.shape[1], settings)
    optimiser = torch.optim.LBFGS(
        list(parameters.values()), max_iter=_ITERATIONS, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        hidden = values
        if "hidden_weight" in parameters:
            hidden = torch.tanh(hidden @ parameters["hidden_weight"].T + parameters["hidden_bias"])
        logits = hidden @ parameters["weight"] + parameters["bias"]
        losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        size = sum((value**2).sum() for name, value in parameters.items() if name.endswith("weight"))
        total = (importance * losses).sum() + settings.l2 / 2 * size
        total.backward()
        return total

    optimiser.step(loss)
    fitted = {name: value.detach().numpy() for name, value in parameters.items()}
    fitted = {name: value.astype(np.float32) for name, value in fitted.items()}
    return {"mean": mean.astype(np.float32), "scale": scale.astype(np.float32), **fitted}


def out_of_fold_logits(
    inputs: np.ndarray,
    pairs: Sequence[LabelledPair],
    settings: HeadSettings,
    extra_inputs: np.ndarray,
    extra_labels: np.ndarray,
    folds: int,
    seed: int,
    repeats: int = 1,
) -> np.ndarray:
    """
    The logit of every pair by heads that saw no pair of its prompt: what thresholds are chosen on.

    Args:
        inputs (`np.ndarray` of shape `(pairs, columns)`):
            Of the labelled pairs.
        pairs (`Sequence[LabelledPair]`):
            Those.
        settings ([`HeadSettings`]):
            How each head is fitted.
        extra_inputs (`np.ndarray` of shape `(extra, columns)`):
            Of pairs that augment every fold's training data.
        extra_labels (`np.ndarray` of shape `(extra,)`):
            Their labels.
        folds (`int`):
            Number of folds.
        seed (`int`):
            Of the deal of prompts over folds.
        repeats (`int`, *optional*, defaults to 1):
            Deals, over which the logits are averaged.

    Returns:
        `np.ndarray` of shape `(pairs,)`.
    """
    from trl_diversity.equivalence.bi_encoder import PairHead

    labels = np.array([pair.similar for pair in pairs])
    logits = np.zeros(len(pairs))
    deals = [folds_by_prompt(pairs, folds, seed + repeat) for repeat in range(repeats)]
    for held_out in (fold for deal in deals for fold in deal):
        rest = np.setdiff1d(np.arange(len(pairs)), held_out)
        weights = fit_head(
            np.concatenate([inputs[rest], extra_inputs]), np.concatenate([labels[rest], extra_labels]), settings
        )
        head = PairHead(settings.features, weights, settings.by_length, settings.window_tokens, settings.max_windows)
        logits[held_out] += head.logits(inputs[held_out]) / repeats
    return logits


def choose_l2(
    inputs: np.ndarray,
    pairs: Sequence[LabelledPair],
    settings: HeadSettings,
    extra_inputs: np.ndarray,
    extra_labels: np.ndarray,
    candidates: Sequence[float],
    folds: int,
    seed: int,
    repeats: int = 1,
) -> tuple[float, dict[float, float]]:
    """The penalty with the best AUC over folds by prompt, and the AUC of every candidate."""
    labels = [pair.similar for pair in pairs]
    areas = {
        l2: area_under_curve(
            labels,
            out_of_fold_logits(
                inputs, pairs, replace(settings, l2=l2), extra_inputs, extra_labels, folds, seed, repeats
            ).tolist(),
        )
        for l2 in candidates
    }
    return max(areas, key=lambda l2: areas[l2]), areas


def _start(columns: int, settings: HeadSettings) -> "dict[str, torch.Tensor]":
    import torch

    generator = torch.Generator().manual_seed(settings.seed)
    units = settings.hidden_units
    shapes: dict[str, tuple[int, ...]] = {"weight": (units or columns,), "bias": ()}
    if units:
        shapes |= {"hidden_weight": (units, columns), "hidden_bias": (units,)}
    start = {}
    for name, shape in shapes.items():
        value = torch.zeros(shape, dtype=torch.float64)
        if units and name.endswith("weight"):  # equal units would stay equal
            value = torch.randn(shape, dtype=torch.float64, generator=generator) / shape[-1] ** 0.5
        start[name] = value.requires_grad_()
    return start
