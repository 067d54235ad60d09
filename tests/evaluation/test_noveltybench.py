# SPDX-License-Identifier: Apache-2.0
"""NoveltyBench's files: what is read, what is counted anew, and which stored numbers are called wrong."""

import random
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from tests.evaluation.test_metrics import noveltybench_utility
from trl_diversity.diversity import CompletionGroup, PartitionDiversity
from trl_diversity.evaluation.metrics import reward_to_quality
from trl_diversity.evaluation.noveltybench import fill_scores, parse_rows, summarize
from trl_diversity.evaluation.noveltybench_checks import check_published_summary


# The numbers of two rows of NoveltyBench's published sample (sample_data/gpt-4o-in-context.jsonl, MIT).
PUBLISHED = [
    {
        "id": "curated-20",
        "partition": [0, 1, 0, 0, 2, 3, 3, 4, 5, 0],
        "distinct": 5,
        "generation_scores": [9, 2, 0, 0, 10, 9, 0, 10, 8, 0],
        "partition_scores": [9, 2, 10, 9, 10, 8],
        "utility": 4.724140589320996,
    },
    {
        "id": "curated-42",
        "partition": list(range(10)),
        "distinct": 9,
        "generation_scores": [10] + [1] * 9,
        "partition_scores": [10] + [1] * 9,
        "utility": 3.0165224492830087,
    },
]


def scored_file(prompts: int = 100, seed: int = 0) -> list[dict[str, Any]]:
    """A file as NoveltyBench's released scripts made it before 2026: `distinct` is the largest label."""
    draw = random.Random(seed)
    rows = []
    for number in range(prompts):
        partition: list[int] = []
        for _ in range(10):
            partition.append(draw.randint(0, max(partition, default=-1) + 1))
        qualities = [draw.randint(1, 10) for _ in partition]
        first = {label: partition.index(label) for label in partition}
        pairs = enumerate(zip(partition, qualities, strict=True))
        scores = [quality if first[label] == i else 0 for i, (label, quality) in pairs]
        rows.append(
            {
                "id": f"curated-{number}",
                "prompt": f"prompt {number}",
                "generations": [f"text {label}" for label in partition],
                "partition": partition,
                "distinct": max(partition),
                "generation_scores": scores,
                "partition_scores": [qualities[first[label]] for label in sorted(first)],
                "utility": noveltybench_utility(partition, qualities, 0.8),
            }
        )
    return rows


def test_scored_file_of_100_prompts():
    """FC-127: clusters are counted from the partition, whatever the file's `distinct` says."""
    rows = scored_file()
    summary = summarize(parse_rows(rows))
    assert summary["prompts"] == 100 and summary["generations_per_prompt"] == 10
    assert summary["mean_distinct"] == pytest.approx(np.mean([max(row["partition"]) + 1 for row in rows]), abs=1e-12)
    assert summary["mean_utility"] == pytest.approx(np.mean([row["utility"] for row in rows]), abs=1e-12)
    for name in ("mean_distinct", "mean_utility"):
        low, high = summary["ci"][name]
        assert low < summary[name] < high
    assert summary["published"]["mean_distinct"] == pytest.approx(summary["mean_distinct"] - 1)
    assert len(summary["warnings"]) == 1
    assert "`distinct` of the file is wrong in 100 of 100 rows: it holds the largest label" in summary["warnings"][0]


def test_published_rows():
    summary = summarize(parse_rows(PUBLISHED))
    assert summary["mean_distinct"] == 8 and summary["mean_distinct_4"] is None
    assert summary["mean_utility"] == pytest.approx(fmean(row["utility"] for row in PUBLISHED), abs=1e-12)  # type: ignore
    repaired = [row | {"distinct": len(set(row["partition"]))} for row in PUBLISHED]  # type: ignore[arg-type, call-overload]
    assert summarize(parse_rows(repaired))["warnings"] == []


def test_other_wrong_numbers_are_told():
    row = PUBLISHED[0]
    wrong = row | {"distinct": 3, "partition_scores": [9], "utility": 4.7}
    warnings = " ".join(summarize(parse_rows([wrong]))["warnings"])
    assert "is not the number of clusters" in warnings
    assert "not one score per cluster in 1 rows" in warnings and "4.7, not 4.724" in warnings
    assert "numbered by first appearance" in " ".join(summarize(parse_rows([{"partition": [1, 0]}]))["warnings"])
    uneven = [{"partition": [0]}, {"partition": [0, 1]}]
    assert "1 to 2 generations" in " ".join(summarize(parse_rows(uneven))["warnings"])


def test_published_summary():
    summary = {"mean_distinct": 1.83, "mean_utility": 3.0}
    (warning,) = check_published_summary(summary, {"mean_distinct": 0.83, "mean_utility": 3.0})
    assert "mean_distinct is 0.83, but the rows give 1.83: it averages the largest label" in warning
    assert check_published_summary(summary, dict(summary)) == [] == check_published_summary(summary, {})
    assert "label" not in check_published_summary(summary, {"mean_distinct": 2.0})[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows"),
        ([{"prompt": "p"}], "row 1: expected `generations` or a `partition`; the keys are 'prompt'"),
        ([{"generations": []}], "row 1: `generations` is a list of at least one text"),
        ([{"generations": ["a", None]}], "row 1: `generations` is a list"),
        ([{"partition": [0]}, {"partition": [0.5]}], "row 2: `partition` is a list of at least one whole number"),
        ([{"partition": [True]}], "row 1: `partition`"),
        ([{"generations": ["a"], "partition": [0, 1]}], "different lengths"),
        ([{"generations": ["a"], "generation_scores": [1]}], "without a `partition`"),
        ([{"partition": [0], "generation_scores": ["1"]}], "list of numbers"),
        ([{"id": "x", "partition": [0]}] * 2, "row 2: the id 'x' occurs twice"),
    ],
)
def test_rows_that_are_none(rows, message):
    """FC-143: a prompt does not count twice."""
    with pytest.raises(ValueError, match=message):
        parse_rows(rows)


def test_scores_of_repeats_are_zero():
    (row,) = parse_rows([{"partition": [0, 1, 0, 2]}])
    assert fill_scores(row, [-2.0, -9.0, 5.0, -5.6], reward_to_quality) == ([10, 1, 0, 5], [10, 1, 5])
    with pytest.raises(ValueError, match="1 rewards for 4"):
        fill_scores(row, [1.0], reward_to_quality)


class Recorded:
    """Judgements that were written down once, not transitive and not symmetric."""

    threshold = 0.5

    def __init__(self, seed: int):
        self.draw = random.Random(seed)
        self.known: dict[tuple[str, str], float] = {}

    def score_pairs(self, pairs, prompts=None):
        return [self.known.setdefault(pair, float(self.draw.random() < 0.3)) for pair in pairs]


def test_greedy_partition_is_noveltybenchs():
    """Every completion against the head of each class in order, as NoveltyBench's loop over classes does it."""
    for seed in range(200):
        model = Recorded(seed)
        texts = [f"text {i}" for i in range(1 + seed % 10)]
        labels = PartitionDiversity(model, clustering="greedy")([CompletionGroup("p", texts)])[0].labels
        partition, classes = [-1] * len(texts), 0
        for i, head in enumerate(texts):  # NoveltyBench opens a class with the first text that has none
            if partition[i] >= 0:
                continue
            partition[i] = classes
            for j in range(i + 1, len(texts)):
                if partition[j] == -1 and model.score_pairs([(head, texts[j])])[0] > 0.5:
                    partition[j] = classes
            classes += 1
        assert labels == partition
