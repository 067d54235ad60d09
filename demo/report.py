# SPDX-License-Identifier: Apache-2.0
"""Print what the demo's runs found."""

import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


MEASURES = (
    ("quality", "quality (0 to 1)", 2),
    ("clusters", "clusters among 8", 1),
    ("distinct4", "Distinct-4 (0 to 1)", 2),
)
SHOWN_PROMPTS = 3


def print_run(metrics: dict[str, Any]) -> None:
    """Print the table of one run: every measure before and after training."""
    table = Table(title=f"{metrics['method']} on {metrics['prompts'].replace('_', '-')} prompts")
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    for key, label, digits in MEASURES:
        table.add_row(label, *(f"{metrics[when][key]:.{digits}f}" for when in ("before", "after")))
    Console().print(table)


def print_comparison(runs: list[dict[str, Any]]) -> None:
    """Print every measure before training and after it by each method: the mean over the seeds and their range."""
    methods = list(dict.fromkeys(run["method"] for run in runs))
    seeds = sorted({run["seed"] for run in runs})
    table = Table(title=f"{runs[0]['prompts'].replace('_', '-')} prompts, seeds {', '.join(map(str, seeds))}")
    for column in ("", "before", *(f"after {method}" for method in methods)):
        table.add_column(column, justify="left" if not column else "right")
    for key, label, digits in MEASURES:
        cells = [f"{runs[0]['before'][key]:.{digits}f}"]
        for method in methods:
            values = [run["after"][key] for run in runs if run["method"] == method]
            spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.{digits}f}{spread}")
        table.add_row(label, *cells)
    Console().print(table)


def print_answers(output: Path) -> None:
    """Print eight answers to each of some prompts, before and after training; each cluster of equal meaning once."""
    before, after = (_first_groups(output / f"completions_{when}.jsonl") for when in ("before", "after"))
    for prompt in list(before)[:SHOWN_PROMPTS]:
        table = Table(title=prompt)
        for when, rows in (("before", before[prompt]), ("after", after[prompt])):
            table.add_column(f"{when}: {len({row['cluster'] for row in rows})} clusters")
        table.add_row(*("\n".join(_by_cluster(rows[prompt])) for rows in (before, after)))
        Console().print(table)


def _first_groups(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of the first group of every prompt."""
    groups: dict[str, dict[int, list[dict[str, Any]]]] = {}
    with open(path, encoding="utf-8") as file:
        for row in map(json.loads, file):
            groups.setdefault(row["prompt"], {}).setdefault(row["group"], []).append(row)
    return {prompt: next(iter(rows.values())) for prompt, rows in groups.items()}


def _by_cluster(rows: list[dict[str, Any]]) -> list[str]:
    """One line per cluster, the largest first: how often, and its first answer."""
    clusters: dict[int, list[str]] = {}
    for row in rows:
        clusters.setdefault(row["cluster"], []).append(row["completion"].strip() or "(nothing)")
    return [f"{len(texts)} x {texts[0]}" for texts in sorted(clusters.values(), key=len, reverse=True)]
