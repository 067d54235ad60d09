# SPDX-License-Identifier: Apache-2.0
"""Configuration files for the commands, and a working directory with a reward module in it."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml


REWARDS = """
import json, os


def brevity(prompts, completions, **kwargs):
    with open("seen.jsonl", "a") as seen:
        seen.write(json.dumps({"prompts": prompts, "variable": os.environ.get("SCRIPT_TEST_VARIABLE")}) + "\\n")
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [1 / (1 + len(text)) for text in texts]


class Length:
    def __call__(self, completion_ids, **kwargs):
        return [len(ids) / 8 for ids in completion_ids]


NUMBER = 3
"""
QUICK = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 6,
    "beta": 0,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_steps": 1,
}


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory with the module `script_rewards` and a data set `train.jsonl` of eight questions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "script_rewards.py").write_text(REWARDS)
    write_lines(tmp_path / "train.jsonl", [{"question": f"Name animal {i}.", "answer": "cat"} for i in range(8)])
    yield tmp_path
    sys.modules.pop("script_rewards", None)


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """Write a configuration file: from YAML text as it is, or from values that are added to a quick run's."""

    def write(text: str | None = None, **values: Any) -> str:
        path = tmp_path / f"config_{len(list(tmp_path.glob('config_*')))}.yaml"
        path.write_text(yaml.safe_dump({**QUICK, **values}) if text is None else text)
        return str(path)

    return write


def write_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]
