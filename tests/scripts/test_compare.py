# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity compare`: completions of several checkpoints, one colour for one meaning across all of them."""

from pathlib import Path

import pytest

from tests.scripts.conftest import write_lines
from tests.scripts.test_explain import Page
from tests.scripts.test_partition import SameFirstWord
from trl_diversity import cli


ANSWERS = {"old": ["a cat", "a dog", "a cow"], "new": ["a bee", "blue whale", "big bird"]}


@pytest.fixture
def models(monkeypatch):
    """Checkpoints that answer from a list; texts with the same first word mean the same."""
    calls = []

    def make_generator(model, *options):
        def draw(prompts, sampling):
            calls.append((model, list(prompts), sampling))
            return [(ANSWERS[model] * 2)[: sampling.num_generations] for _ in prompts]

        return draw

    monkeypatch.setattr("trl_diversity.evaluation.generation.make_generator", make_generator)
    monkeypatch.setattr("trl_diversity.equivalence.load_equivalence_model", lambda *args, **options: SameFirstWord())
    return calls


def test_side_by_side(models, capsys, tmp_path):
    page_file = tmp_path / "page.html"
    command = [
        "compare",
        "--prompt",
        "Name <an> animal.",
        "--models",
        "old",
        "new",
        "-n",
        "3",
        "--html",
        str(page_file),
    ]
    cli.main(command)
    shown = capsys.readouterr().out
    assert "old: 1 of 3 distinct" in shown and "new: 3 of 3 distinct" in shown and "6 completions, 3 clusters" in shown
    assert models[0][1] == ["Name <an> animal."] and models[0][2].num_generations == 3
    page = Page(page_file.read_text())
    assert [cell for cell, _ in page.cells] == [
        "[0] a cat",
        "[0] a bee",
        "[0] a dog",
        "[1] blue whale",
        "[0] a cow",
        "[2] big bird",
    ]
    style = dict(page.cells)
    assert style["[0] a cat"] == style["[0] a bee"]  # the same meaning from both models
    assert len({style["[0] a bee"], style["[1] blue whale"], style["[2] big bird"]}) == 3
    assert "an" not in page.tags and "Name &lt;an&gt; animal." in page_file.read_text()


def test_several_prompts_and_a_system_message(models, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(Path("prompts.jsonl"), [{"prompt": "second"}, {"prompt": [{"role": "user", "content": "third"}]}])
    cli.main(
        [
            "compare",
            "--prompt",
            "first",
            "--prompts",
            "prompts.jsonl",
            "--models",
            "old",
            "--system_prompt",
            "Be brief.",
        ]
    )
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("first", "second", "third"))
    prompts = models[0][1]
    assert [prompt[0]["content"] for prompt in prompts] == ["Be brief."] * 3
    assert [prompt[1]["content"] for prompt in prompts] == ["first", "second", "third"]
    assert models[0][2].num_generations == 4


def test_tiny_checkpoints(causal_lm_path, qwen2_path, sentence_transformer_path, capsys):
    cli.main(
        ["compare", "--prompt", "hello", "--models", causal_lm_path, qwen2_path, "-n", "2", "--max_tokens", "4"]
        + ["--device", "cpu", "--partition_model", sentence_transformer_path]
    )
    assert "4 completions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--models", "a"], "give a `prompt`"),
        (["--models", "a", "a", "--prompt", "p"], "named twice"),
        (["--models", "a", "--prompts", "absent"], "there is no file 'absent'"),
        (["--prompt", "p"], "required: --models"),
    ],
)
def test_wrong_arguments(capsys, argv, message):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["compare", *argv])
    assert stopped.value.code == 2 and message in capsys.readouterr().err
