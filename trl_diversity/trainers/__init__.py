# SPDX-License-Identifier: Apache-2.0
"""The trainers and their configurations, imported when they are first used."""

from trl_diversity.lazy_names import lazy_names


_PUBLIC_NAMES = {
    "DarlConfig": "darl_config",
    "DarlTrainer": "darl_trainer",
    "DarlingConfig": "darling_config",
    "DarlingTrainer": "darling_trainer",
    "RewardHackingWatch": "hacking_watch",
}
__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES)
