# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from top to bottom as they are, draw something, and hold no output of a former run."""

import os
import time
from pathlib import Path

import pytest


nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("matplotlib")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 200  # of each; all three have ten minutes


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_form(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= 12
    assert all(not cell.outputs and cell.execution_count is None for cell in code(notebook))
    switches = [cell for cell in code(notebook) if cell.source.startswith("FULL_SIZE = ")]
    assert len(switches) == 1 and switches[0].source.startswith("FULL_SIZE = False")


def test_the_notebooks_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["darl_quickstart", "darling_quickstart", "partition_your_own_data"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path, monkeypatch):
    """In a directory of its own with toy.py beside it, without a network, on a CPU."""
    (tmp_path / "toy.py").write_text((ROOT / "notebooks" / "toy.py").read_text())
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    notebook = nbformat.read(path, as_version=4)
    started = time.perf_counter()
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    seconds = time.perf_counter() - started
    pictures = [output for cell in code(notebook) for output in cell.outputs if "image/png" in output.get("data", {})]
    assert pictures and seconds < SECONDS
    texts = "".join(output.get("text", "") for cell in code(notebook) for output in cell.outputs)
    print(f"\n{path.stem}: {seconds:.0f} s\n{texts}")
    assert CHECKS[path.stem](texts)


def meanings(texts: str, name: str) -> int:
    line = next(line for line in texts.splitlines() if line.startswith(name))
    return int(line.split()[1])


def rise(texts: str) -> float:
    line = next(line for line in texts.splitlines() if line.startswith("darl/reference_prob"))
    first, _, last = line.split()[1:]
    return float(last) - float(first)


CHECKS = {
    "darling_quickstart": lambda texts: meanings(texts, "Darling") >= 3 > meanings(texts, "GRPO"),
    "darl_quickstart": lambda texts: rise(texts) > 0.3,
    "partition_your_own_data": lambda texts: "best threshold" in texts and "cluster 2" in texts,
}
