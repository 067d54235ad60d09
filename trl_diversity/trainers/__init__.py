# SPDX-License-Identifier: Apache-2.0
"""The trainers and their configurations."""

from trl_diversity.trainers.darling_config import DarlingConfig
from trl_diversity.trainers.darling_trainer import DarlingTrainer


__all__ = ["DarlingConfig", "DarlingTrainer"]
