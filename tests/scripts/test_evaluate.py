# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity evaluate`: the table of benchmarks."""

import pytest

from trl_diversity import cli
from trl_diversity.scripts.evaluate import BENCHMARKS


@pytest.mark.parametrize("command", BENCHMARKS, ids=lambda command: command.name)
def test_help_of_every_benchmark(command, capsys):
    """An unescaped percent sign in a help text would break this."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["evaluate", command.name, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: trl-diversity evaluate {command.name} ") and "--config" in shown


def test_help_names_every_benchmark(capsys):
    cli.main(["evaluate"])
    shown = capsys.readouterr().out
    assert all(f"  {command.name} " in shown and command.help in shown for command in BENCHMARKS)


def test_unknown_benchmark_suggests_the_nearest(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["evaluate", "pass@k"])
    assert stopped.value.code == 2
    assert "trl-diversity evaluate: error: there is no command 'pass@k'; the nearest is `pass-at-k`" in (
        capsys.readouterr().err
    )


def test_options_may_come_from_a_file(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"partition": [0, 0, 1]}\n')
    (tmp_path / "options.yaml").write_text(f"input: {tmp_path / 'rows.jsonl'}\njson: true\n")
    cli.main(["evaluate", "noveltybench", "--config", str(tmp_path / "options.yaml")])
    assert '"mean_distinct": 2.0' in capsys.readouterr().out
    (tmp_path / "options.yaml").write_text("inputs: x\n")
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "noveltybench", "--config", str(tmp_path / "options.yaml")])
    assert "unknown key `inputs`. The nearest is `input`" in capsys.readouterr().err
