# SPDX-License-Identifier: Apache-2.0
"""The recipes of classifiers are read without a complaint."""

from pathlib import Path

import pytest

from trl_diversity.scripts.train_classifier import make_parser


RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes" / "classifier").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_read_and_its_header_names_its_command(recipe):
    (args,) = make_parser().parse_args_and_config(["--config", str(recipe)])
    assert args.kind in recipe.read_text()
    assert f"--config recipes/classifier/{recipe.name}" in recipe.read_text()


def test_an_unknown_key_is_an_error_that_names_the_nearest(tmp_path, capsys):
    path = tmp_path / "r.yaml"
    path.write_text("data: x\noutput_dir: y\nmax_side_token: 3\n")
    with pytest.raises(SystemExit):
        make_parser().parse_args_and_config(["--config", str(path)])
    assert "max_side_tokens" in capsys.readouterr().err
