# SPDX-License-Identifier: Apache-2.0
"""Starting `trl_diversity.scripts.darling` in two processes, and the files for `accelerate launch`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml


ROOT = Path(__file__).resolve().parents[2]
ACCELERATE_CONFIGS = sorted((ROOT / "recipes" / "accelerate_configs").glob("*.yaml"))
CPU_CONFIG = str(ROOT / "recipes" / "accelerate_configs" / "cpu-2proc.yaml")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--config_file", CPU_CONFIG]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("launcher", "environment"),
    [(TORCHRUN, {"ACCELERATE_USE_CPU": "true"}), pytest.param(ACCELERATE, {}, marks=pytest.mark.slow)],
    ids=["torchrun", "accelerate"],
)
def test_two_processes(working_directory, config, causal_lm_path, launcher, environment):
    """Groups of four straddle ranks of two rows each. Rank 1 is silent, and both are in the world."""
    path = config(
        model_name_or_path=causal_lm_path,
        dataset_name="train.jsonl",
        prompt_column="question",
        reward_funcs=["script_rewards.brevity"],
        diversity_measure="ngram",
        per_device_train_batch_size=2,
        output_dir="out",
    )
    finished = subprocess.run(
        [sys.executable, *launcher, "-m", "trl_diversity.scripts.darling", "--config", path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert finished.returncode == 0, finished.stderr
    assert "2 process(es), DistributedType.MULTI_CPU" in finished.stderr
    assert finished.stdout.count("Model saved to out.") == 1
    assert (working_directory / "out" / "model.safetensors").exists()
    seen = [json.loads(line) for line in (working_directory / "seen.jsonl").read_text().splitlines()]
    assert [len(entry["prompts"]) for entry in seen] == [2, 2, 2, 2]  # two steps of two ranks


@pytest.mark.parametrize("path", ACCELERATE_CONFIGS, ids=lambda path: path.stem)
def test_accelerate_configs_are_valid(path):
    from accelerate.commands.config.config_args import load_config_from_file

    loaded = load_config_from_file(str(path))  # refuses keys that it does not know
    written = yaml.safe_load(path.read_text())
    assert loaded.distributed_type == written["distributed_type"]
    assert loaded.num_processes == {"cpu-2proc": 2, "multi-node": 32}.get(path.stem, 8)


def test_the_accelerate_configs_are_there():
    assert [path.stem for path in ACCELERATE_CONFIGS] == ["cpu-2proc", "ddp", "fsdp2", "multi-node", "zero3"]
