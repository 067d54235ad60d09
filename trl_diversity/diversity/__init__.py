# SPDX-License-Identifier: Apache-2.0
"""How different is each completion from the rest of its group?"""

from trl_diversity.diversity.clustering import closure_labels, greedy_labels, label_diversity
from trl_diversity.diversity.combine import darling_reward
from trl_diversity.diversity.groups import CompletionGroup, GroupDiversity
from trl_diversity.diversity.measures import (
    DiversityMeasure,
    NgramDiversity,
    PartitionDiversity,
    UnlikelinessDiversity,
)


__all__ = [
    "CompletionGroup",
    "DiversityMeasure",
    "GroupDiversity",
    "NgramDiversity",
    "PartitionDiversity",
    "UnlikelinessDiversity",
    "closure_labels",
    "darling_reward",
    "greedy_labels",
    "label_diversity",
]
