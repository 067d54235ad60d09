# SPDX-License-Identifier: Apache-2.0
"""Diversity-aware reinforcement learning on top of TRL. Public names are imported lazily: importing this is cheap."""

from importlib.metadata import PackageNotFoundError, version

from trl_diversity.lazy_names import lazy_names


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
    "JudgeEquivalence": "equivalence",
    "LocalRewardModel": "rewards",
    "NgramDiversity": "diversity",
    "PartitionDiversity": "diversity",
    "PolicyScorer": "likelihood",
    "RemoteRewardModel": "rewards",
    "RewardHackingWatch": "trainers",
    "ServerEquivalence": "equivalence",
    "ServerScorer": "likelihood",
    "UnlikelinessDiversity": "diversity",
    "darl_reward": "likelihood",
    "darling_reward": "diversity",
    "load_equivalence_model": "equivalence",
}
__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES)
