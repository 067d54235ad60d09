# SPDX-License-Identifier: Apache-2.0
"""The page on evaluation: its examples give these values, and the tasks that it names exist."""

import re
import subprocess
import sys

import pytest

from tests.test_docs import blocks


def test_examples_of_metrics_give_what_they_say():
    (code,) = [block for block in blocks("docs/evaluation.md", "python") if "pass_at_k(" in block]
    names: dict = {}
    exec("\n".join(line for line in code.splitlines() if line.startswith("from ")), names)
    values = {line.split("(")[0]: eval(line.split("#")[0], names) for line in code.splitlines() if "#" in line}
    assert round(values["pass_at_k"], 4) == 0.1767 and "# 0.1767" in code and values["distinct"] == 3
    assert values["distinct_ngrams"] == 1.0
    assert values["novelty_utility"] == pytest.approx((9 + 0.64 * 4) / 2.44)
    low, high = values["bootstrap_interval"]
    assert 0.2 <= low < 0.5 < high <= 0.9


@pytest.mark.slow
def test_tasks_of_lm_evaluation_harness_exist():
    pytest.importorskip("lm_eval")
    (tasks,) = set(re.findall(r"--tasks (\S+)", "\n".join(blocks("docs/evaluation.md", "bash"))))
    finished = subprocess.run(
        [sys.executable, "-m", "lm_eval", "validate", "--tasks", tasks], capture_output=True, text=True, timeout=250
    )
    assert finished.returncode == 0 and "All tasks found and valid" in finished.stdout
