# SPDX-License-Identifier: Apache-2.0
"""Measure the answers of one run, prompt by prompt: quality, clusters by two models, Distinct-4, utility."""

from statistics import fmean
from typing import Any

from demo.evaluate import partition_model
from demo.rewards import relevance
from demo.table1.arms import QUALITY_THRESHOLDS
from demo.table1.words import WordEquivalence
from trl_diversity import CompletionGroup, PartitionDiversity
from trl_diversity.evaluation import distinct, distinct_ngrams, novelty_utility, reward_to_quality


MEASURES = {
    "quality": "quality (0 to 1)",
    "clusters": "clusters of 10",
    "clusters_held_out": "clusters of 10, held-out model",
    "distinct4": "Distinct-4 (%)",
    "utility": "utility (0 to 10)",
}


def measure(groups: list[CompletionGroup], held_out_model: Any = None) -> list[dict[str, Any]]:
    """
    Measurements of every group: its `prompt`, `completions`, `qualities`, `labels` and the keys of `MEASURES`.

    Clusters are those of the default partition model, which Darling is trained on, and of a model that no arm is
    trained on. Utility is NoveltyBench's, with greedy clusters of the former and tenths of the reward as qualities.
    """
    prompts = [group.prompt for group in groups for _ in group.completions]
    rewards = iter(relevance(prompts, [text for group in groups for text in group.completions]))
    trained = PartitionDiversity(partition_model())(groups)
    greedy = PartitionDiversity(partition_model(), clustering="greedy")(groups)
    held_out = PartitionDiversity(held_out_model or WordEquivalence())(groups)
    rows = []
    for group, closed, opened, other in zip(groups, trained, greedy, held_out, strict=True):
        qualities = [next(rewards) for _ in group.completions]
        steps = [reward_to_quality(quality, QUALITY_THRESHOLDS) for quality in qualities]
        rows.append(
            {
                "prompt": group.prompt,
                "completions": group.completions,
                "qualities": qualities,
                "labels": closed.labels,
                "quality": fmean(qualities),
                "clusters": distinct(closed.labels or []),
                "clusters_held_out": distinct(other.labels or []),
                "distinct4": 100 * distinct_ngrams(group.completions, 4),
                "utility": novelty_utility(opened.labels or [], steps),
            }
        )
    return rows


def per_prompt(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """For every measure one value per prompt, the mean over its groups, in the order of the prompts."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["prompt"], []).append(row)
    return {name: [fmean(row[name] for row in group) for group in groups.values()] for name in MEASURES}
