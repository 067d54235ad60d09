# SPDX-License-Identifier: Apache-2.0
"""Diversity-aware reinforcement learning on top of TRL. Public names are imported lazily: importing this is cheap."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any


try:
    __version__ = version("trl-diversity")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

_PUBLIC_NAMES = {
    "AnswerEquivalence": "equivalence",
    "CompletionGroup": "diversity",
    "CrossEncoderEquivalence": "equivalence",
    "DarlConfig": "trainers",
    "DarlTrainer": "trainers",
    "DarlingConfig": "trainers",
    "DarlingTrainer": "trainers",
    "DiversityMeasure": "diversity",
    "EmbeddingEquivalence": "equivalence",
    "EquivalenceModel": "equivalence",
    "FrozenScorer": "likelihood",
    "GroupDiversity": "diversity",
    "NgramDiversity": "diversity",
    "PartitionDiversity": "diversity",
    "PolicyScorer": "likelihood",
    "UnlikelinessDiversity": "diversity",
    "darl_reward": "likelihood",
    "darling_reward": "diversity",
    "load_equivalence_model": "equivalence",
}
__all__ = sorted(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(f"{__name__}.{_PUBLIC_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
