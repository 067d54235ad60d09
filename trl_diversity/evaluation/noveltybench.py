# SPDX-License-Identifier: Apache-2.0
"""Reads NoveltyBench's files, sums them up, and completes what they lack."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from trl_diversity.evaluation.intervals import bootstrap_interval
from trl_diversity.evaluation.lexical import distinct_ngrams
from trl_diversity.evaluation.metrics import PATIENCE, distinct, novelty_utility
from trl_diversity.evaluation.noveltybench_checks import BenchmarkRow, is_number, wrong_numbers


def parse_rows(rows: Iterable[dict[str, Any]]) -> list[BenchmarkRow]:
    """
    Rows of generations, of partitions, or scored ones, as NoveltyBench or `trl-diversity partition` writes them.

    Raises:
        `ValueError`: naming the row, if it is none of these, its lists do not fit together, or its id occurs twice.
    """
    parsed: dict[str, BenchmarkRow] = {}
    for number, row in enumerate(rows, start=1):
        try:
            entry = _parse_row(row, number)
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None
        if entry.id in parsed:
            raise ValueError(f"row {number}: the id {entry.id!r} occurs twice; a prompt must not count twice.")
        parsed[entry.id] = entry
    if not parsed:
        raise ValueError("the file has no rows.")
    return list(parsed.values())


def _parse_row(row: dict[str, Any], number: int) -> BenchmarkRow:
    generations = row.get("generations", row.get("completions"))
    partition = row.get("partition", row.get("labels"))
    scores = row.get("generation_scores")
    if generations is None and partition is None:
        raise ValueError(
            f"expected `generations` or a `partition`; the keys are {', '.join(map(repr, row)) or 'none'}"
        )
    if generations is not None and not (_is_list(generations, str) and generations):
        raise ValueError(f"`generations` is a list of at least one text, got {generations!r:.80}")
    if partition is not None and not (_is_list(partition, int) and partition):
        raise ValueError(f"`partition` is a list of at least one whole number, got {partition!r:.80}")
    if scores is not None and partition is None:
        raise ValueError("there are `generation_scores` without a `partition`")
    if scores is not None and not _is_list(scores, (int, float)):
        raise ValueError(f"`generation_scores` is a list of numbers, got {scores!r:.80}")
    lengths = {len(values) for values in (generations, partition, scores) if values is not None}
    if len(lengths) > 1:
        raise ValueError(f"generations, partition and scores have different lengths: {sorted(lengths)}")
    stored = {name: row[name] for name in ("distinct", "partition_scores", "utility") if row.get(name) is not None}
    return BenchmarkRow(str(row.get("id", number)), row.get("prompt"), generations, partition, scores, stored)


def _is_list(value: Any, kind: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)


def summarize(
    rows: Sequence[BenchmarkRow],
    patience: float = PATIENCE,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Any]:
    """
    Sum up rows that have a partition.

    Args:
        rows (`Sequence[BenchmarkRow]`):
            At least one; all with a partition. Utility is computed if all have scores.
        patience (`float`, *optional*, defaults to 0.8):
            See [`novelty_utility`].
        confidence (`float`, *optional*, defaults to 0.95), seed (`int`, *optional*, defaults to 0):
            Of the bootstrap intervals over prompts.

    Returns:
        `dict`: `prompts`, `generations_per_prompt`, `mean_distinct`, `mean_utility` (None without scores),
        `mean_distinct_4` in `[0, 1]` (None without texts), `empty_generations`, `ci` with `[low, high]` or None for
        each mean, `patience`, `confidence`, `published` (means of the numbers that the file claims) and `warnings`.
    """
    values: dict[str, list[float]] = {"mean_distinct": [float(distinct(row.partition or [])) for row in rows]}
    if all(row.scores is not None for row in rows):
        values["mean_utility"] = [novelty_utility(row.partition or [], row.scores or [], patience) for row in rows]
    if all(row.generations is not None for row in rows):
        values["mean_distinct_4"] = [distinct_ngrams(row.generations or [], 4) for row in rows]
    names = ("mean_distinct", "mean_utility", "mean_distinct_4")
    intervals = {
        name: list(bootstrap_interval(values[name], confidence, seed=seed)) if name in values else None
        for name in names
    }
    sizes = sorted({len(row.partition or []) for row in rows})
    warnings = wrong_numbers(rows, values.get("mean_utility"))
    if len(sizes) > 1:
        warnings.append(f"prompts have {sizes[0]} to {sizes[-1]} generations: their clusters cannot be compared.")
    return {
        "prompts": len(rows),
        "generations_per_prompt": sizes[0] if len(sizes) == 1 else sizes,
        **{name: fmean(values[name]) if name in values else None for name in names},
        "empty_generations": sum(not text.strip() for row in rows for text in row.generations or []),
        "ci": intervals,
        "confidence": confidence,
        "patience": patience,
        "published": _published(rows),
        "warnings": warnings,
    }


def _published(rows: Sequence[BenchmarkRow]) -> dict[str, float]:
    """Means of the columns that the file claims, over rows that have them all."""
    return {
        f"mean_{name}": fmean(float(row.stored[name]) for row in rows)
        for name in ("distinct", "utility")
        if all(is_number(row.stored.get(name)) for row in rows)
    }


def fill_scores(
    row: BenchmarkRow, rewards: Sequence[float], to_quality: Callable[[float], float]
) -> tuple[list[float], list[float]]:
    """
    NoveltyBench's `generation_scores` (0 for repeats) and `partition_scores` of a row from raw rewards.

    Raises:
        `ValueError`: if a reward is missing.
    """
    if len(rewards) != len(row.partition or []):
        raise ValueError(f"got {len(rewards)} rewards for {len(row.partition or [])} generations.")
    seen: set[int] = set()
    scores: list[float] = []
    class_scores: list[float] = []
    for label, reward in zip(row.partition or [], rewards, strict=True):
        if label in seen:
            scores.append(0)
            continue
        seen.add(label)
        scores.append(to_quality(reward))
        class_scores.append(scores[-1])
    return scores, class_scores
