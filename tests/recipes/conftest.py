# SPDX-License-Identifier: Apache-2.0
"""A recipe to change one thing of, and `check-recipe` as it is called."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trl_diversity.scripts.check_recipe import run


HEADER = """# A recipe.
#
# On the node of the servers:
#   trl vllm-serve --model owner/policy --tensor_parallel_size 4 \\
#       --gpu_memory_utilization 0.8 --max_model_len 1536
# On the training node:
#   accelerate launch --num_processes 8 -m trl_diversity.scripts.darling \\
#       --config recipe.yaml  # a remark

"""
GOOD: dict[str, Any] = {
    "model_name_or_path": "owner/policy",
    "dataset_name": "train.parquet",
    "max_prompt_tokens": 512,
    "reward_funcs": ["accuracy_reward"],
    "diversity_measure": "ngram",
    "num_generations": 8,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "steps_per_generation": 8,
    "max_completion_length": 1024,
    "use_vllm": True,
    "vllm_mode": "server",
    "beta": 0.001,
    "delta": 3.0,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.01,
    "save_strategy": "no",
}


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., str]:
    """Write the good recipe with other values; a value of `None` leaves its key out."""

    def write(header: str = HEADER, **values: Any) -> str:
        path = tmp_path / "recipe.yaml"
        kept = {key: value for key, value in {**GOOD, **values}.items() if value is not None}
        path.write_text(header + yaml.safe_dump(kept))
        return str(path)

    return write


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """`trl-diversity check-recipe ... --json`: its object, with the exit status under `status`."""

    def checked(*arguments: str) -> dict[str, Any]:
        status = 0
        try:
            run([*arguments, "--json"])
        except SystemExit as error:
            status = int(error.code or 0)
        return {**json.loads(capsys.readouterr().out), "status": status}

    return checked
