# SPDX-License-Identifier: Apache-2.0
"""One rank of a partition that is dealt out over several, timed."""

import json
import sys
import time
from pathlib import Path

from accelerate import Accelerator

from benchmarks.models import between, groups_of, minilm_classifier
from benchmarks.partition import KnownClusters
from trl_diversity.diversity.measures import PartitionDiversity
from trl_diversity.equivalence import CrossEncoderEquivalence


def main(output: str, rounds: str) -> None:
    """Score this rank's share of the groups, `rounds` times, and write the seconds of the slowest rank."""
    classifier = minilm_classifier()  # saved and loaded on every rank, which transformers does only before they meet
    accelerator = Accelerator(cpu=True)
    measure = PartitionDiversity(KnownClusters(CrossEncoderEquivalence(classifier, 0.5)))
    groups = groups_of(8, 8, between(32, 32), 8)[accelerator.process_index :: accelerator.num_processes]
    measure(groups[:1])
    seconds = []
    for _ in range(int(rounds)):
        accelerator.wait_for_everyone()
        begin = time.perf_counter()
        measure(groups)
        accelerator.wait_for_everyone()
        seconds.append(time.perf_counter() - begin)
    if accelerator.is_main_process:
        result = {"ranks": accelerator.num_processes, "seconds": seconds}
        Path(output).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
