# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity evaluate sweep`: points, fronts, and a run that is taken up again."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scripts.conftest import write_lines
from tests.scripts.test_partition import SameFirstWord
from trl_diversity import cli
from trl_diversity.evaluation.fronts import mark_dominated


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8))
def test_points_that_are_beaten(values):
    """A point is on the front if no step in one direction is to be had for free."""
    marked = mark_dominated([{"quality": q, "distinct": d} for q, d in values])
    for point in marked:
        better_quality = [p["quality"] for p in marked if p["distinct"] >= point["distinct"]]
        better_distinct = [p["distinct"] for p in marked if p["quality"] >= point["quality"]]
        on_front = max(better_quality) == point["quality"] and max(better_distinct) == point["distinct"]
        assert point["dominated"] is not on_front
    assert any(not point["dominated"] for point in marked)


@pytest.fixture
def models(monkeypatch, working_directory):
    """`hot` answers with as many first words as the temperature says, `cold` always with one."""
    calls = []

    def make_generator(model, *options):
        def draw(prompts, sampling):
            calls.append((model, sampling.temperature))
            words = round(sampling.temperature * 10) if model == "hot" else 1
            return [[f"{chr(97 + i % words)}{' x' * words}" for i in range(4)] for _ in prompts]

        return draw

    monkeypatch.setattr("trl_diversity.evaluation.generation.make_generator", make_generator)
    monkeypatch.setattr("trl_diversity.equivalence.load_equivalence_model", lambda *args, **options: SameFirstWord())
    write_lines(Path("prompts.jsonl"), [{"prompt": "p"}, {"prompt": "q"}])
    return calls


COMMAND = ["evaluate", "sweep", "--prompts", "prompts.jsonl", "--models", "cold", "hot", "--output_dir", "out"]
COMMAND += ["--reward_model", "script_rewards.brevity", "--num_generations", "4"]


def test_points_figure_and_resume(models, capsys):
    cli.main([*COMMAND, "--temperatures", "0.1", "0.2", "0.4", "--json"])
    points = json.loads(capsys.readouterr().out)["points"]
    assert [(point["model"], point["temperature"], point["distinct"]) for point in points] == [
        ("cold", 0.1, 1.0),
        ("cold", 0.2, 1.0),
        ("cold", 0.4, 1.0),
        ("hot", 0.1, 1.0),
        ("hot", 0.2, 2.0),
        ("hot", 0.4, 4.0),
    ]
    assert [point["quality"] for point in points[3:]] == pytest.approx([1 / 4, 1 / 6, 1 / 10])  # 1 / (1 + length)
    assert not any(point["dominated"] for point in points)
    assert Path("out/sweep.png").read_bytes().startswith(b"\x89PNG")
    drawn = len(models)
    cli.main([*COMMAND, "--temperatures", "0.1", "0.2", "0.4", "0.3"])
    assert models[drawn:] == [("cold", 0.3)] * 2 + [("hot", 0.3)] * 2  # prompt by prompt, what is new
    assert "hot    0.3" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="num_generations was 4, is 2"):
        cli.main([*COMMAND, "--num_generations", "2"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--labels", "x"], "give one of the `labels` per model"),
        (["--labels", "x", "x"], "two checkpoints have the same name"),
        (["--temperatures", "0"], "`temperatures` are above 0"),
        (["--prompts", "absent"], "there is no file 'absent'"),
    ],
)
def test_wrong_arguments(models, capsys, argv, message):
    with pytest.raises(SystemExit) as stopped:
        cli.main([*COMMAND, *argv])
    assert stopped.value.code == 2 and message in capsys.readouterr().err
