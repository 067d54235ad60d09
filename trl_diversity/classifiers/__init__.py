# SPDX-License-Identifier: Apache-2.0
"""Trains and calibrates equivalence models. Public names are imported when they are first used."""

from trl_diversity.lazy_names import lazy_names


_PUBLIC_NAMES = {
    "BiEncoderSettings": "bi_encoder_training",
    "HeadSettings": "head_training",
    "LabelledPair": "pairs",
    "PairColumns": "pairs",
    "bootstrap_metrics": "calibration",
    "choose_threshold": "calibration",
    "fit_temperature": "calibration",
    "load_pairs": "pairs",
    "non_transitivity_rate": "calibration",
    "pair_metrics": "calibration",
    "train_bi_encoder": "bi_encoder_training",
}
__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES)
