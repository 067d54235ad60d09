# SPDX-License-Identifier: Apache-2.0
"""Worker: carries out scenarios, failures and sharded steps on two ranks, and saves what each rank saw."""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.darl.failures import MESSAGES, failing_trainer
from tests.darl.scenarios import SCENARIOS, run_scenario
from tests.darl.sharded import sharded_scores, training_steps
from tests.distributed.launch import WORLD_SIZE


def said(rank: int, directory: Path, policy: str, case: str) -> dict[str, Any]:
    """What a rank is told of a failure."""
    with pytest.MonkeyPatch.context() as patch:
        trainer = failing_trainer(case, rank, directory, policy, patch)
        try:
            trainer.train()
        except Exception as error:
            notes = " ".join(getattr(error, "__notes__", []))
            wrapper = type(trainer.model_wrapped).__name__
            return {"type": type(error).__name__, "text": str(error), "notes": notes, "wrapper": wrapper}
    return {"type": None, "text": "nothing was raised", "notes": "", "wrapper": ""}


def note(text: str) -> None:
    """So that the output of a run that hangs tells where."""
    print(f"begins: {text}", file=sys.stderr, flush=True)


def main(directory: Path, policy: str) -> None:
    rank = int(os.environ["RANK"])
    (directory / f"rank{rank}.pid").write_text(str(os.getpid()))
    results: dict[str, Any] = {"scenarios": {}, "failures": {}, "sharded": {}}
    try:
        for name in SCENARIOS:
            note(name)
            results["scenarios"][name] = run_scenario(name, directory / "two_ranks", policy, WORLD_SIZE)
        for path in ("fast", "two_pass"):
            note(f"sharded {path}")
            results["sharded"][path] = sharded_scores(policy, rank, path)
        note("sharded steps")
        results["sharded"]["steps"] = training_steps(policy, directory, WORLD_SIZE, is_sharded=True)
        for case in MESSAGES:
            note(case)
            results["failures"][case] = said(rank, directory / "failures", policy, case)
    except Exception:
        traceback.print_exc()
        raise
    torch.save(results, directory / f"rank{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
