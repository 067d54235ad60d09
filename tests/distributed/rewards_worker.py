# SPDX-License-Identifier: Apache-2.0
"""Worker: carries out every scenario on two ranks and saves what each rank saw."""

import os
import sys
from pathlib import Path

import torch

from tests.distributed.launch import WORLD_SIZE
from tests.distributed.scenarios import SCENARIOS, run_scenario
from trl_diversity.distributed import gather_in_rank_order


def main(directory: Path, policy: str, reward_model: str) -> None:
    rank = int(os.environ["RANK"])
    (directory / f"rank{rank}.pid").write_text(str(os.getpid()))
    records = {}
    for name in SCENARIOS:
        records[name] = run_scenario(name, directory / "two_ranks", policy, reward_model, WORLD_SIZE)
        assert records[name]["world_size"] == WORLD_SIZE, records[name]["world_size"]
        assert records[name]["wrapper"] == "DistributedDataParallel", records[name]["wrapper"]
    # The case FC-057: lists of strings, and one string per rank
    contributions: list[tuple[list, list]] = [
        (["abc", "d"], ["e", "fg"]),
        (["abc"], ["de"]),
        (["abc"], []),
        ([["nested", "list"]], [None]),
    ]
    gathered = [gather_in_rank_order(contribution[rank]) for contribution in contributions]
    torch.save({"scenarios": records, "gathered": gathered}, directory / f"rank{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
