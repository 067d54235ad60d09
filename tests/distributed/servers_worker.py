# SPDX-License-Identifier: Apache-2.0
"""Worker: two ranks ask one server about their groups; then judging fails on rank 1 alone while rewards compute."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from tests.distributed.doubles import length_reward
from trl_diversity import DarlingConfig, DarlingTrainer


RANK = int(os.environ.get("RANK", "-1"))
MESSAGE = "the server of rank 1 has gone"
GENERATIONS = 8


class GoneOnRankOne:
    """A model that says it waits for servers, and fails on rank 1."""

    threshold = 0.5
    is_remote = True

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        if RANK == 1:
            raise ConnectionError(MESSAGE)
        return [0.0] * len(pairs)


def slow_reward(completions: list, **kwargs: Any) -> list[float]:
    time.sleep(0.2)
    return length_reward(completions)


def make_trainer(directory: Path, policy: str, diversity: Any = None, **settings: Any) -> DarlingTrainer:
    args = DarlingConfig(
        str(directory),
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=1,
        max_steps=2,
        per_device_train_batch_size=12,  # 24 completions a step are three groups: the second straddles the ranks
        num_generations=GENERATIONS,
        max_completion_length=8,
        learning_rate=1e-2,
        beta=0.0,
        **settings,
    )
    dataset = Dataset.from_dict({"prompt": [f"p{index}" for index in range(6)]})
    return DarlingTrainer(policy, slow_reward, args, dataset, diversity=diversity)


def main(directory: Path, policy: str, url: str) -> None:
    (directory / f"rank{RANK}.pid").write_text(str(os.getpid()))
    trainer = make_trainer(directory / "run", policy, partition_server_urls=[url])
    trainer.train()
    scored = [entry["diversity/pairs_scored"] for entry in trainer.state.log_history if "loss" in entry]
    requests = [entry["diversity/server_requests"] for entry in trainer.state.log_history if "loss" in entry]
    try:
        make_trainer(directory / "failing", policy, GoneOnRankOne()).train()
        raised = "nothing"
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    record = {"scored": scored, "requests": requests, "raised": raised}
    (directory / f"record{RANK}.json").write_text(json.dumps(record))
    torch.distributed.destroy_process_group()  # its threads may otherwise outlive the interpreter, which then aborts


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
