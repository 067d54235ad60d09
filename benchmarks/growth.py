# SPDX-License-Identifier: Apache-2.0
"""How the time of a partition grows with the size of a group, with the length of its texts and with ranks."""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.models import between, groups_of, minilm_classifier
from benchmarks.partition import KnownClusters
from benchmarks.timing import PRODUCT, Row
from trl_diversity.diversity.groups import CompletionGroup
from trl_diversity.diversity.measures import PartitionDiversity
from trl_diversity.equivalence import CrossEncoderEquivalence


SIZES, LENGTHS = (4, 8, 16, 32, 64), (8, 16, 32, 64, 128)


def fitted_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of a straight line through the logarithms: time grows with size to this power."""
    logs = [(math.log(size), math.log(value)) for size, value in zip(sizes, seconds, strict=True)]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


def _median_seconds(measure: PartitionDiversity, groups: list[CompletionGroup], rounds: int) -> float:
    measure(groups)
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        measure(groups)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def growth_rows(rounds: int, quick: bool) -> Iterator[Row]:
    """One group, short texts: all different must not grow faster than its pairs, one cluster linearly."""
    measure = PartitionDiversity(KnownClusters(CrossEncoderEquivalence(minilm_classifier(), 0.5)))
    sizes = SIZES[:3] if quick else SIZES
    for name, is_collapsed, works in (
        ("all differ", False, [size * (size - 1) / 2 for size in sizes]),
        ("one cluster", True, [size - 1 for size in sizes]),
    ):
        seconds = [
            _median_seconds(measure, groups_of(1, size, lambda _: 16, 1 if is_collapsed else size), rounds)
            for size in sizes
        ]
        measured = {f"{size} completions": round(value, 4) for size, value in zip(sizes, seconds, strict=True)}
        figures = {"seconds": measured, "exponent_in_questions": round(fitted_exponent(works, seconds), 3)}
        yield Row("growth", f"with the size of a group, 16 tokens a text, {name}", figures=figures)
    lengths = LENGTHS[:3] if quick else LENGTHS
    seconds = [_median_seconds(measure, groups_of(2, 8, between(length, length), 8), rounds) for length in lengths]
    measured = {f"{length} tokens": round(value, 4) for length, value in zip(lengths, seconds, strict=True)}
    exponent = round(fitted_exponent(lengths, seconds), 3)
    yield Row(
        "growth", "with the tokens of a text, 2 groups of 8", figures={"seconds": measured, "exponent": exponent}
    )
    yield from rank_rows(1 if quick else rounds)


def rank_rows(rounds: int) -> Iterator[Row]:
    """The same groups on one process and on two, one core each."""
    seconds = {}
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as directory:
            output = Path(directory) / "seconds.json"
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
            command += ["-m", "benchmarks.ranks_worker", str(output), str(rounds)]
            environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
            subprocess.run(command, check=True, env=environment)
            result = json.loads(output.read_text(encoding="utf-8"))
        if result["ranks"] != ranks:
            raise AssertionError(f"{ranks} processes were asked for, {result['ranks']} ran")
        seconds[ranks] = statistics.median(result["seconds"])
    case = "with ranks: 8 groups of 8, 32 tokens a text, two processes against one, a core each"
    yield Row("growth", case, {PRODUCT: seconds[2], "peer": seconds[1]}, seconds[1] / seconds[2])
