# SPDX-License-Identifier: Apache-2.0
"""What a NoveltyBench file or summary claims, against what its own rows give."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeGuard

from trl_diversity.diversity.clustering import number_by_first_appearance
from trl_diversity.evaluation.metrics import distinct


_SAME = 1e-9


@dataclass(frozen=True)
class BenchmarkRow:
    """
    One prompt of a NoveltyBench file.

    Attributes:
        id (`str`):
            As in the file, else the number of the row.
        prompt (`str` or `None`):
            What was asked.
        generations (`list[str]` or `None`):
            The completions. NoveltyBench's published files leave them out.
        partition (`list[int]` or `None`):
            Cluster of every completion.
        scores (`list[float]` or `None`):
            Quality of every completion, 1 to 10; NoveltyBench writes 0 for repeats.
        stored (`dict`):
            The numbers that the file claims, of `distinct`, `partition_scores` and `utility`.
    """

    id: str
    prompt: Any
    generations: list[str] | None
    partition: list[int] | None
    scores: list[float] | None
    stored: dict[str, Any]


def is_number(value: Any) -> TypeGuard[float]:
    """Whether JSON's value is a number: true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def wrong_numbers(rows: Sequence[BenchmarkRow], utilities: Sequence[float] | None) -> list[str]:
    """
    Where the file claims something else than what follows from its partition and scores, in words.

    Args:
        rows (`Sequence[BenchmarkRow]`):
            Rows with a partition.
        utilities (`Sequence[float]`, *optional*):
            The recomputed utility of every row.

    Returns:
        `list[str]`: one sentence or two for each kind of fault.
    """
    found = [_wrong_distinct(rows), _wrong_cluster_scores(rows), _unordered_labels(rows)]
    if utilities is not None:
        found.append(_wrong_utilities(rows, utilities))
    return [warning for warning in found if warning is not None]


def _wrong_distinct(rows: Sequence[BenchmarkRow]) -> str | None:
    claimed = [(row.stored["distinct"], row.partition or []) for row in rows if is_number(row.stored.get("distinct"))]
    wrong = [stored != distinct(labels) for stored, labels in claimed]
    if not any(wrong):
        return None
    if all(stored == max(labels) for stored, labels in claimed):
        reason = "it holds the largest label, one less than the number of clusters"
    else:
        reason = "it is not the number of clusters in the partition"
    mean, count = fmean(stored for stored, _ in claimed), fmean(distinct(labels) for _, labels in claimed)
    return (
        f"`distinct` of the file is wrong in {sum(wrong)} of {len(claimed)} rows: {reason}. Its mean is {mean:.4f}, "
        f"that of the clusters {count:.4f}."
    )


def _wrong_cluster_scores(rows: Sequence[BenchmarkRow]) -> str | None:
    stored = [(row.stored.get("partition_scores"), row.partition or []) for row in rows]
    wrong = sum(isinstance(scores, list) and len(scores) != distinct(labels) for scores, labels in stored)
    return f"`partition_scores` of the file has not one score per cluster in {wrong} rows." if wrong else None


def _unordered_labels(rows: Sequence[BenchmarkRow]) -> str | None:
    wrong = sum(list(row.partition or []) != number_by_first_appearance(row.partition or []) for row in rows)
    if not wrong:
        return None
    return f"the labels of {wrong} rows are not numbered by first appearance; clusters were counted as they are."


def _wrong_utilities(rows: Sequence[BenchmarkRow], utilities: Sequence[float]) -> str | None:
    claimed = [(row.stored.get("utility"), found) for row, found in zip(rows, utilities, strict=True)]
    wrong = [(stored, found) for stored, found in claimed if is_number(stored) and abs(stored - found) > _SAME]
    if not wrong:
        return None
    return (
        f"`utility` of the file differs in {len(wrong)} rows from what its partition and scores give (the first: "
        f"{wrong[0][0]}, not {wrong[0][1]}). Was another patience used?"
    )


def check_published_summary(summary: dict[str, Any], published: dict[str, Any]) -> list[str]:
    """Where the means of a published `summary.json` differ from those of its rows, in words."""
    warnings = []
    for name in ("mean_distinct", "mean_utility"):
        claimed, found = published.get(name), summary.get(name)
        if not is_number(claimed) or not is_number(found) or abs(claimed - found) <= _SAME:
            continue
        is_label = name == "mean_distinct" and abs(claimed + 1 - found) <= _SAME
        reason = ": it averages the largest label, one less than the number of clusters" if is_label else ""
        warnings.append(f"the published {name} is {claimed}, but the rows give {found}{reason}.")
    return warnings
