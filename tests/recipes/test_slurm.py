# SPDX-License-Identifier: Apache-2.0
"""The Slurm script with stand-ins for Slurm: who runs where, with which addresses."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "recipes" / "slurm" / "train.slurm"
# Servers stay until they are killed; the trainer ends with the status that the test wants.
SRUN = """#!/bin/bash
echo "$*" >> srun.log
case "$*" in *vllm-serve*|*serve-classifier*) exec sleep 60 ;; esac
exit "${TRAINER_STATUS:-0}"
"""
SCONTROL = "#!/bin/bash\nprintf 'node%s\\n' $(seq 1 $NODES)\n"
# What is asked is started first, as in life.
CURL = '#!/bin/bash\nsleep 0.5\necho "${@: -1}" >> curl.log\n'


@pytest.fixture
def submit(tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("curl", CURL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(nodes, *arguments, **environment):
        variables = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_JOB_NODELIST": "node[1-9]",
            "NODES": str(nodes),
        }
        finished = subprocess.run(
            ["bash", str(SCRIPT), *arguments],
            cwd=tmp_path,
            env={**os.environ, **variables, **environment},
            capture_output=True,
            text=True,
            timeout=50,
        )
        log = tmp_path / "srun.log"
        return finished, log.read_text().splitlines() if log.exists() else []

    return run


def test_servers_and_trainer_find_each_other(submit, tmp_path):
    arguments = ("recipes/x/darling.yaml", "owner/policy", "owner/classifier", "1536", "0.8")
    finished, calls = submit(5, *arguments, CLASSIFIER_GPUS="2")
    assert finished.returncode == 0, finished.stderr
    policy, classifier, trainer = sorted(calls, key=lambda call: ("accelerate" in call, "classifier" in call))
    assert "--nodelist=node1" in policy and "CUDA_VISIBLE_DEVICES=0,1,2,3" in policy
    assert "--gpu_memory_utilization 0.8 --max_model_len 1536" in policy
    assert "--nodelist=node1" in classifier and "CUDA_VISIBLE_DEVICES=4,5" in classifier
    assert "serve-classifier owner/classifier --gpus 2 --port 8100 --host 0.0.0.0" in classifier
    assert "--nodes=4 --ntasks=4 --nodelist=node2,node3,node4,node5" in trainer
    assert "--num_machines 4 --num_processes 32 --main_process_ip node2 -m trl_diversity.scripts.darling" in trainer
    assert trainer.endswith(
        "--config recipes/x/darling.yaml --vllm_server_base_url http://node1:8000 "
        "--partition_server_urls http://node1:8100 http://node1:8101"
    )
    asked = (tmp_path / "curl.log").read_text().split()
    assert asked == ["http://node1:8000/health", "http://node1:8100/health", "http://node1:8101/health"]


def test_without_a_classifier_and_with_the_other_trainer(submit):
    finished, calls = submit(2, "recipes/darl/x.yaml", "owner/policy", "none", "5120", "0.9")
    assert finished.returncode == 0 and len(calls) == 2
    trainer = next(call for call in calls if "accelerate" in call)
    assert "-m trl_diversity.scripts.darl --config recipes/darl/x.yaml" in trainer
    assert "--num_machines 1 --num_processes 8" in trainer and "partition_server_urls" not in trainer


def test_a_requeued_job_goes_on_and_a_failed_one_fails(submit, tmp_path):
    (tmp_path / "out" / "checkpoint-64").mkdir(parents=True)
    arguments = ("recipes/x.yaml", "owner/policy", "none", "1536", "0.8")
    finished, calls = submit(2, *arguments, OUTPUT_DIR="out", TRAINER_STATUS="3")
    assert finished.returncode == 3
    assert any(call.endswith("--resume_from_checkpoint true") for call in calls)


def test_one_node_is_not_enough(submit):
    finished, calls = submit(1, "recipes/x.yaml", "owner/policy", "none", "1536", "0.8")
    assert finished.returncode == 2 and "--nodes=2" in finished.stderr and not calls
