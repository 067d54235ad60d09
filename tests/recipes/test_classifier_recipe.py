# SPDX-License-Identifier: Apache-2.0
"""Recipes of classifiers parse as strictly as those of policies."""

from pathlib import Path

import pytest
import yaml

from trl_diversity.scripts.recipe_header import launch_commands
from trl_diversity.scripts.train_classifier import make_parser


ROOT = Path(__file__).resolve().parents[2]
PATHS = sorted((ROOT / "recipes" / "classifier").glob("*.yaml"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_header_names_its_command(path):
    (command,) = (command for command in launch_commands(path) if "train-classifier" in command.words)
    assert command.words[-1] == f"recipes/classifier/{path.name}"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_parses(path, tmp_path, monkeypatch, capsys):
    """The data that it names is not shipped: an empty file stands for it."""
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load(path.read_text())
    for value in values.values():
        if isinstance(value, str) and value.endswith(".jsonl"):
            (tmp_path / value).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / value).touch()
    (args,) = make_parser().parse_args_and_config(["--config", str(path)])
    assert all(str(getattr(args, key)) == str(value) for key, value in values.items())
    misspelt = tmp_path / "misspelt.yaml"
    misspelt.write_text(path.read_text() + "base_modle: x\n")
    with pytest.raises(SystemExit):
        make_parser().parse_args_and_config(["--config", str(misspelt)])
    error = capsys.readouterr().err
    assert "unknown key `base_modle`" in error and "base_model" in error.replace("base_modle", "")
