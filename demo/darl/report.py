# SPDX-License-Identifier: Apache-2.0
"""Print what the demo's runs found."""

import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


LABELS = {
    "reference_prob": "r(y*), malformed count as 0",
    "well_formed_reference_prob": "r(y*), well-formed ones alone",
    "initial_reference_prob": "r(y*) under the policy before training, malformed count as 0",
    "malformed": "malformed fraction",
    "exact_match": "exact match",
    "format_score": "format score",
}
CAPTION = (
    "The first row rises where malformed completions become fewer, whatever they say. The second looks at the others "
    "alone; before training these are few, and the easy ones."
)
SHOWN_QUESTIONS = 6


def print_runs(runs: list[dict[str, Any]]) -> None:
    """Print every measure before training and after it by each recipe: the mean over the seeds, and their range."""
    names = list(dict.fromkeys(run["threshold"] for run in runs))
    seeds = sorted({run["seed"] for run in runs})
    title = f"{runs[0]['questions'].replace('_', '-')} questions, seed{'s' if len(seeds) > 1 else ''} "
    table = Table(title=title + ", ".join(map(str, seeds)), caption=CAPTION)
    for column in ("", "before", *(f"after Darl ({name})" for name in names)):
        table.add_column(column, justify="left" if not column else "right")
    for key, label in LABELS.items():
        cells = [f"{runs[0]['before'][key]:.3f}"]
        for name in names:
            values = [run["after"][key] for run in runs if run["threshold"] == name]
            spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.3f}{spread}")
        table.add_row(label, *cells)
    Console().print(table)


def print_completions(output: Path) -> None:
    """Print one completion of some questions, before and after training."""
    table = Table(title="The first completion drawn, and its r(y*)", show_lines=True)
    for column in ("question (reference)", "before", "after"):
        table.add_column(column)
    before, after = (_first_rows(output / f"completions_{when}.jsonl") for when in ("before", "after"))
    for prompt in list(before)[:SHOWN_QUESTIONS]:
        cells = [
            f"{row['completion'].strip()} ({row['reference_prob']:.2f})" for row in (before[prompt], after[prompt])
        ]
        table.add_row(f"{prompt} ({before[prompt]['reference']})", *cells)
    Console(markup=False).print(table)


def _first_rows(path: Path) -> dict[str, dict[str, Any]]:
    """The first completion of every question."""
    rows: dict[str, dict[str, Any]] = {}
    with open(path, encoding="utf-8") as file:
        for row in map(json.loads, file):
            rows.setdefault(row["prompt"], row)
    return rows
