# SPDX-License-Identifier: Apache-2.0
"""The pages on evaluation: their commands exist with these options, and their examples give these values."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from trl_diversity import cli
from trl_diversity.scripts.evaluate import BENCHMARKS


ROOT = Path(__file__).resolve().parents[2]
PAGES = ("evaluation.md", "why_no_std.md", "reward_hacking.md")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def commands() -> list[list[str]]:
    text = "\n".join(block for page in PAGES for block in blocks(page, "bash")).replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in text.splitlines() if line.startswith("trl-diversity ")]


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words[1:4]))
def test_commands_have_these_options(words):
    known = {command.name: command.module for command in cli.COMMANDS}
    rest = words[2:]
    module = known[words[1]]
    if words[1] == "evaluate":
        module = {command.name: command.module for command in BENCHMARKS}[words[2]]
        rest = words[3:]
    parser = import_module(f"trl_diversity.scripts.{module}").make_parser("x")
    flags = {flag for action in parser._actions for flag in action.option_strings} | {"-n"}
    assert [word for word in rest if word.startswith("-") and word not in flags] == []


def test_examples_of_metrics_give_what_they_say():
    (code,) = [block for block in blocks("evaluation.md", "python") if "pass_at_k(" in block]
    names: dict = {}
    exec("\n".join(line for line in code.splitlines() if line.startswith("from ")), names)
    values = {line.split("(")[0]: eval(line.split("#")[0], names) for line in code.splitlines() if "#" in line}
    assert round(values["pass_at_k"], 4) == 0.1767 and "# 0.1767" in code and values["distinct"] == 3
    assert values["distinct_ngrams"] == 1.0
    assert values["novelty_utility"] == pytest.approx((9 + 0.64 * 4) / 2.44)
    low, high = values["bootstrap_interval"]
    assert 0.2 <= low < 0.5 < high <= 0.9


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", "\n".join(blocks("evaluation.md", "bash")), re.MULTILINE):
        assert f"\n{target}:" in makefile


@pytest.mark.slow
def test_tasks_of_lm_evaluation_harness_exist():
    pytest.importorskip("lm_eval")
    (tasks,) = set(re.findall(r"--tasks (\S+)", "\n".join(blocks("evaluation.md", "bash"))))
    finished = subprocess.run(
        [sys.executable, "-m", "lm_eval", "validate", "--tasks", tasks], capture_output=True, text=True, timeout=250
    )
    assert finished.returncode == 0 and "All tasks found and valid" in finished.stdout
