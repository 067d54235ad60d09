# SPDX-License-Identifier: Apache-2.0
"""A cross-encoder is trained on two ranks as on one, by the same command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.classifiers.conftest import word_pairs
from trl_diversity.equivalence import load_equivalence_model


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_train_and_save_one_classifier(pairs_file, pair_classifier_one_label_path, tmp_path):
    command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    command += ["--config_file", str(ROOT / "recipes/accelerate_configs/cpu-2proc.yaml"), "-m", "trl_diversity.cli"]
    command += ["train-classifier", "--kind", "cross-encoder", "--data", pairs_file, "--use_cpu", "true"]
    command += ["--base_model", pair_classifier_one_label_path, "--output_dir", str(tmp_path / "out")]
    command += ["--learning_rate", "2e-3", "--max_side_tokens", "16", "--dev_share", "0.3", "--batch_size", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.count("Saved to") == 1
    model = load_equivalence_model(str(tmp_path / "out"), device="cpu")
    pairs = word_pairs(40, seed=5)
    scores = model.score_pairs([(pair.generation_0, pair.generation_1) for pair in pairs])
    same = [score > model.threshold for score in scores]
    assert sum(one == bool(pair.similar) for one, pair in zip(same, pairs, strict=True)) > 35
