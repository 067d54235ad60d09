# SPDX-License-Identifier: Apache-2.0
"""Cold start: importing the package, and the way to a trainer."""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.timing import Row


def seconds_of(code: str, repeats: int) -> float:
    """Median wall time of a fresh Python that runs `code`."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def start_rows(rounds: int, quick: bool) -> Iterator[Row]:
    """The package alone must load nothing heavy; a trainer loads what TRL's own loads."""
    nothing = seconds_of("pass", rounds + 2)
    package = seconds_of(
        "import sys, trl_diversity; assert not {'torch', 'transformers', 'trl'} & set(sys.modules)", rounds + 2
    )
    yield Row("cold start", "import trl_diversity, over nothing", {"product": package - nothing})
    if not quick:
        trl = seconds_of("from trl import GRPOTrainer", rounds)
        own = seconds_of("from trl_diversity import DarlingTrainer", rounds)
        yield Row("cold start", "DarlingTrainer, against GRPOTrainer", {"product": own, "peer": trl}, trl / own)
