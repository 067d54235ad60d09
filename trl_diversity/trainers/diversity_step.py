# SPDX-License-Identifier: Apache-2.0
"""What happens to the groups of one reward step: scored, combined with quality, and described in metrics."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from trl_diversity.diversity import CompletionGroup, DiversityMeasure, GroupDiversity, darling_reward
from trl_diversity.diversity.combine import check_not_mostly_negative
from trl_diversity.trainers.darling_config import DarlingConfig


Item = TypeVar("Item")
Result = TypeVar("Result")


def score_groups(
    measure: DiversityMeasure, groups: list[CompletionGroup]
) -> tuple[list[GroupDiversity], dict[str, int]]:
    """
    Apply a diversity measure to groups and check what it gives.

    Returns:
        `tuple[list[GroupDiversity], dict[str, int]]`: one result per group, and what the measure counted.

    Raises:
        `ValueError`: naming the measure, if it does not give every group one score in `[0, 1]` per completion, and as
        many labels, if any.
    """
    results = list(measure(groups)) if groups else []
    name = getattr(measure, "name", type(measure).__name__)
    if len(results) != len(groups):
        raise ValueError(f"The diversity measure '{name}' gave {len(results)} results for {len(groups)} groups.")
    for group, result in zip(groups, results, strict=True):
        n = len(group.completions)
        if len(result.scores) != n or (result.labels is not None and len(result.labels) != n):
            raise ValueError(
                f"The diversity measure '{name}' gave {len(result.scores)} scores and "
                f"{None if result.labels is None else len(result.labels)} labels for a group of {n} completions."
            )
        for score in result.scores:
            if not 0 <= score <= 1:  # also true for NaN
                raise ValueError(
                    f"The diversity measure '{name}' gave the score {score} in the group of the prompt "
                    f"{group.prompt[:80]!r}. Scores are finite numbers in [0, 1]."
                )
    pop_statistics = getattr(measure, "pop_statistics", None)
    return results, pop_statistics() if pop_statistics else {}


def waits_for_servers(measure: Any) -> bool:
    """
    Whether a diversity measure, or the equivalence model that it asks, mostly waits for servers.

    It says so by a true attribute `is_remote`. It must then be safe to use in another thread than the main one, and
    make no collective call.
    """
    return any(getattr(asked, "is_remote", False) for asked in (measure, getattr(measure, "model", None)))


def in_background(function: Callable[[Item], Result], argument: Item) -> "Future[Result]":
    """Call a function in a thread of its own, which ends with it and keeps no process from ending."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(function(argument))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="diversity-ahead", daemon=True).start()
    return future


def correct_members(quality: Sequence[float]) -> list[int]:
    """Indices of the completions of a group that count as correct: those with a quality above 0."""
    return [index for index, value in enumerate(quality) if value > 0]


def select_members(group: CompletionGroup, members: Sequence[int]) -> CompletionGroup:
    """A group of some of a group's completions."""
    logprobs = group.mean_logprobs
    return replace(
        group,
        completions=[group.completions[member] for member in members],
        mean_logprobs=None if logprobs is None else [logprobs[member] for member in members],
    )


def spread_members(
    diversity: GroupDiversity | None, members: Sequence[int], group_size: int, floor: float
) -> GroupDiversity:
    """Put the diversity of some completions back into their group. The others get the floor and the label -1."""
    if diversity is None:  # no completion was selected
        return GroupDiversity(scores=[floor] * group_size, labels=[-1] * group_size)
    score = dict(zip(members, diversity.scores, strict=True))
    scores = [score.get(index, floor) for index in range(group_size)]
    if diversity.labels is None:
        return GroupDiversity(scores=scores, labels=None)
    label = dict(zip(members, diversity.labels, strict=True))
    return GroupDiversity(scores=scores, labels=[label.get(index, -1) for index in range(group_size)])


def combine_groups(
    args: DarlingConfig, quality: list[list[float]], diversities: list[GroupDiversity]
) -> list[list[float]]:
    """
    Rewards of all groups of a batch (see [`darling_reward`]), as configured.

    Raises:
        `ValueError`: with `quality_shift="none"`, if most qualities of the batch are negative.
    """
    if args.quality_shift == "none" and args.combine == "multiply" and not args.allow_negative_quality:
        check_not_mostly_negative(np.concatenate(quality))
    return [
        darling_reward(
            group_quality,
            diversity.scores,
            labels=diversity.labels,
            combine=args.combine,
            diversity_weight=args.diversity_weight,
            diversity_floor=args.diversity_floor,
            diversity_norm=args.diversity_norm,
            quality_shift=args.quality_shift,
            allow_negative_quality=True,  # judged above, over the whole batch
            correct_only=args.partition_correct_only,
        )
        for group_quality, diversity in zip(quality, diversities, strict=True)
    ]


def quality_metrics(quality: list[list[float]]) -> dict[str, float]:
    """`quality/mean` and `quality/negative_fraction` over the completions that have a quality."""
    known = [value for group in quality for value in group if value == value]
    if not known:
        return {}
    return {"quality/mean": fmean(known), "quality/negative_fraction": fmean(value < 0 for value in known)}


def diversity_metrics(diversities: list[GroupDiversity], rewards: list[list[float]]) -> dict[str, float]:
    """Metrics of the groups of one step, listed in docs/metrics.md."""
    metrics = {
        "diversity/mean": fmean(score for diversity in diversities for score in diversity.scores),
        "diversity/collapsed_groups": fmean(not any(diversity.scores) for diversity in diversities),
        "diversity/zero_std_groups": fmean(_all_equal(group) for group in rewards),
    }
    clusters = [len(set(diversity.labels) - {-1}) for diversity in diversities if diversity.labels is not None]
    if clusters:
        metrics["diversity/clusters_per_group"] = fmean(clusters)
    return metrics


def clusters_to_show(diversity: GroupDiversity) -> list[int | None]:
    """Cluster of every completion for the completions table; `None` where there is none."""
    labels = diversity.labels or [-1] * len(diversity.scores)
    return [None if label == -1 else label for label in labels]


def _all_equal(rewards: list[float]) -> bool:
    known = [value for value in rewards if value == value]
    return not known or min(known) == max(known)
