# SPDX-License-Identifier: Apache-2.0
"""Metrics and file formats are imported without torch, transformers or matplotlib."""

import json
import subprocess
import sys

from trl_diversity import evaluation


HEAVY = ["torch", "transformers", "trl", "datasets", "sentence_transformers", "matplotlib", "pandas", "sacrebleu"]
PURE = [
    "noveltybench",
    "problems",
    "eq_bench",
    "answer_files",
    "generation",
    "journal",
    "divpo_pairs",
    "fronts",
    "plots",
]


def test_metrics_and_formats_are_light():
    """In a process of its own, since this one has imported torch already."""
    program = f"""
import importlib, json, sys
evaluation = importlib.import_module("trl_diversity.evaluation")
[getattr(evaluation, name) for name in evaluation.__all__]
[importlib.import_module("trl_diversity.evaluation." + name) for name in {PURE!r}]
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_public_names_resolve():
    assert all(getattr(evaluation, name).__name__ == name for name in evaluation.__all__)
    assert set(evaluation.__all__) <= set(dir(evaluation))
