# SPDX-License-Identifier: Apache-2.0
"""Worker: sharded steps on two ranks, with and without checkpointing; saves what each rank saw."""

import os
import sys
from pathlib import Path

import torch

from tests.distributed.launch import WORLD_SIZE
from tests.scale.steps import MEASURES, run


def main(directory: Path, policy: str) -> None:
    rank = int(os.environ["RANK"])
    (directory / f"rank{rank}.pid").write_text(str(os.getpid()))
    results = {
        (measure, checkpointing): run(
            policy, directory / f"{measure}_{checkpointing}", measure, WORLD_SIZE, True, checkpointing
        )
        for measure in MEASURES
        for checkpointing in (False, True)
    }
    torch.save(results, directory / f"rank{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
