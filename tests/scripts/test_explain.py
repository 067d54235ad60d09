# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity explain`: a step that training wrote, group by group, in the terminal and as HTML."""

from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from tests.scripts.test_partition import SameFirstWord
from trl_diversity import cli


def write_table(path: Path, step: int, **columns) -> None:
    base = {
        "step": [step] * 4,
        "prompt": ["Name <b>one</b>."] * 2 + [[{"role": "user", "content": "Name two."}]] * 2,
        "completion": ["a cat", "a dog", [{"role": "assistant", "content": "<script>x</script>"}], "c" * 400],
        "relevance": [1.0, 0.5, 0.25, None],
        "darling": [0.0, 0.0, 0.25, 0.125],
        "quality": [1.0, 0.5, 0.25, 0.125],
        "diversity": [0.0, 0.0, 1.0, 1.0],
        "cluster": [0, 0, 0, 1],
        "advantage": [0.5, -0.5, 0.0, 0.0],
    }
    base["prompt"] = [str(value) if isinstance(value, str) else value for value in base["prompt"]]
    table = pd.DataFrame({**base, **columns})
    # As TRL writes them, a column has one type
    as_chat = lambda value, role: [{"role": role, "content": value}] if isinstance(value, str) else value  # noqa: E731
    table["prompt"] = [as_chat(value, "user") for value in table["prompt"]]
    table["completion"] = [as_chat(value, "assistant") for value in table["completion"]]
    path.parent.mkdir(exist_ok=True, parents=True)
    table.to_parquet(path)


class Page(HTMLParser):
    """Texts of the cells, and their backgrounds."""

    def __init__(self, text: str):
        super().__init__()
        self.cells: list[tuple[str, str]] = []
        self.tags: set[str] = set()
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.in_cell = tag == "td"
        if self.in_cell:
            self.cells.append(("", dict(attrs).get("style") or ""))

    def handle_data(self, data):
        if self.in_cell:
            text, style = self.cells[-1]
            self.cells[-1] = (text + data, style)

    def handle_endtag(self, tag):
        self.in_cell = False


def test_groups_of_a_step(tmp_path, capsys):
    write_table(tmp_path / "completions.parquet", 3)
    cli.main(["explain", str(tmp_path / "completions.parquet"), "--step", "3", "--html", str(tmp_path / "page.html")])
    shown = capsys.readouterr().out
    assert "step 3: 4 completions" in shown
    assert "group 1: 2 completions, 1 clusters" in shown and "group 2: 2 completions, 2 clusters" in shown
    assert shown.index("cluster") < shown.index("quality") < shown.index("relevance")
    assert "[... 400" in shown
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert "script" not in page.tags and "b" not in page.tags and "<b>one</b>" not in text
    cells = [cell for cell, _ in page.cells]
    assert "<script>x</script>" in cells and "c" * 400 in cells  # in full, and as text
    style = {cell: style for cell, style in page.cells}
    assert style["a cat"] == style["a dog"] != style["c" * 400] and "background" in style["a cat"]
    assert "1.000" in cells and "0.125" in cells and "nan" not in text.lower()


def test_directory_with_a_file_per_step(tmp_path, capsys):
    for step in (1, 12):
        write_table(tmp_path / "completions" / f"completions_{step:05d}.parquet", step)
    cli.main(["explain", "--input", str(tmp_path)])
    assert "step 12: 4" in capsys.readouterr().out
    cli.main(["explain", str(tmp_path / "completions"), "--step", "1", "--groups", "1"])
    shown = capsys.readouterr().out
    assert "step 1: 4" in shown and "group 2" not in shown
    with pytest.raises(SystemExit, match="has no step 7; it has 1, 12"):
        cli.main(["explain", str(tmp_path), "--step", "7"])


def test_pair_scores(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trl_diversity.equivalence.load_equivalence_model", lambda *args, **options: SameFirstWord())
    write_table(tmp_path / "t.parquet", 0)
    cli.main(["explain", str(tmp_path / "t.parquet"), "--model", "fake", "--html", str(tmp_path / "page.html")])
    shown = capsys.readouterr().out
    assert "P(same)" in shown and "Pairs above 0.5 are equivalent to SameFirstWord" in shown
    cells = [cell for cell, _ in Page((tmp_path / "page.html").read_text()).cells]
    assert cells.count("1.00") == 1 and cells.count("0.00") == 1  # one pair of each group


def test_same_prompt_in_two_groups_needs_the_size(tmp_path, capsys):
    write_table(tmp_path / "t.parquet", 0, prompt=["p"] * 4)
    cli.main(["explain", str(tmp_path / "t.parquet")])
    assert "group 1: 4 completions" in capsys.readouterr().out
    cli.main(["explain", str(tmp_path / "t.parquet"), "--group_size", "2"])
    assert "group 2: 2 completions" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no whole groups of 3"):
        cli.main(["explain", str(tmp_path / "t.parquet"), "--group_size", "3"])


def test_a_table_that_training_wrote(tmp_path, causal_lm_path, capsys):
    from tests.trainers.test_completions_table import make

    trainer = make(tmp_path, causal_lm_path, max_steps=1)
    trainer.train()
    cli.main(["explain", str(tmp_path), "--step", "1"])
    shown = capsys.readouterr().out
    table = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    for group in range(table["prompt"].nunique()):
        assert f"group {group + 1}: 4 completions" in shown
    assert f"{table['darling'].iloc[0]:.3f}" in shown


def test_what_is_no_table(tmp_path, capsys):
    (tmp_path / "x.parquet").write_text("text")
    with pytest.raises(SystemExit, match="x.parquet is no parquet file"):
        cli.main(["explain", str(tmp_path / "x.parquet")])
    pd.DataFrame({"step": [1]}).to_parquet(tmp_path / "y.parquet")
    with pytest.raises(SystemExit, match="no completions table: the column 'prompt' is missing"):
        cli.main(["explain", str(tmp_path / "y.parquet")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="has no completions table"):
        cli.main(["explain", str(tmp_path / "empty")])
    with pytest.raises(SystemExit) as stopped:
        cli.main(["explain", str(tmp_path / "absent")])
    assert stopped.value.code == 2 and "there is no file or directory" in capsys.readouterr().err
