# SPDX-License-Identifier: Apache-2.0
"""Scores a cross-encoder on development pairs while it is trained, whether it has one label or two."""

from collections.abc import Sequence
from typing import Any

from sentence_transformers.base.evaluation.evaluator import BaseEvaluator

from trl_diversity.classifiers.calibration import choose_threshold, pair_metrics, probabilities_of
from trl_diversity.classifiers.pairs import LabelledPair


class PairEvaluator(BaseEvaluator):
    """
    AUC, accuracy and F1 on labelled pairs, at the threshold that is best for accuracy on them.

    Args:
        pairs (`Sequence[LabelledPair]`):
            Development pairs, of both classes.
        batch_size (`int`, *optional*, defaults to 32):
            Pairs per forward pass.
        name (`str`, *optional*, defaults to `"dev"`):
            Before the keys of the metrics.
    """

    def __init__(self, pairs: Sequence[LabelledPair], batch_size: int = 32, name: str = "dev"):
        super().__init__()
        self.pairs, self.batch_size, self.name = list(pairs), batch_size, name
        self.primary_metric = f"{name}_auc"

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        """Metrics of the model, each key after the evaluator's name."""
        from trl_diversity.classifiers.cross_encoder_training import pair_logits

        labels = [pair.similar for pair in self.pairs]
        probabilities = probabilities_of(pair_logits(model, self.pairs, self.batch_size))
        threshold = choose_threshold(labels, probabilities)
        metrics = pair_metrics(labels, probabilities, threshold)
        chosen = {key: metrics[key] for key in ("auc", "accuracy", "balanced_accuracy", "f1")}
        return {f"{self.name}_{key}": value for key, value in {**chosen, "threshold": threshold}.items()}
