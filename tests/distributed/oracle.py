# SPDX-License-Identifier: Apache-2.0
"""Rewards of one group of a scenario, computed in the slowest and plainest way."""

import math

from tests.distributed.scenarios import Scenario


def same_meaning(scenario: Scenario, first: str, second: str) -> bool:
    if not first or not second:
        return first == second
    return first == second or scenario.equivalence().score_pairs([(first, second)])[0] > 0.5


def clusters(scenario: Scenario, texts: list[str]) -> list[set[int]]:
    """For every text all texts that a chain of equal meanings leads to."""
    reached = [{index} for index in range(len(texts))]
    for cluster in reached:
        while True:
            more = {
                other
                for index in cluster
                for other in range(len(texts))
                if same_meaning(scenario, texts[index], texts[other])
            }
            if more <= cluster:
                break
            cluster |= more
    return reached


def expected_quality(scenario: Scenario, columns: list[float]) -> float:
    """Weighted sum of what is not NaN."""
    return sum(w * value for w, value in zip(scenario.weights, columns, strict=True) if not math.isnan(value))


def expected_diversity(scenario: Scenario, texts: list[str], quality: list[float]) -> list[float]:
    """Equation 4 over the closed partition, in the group or among its correct completions."""
    floor = scenario.config.get("diversity_floor", 0.0)
    members = list(range(len(texts)))
    if scenario.config.get("partition_correct_only"):
        members = [index for index in members if quality[index] > 0]
    groups = clusters(scenario, [texts[member] for member in members])
    scores = [floor] * len(texts)
    for member, cluster in zip(members, groups, strict=True):
        alone = len(members) == 1
        score = 1.0 if alone else (len(members) - len(cluster)) / (len(members) - 1)
        scores[member] = max(score, floor) if texts[member] else floor
    return scores


def expected_rewards(scenario: Scenario, texts: list[str], quality: list[float]) -> list[float]:
    """Equation 6."""
    diversity = expected_diversity(scenario, texts, quality)
    if scenario.config.get("quality_shift") == "sigmoid":
        quality = [1 / (1 + math.exp(-value)) for value in quality]
    else:
        quality = [value - min(0.0, *quality) for value in quality]
    return [value * score for value, score in zip(quality, diversity, strict=True)]
