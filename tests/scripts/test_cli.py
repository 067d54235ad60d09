# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity COMMAND`: the table of commands, and what is imported for them."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from trl_diversity import __version__, cli


ROOT = Path(__file__).resolve().parents[2]


def test_help_and_version_import_nothing_heavy():
    code = (
        "import sys; from trl_diversity.cli import main; main(['--help']); main(['--version']); "
        "print(sorted({'torch', 'transformers', 'datasets', 'trl'} & set(sys.modules)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    for command in cli.COMMANDS:
        assert f"  {command.name}" in finished.stdout and command.help in finished.stdout
    assert f"trl-diversity {__version__}\n[]" in finished.stdout


def test_a_broken_file_is_refused_before_anything_heavy_is_imported(tmp_path):
    """So is the file's `env` exported: Hugging Face libraries read some variables when they are imported."""
    path = tmp_path / "recipe.yaml"
    path.write_text("env: {HF_HUB_OFFLINE: 1}\nbeta: 0\nbeta: 1\n")
    code = (
        "import sys; from trl_diversity.cli import main\n"
        "try: main(['darling', '--config', sys.argv[1]])\n"
        "except SystemExit as stopped: print(stopped.code, 'torch' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert finished.stdout == "2 False\n"
    assert "the key `beta` was given in line 2 already" in finished.stderr and "Traceback" not in finished.stderr


def test_no_arguments_show_the_help(capsys):
    cli.main([])
    assert "commands:" in capsys.readouterr().out


def test_unknown_command_suggests_the_nearest(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["darlin", "--config", "x.yaml"])
    assert stopped.value.code == 2
    assert "no command 'darlin'; the nearest is `darling`" in capsys.readouterr().err


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_help_of_every_command(command, capsys):
    """An unescaped percent sign in a help text would break this."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([command.name, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: trl-diversity {command.name} ") and "--config" in shown


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_commands_are_run_with_the_rest_of_the_line(command, monkeypatch):
    calls = []
    module = import_module(f"trl_diversity.scripts.{command.module}")
    monkeypatch.setattr(module, "run", lambda argv, prog: calls.append((argv, prog)))
    cli.main([command.name, "--config", "x.yaml", "--seed=3"])
    monkeypatch.setattr(sys, "argv", ["trl-diversity", command.name])
    cli.main()
    prog = f"trl-diversity {command.name}"
    assert calls == [(["--config", "x.yaml", "--seed=3"], prog), ([], prog)]
