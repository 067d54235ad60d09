# SPDX-License-Identifier: Apache-2.0
"""Writes bench.md and bench.json."""

import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.timing import FLOOR, PEER, PRODUCT, Row


PACKAGES = ("torch", "transformers", "sentence-transformers", "trl", "accelerate")
REPORT_FILE, DATA_FILE = "bench.md", "bench.json"
_NOTE = """Ratios are medians over rounds in which all ways ran once each.
**Peer**: the plain way, written here from its description (one pair a call and all pairs; text edited and tokenised
anew and two full passes), where the case names no other. **Floor**: one forward pass over exactly the tokens that must
be read, without padding, on the same cores; a share above 1 means that less was computed than that."""


def write_report(rows: Sequence[Row], output: Path, command: str) -> Path:
    """
    Write both files and return the path of the table.

    Topics of an earlier run in the folder stay if they were not timed this time, under the command that timed them.
    """
    output.mkdir(parents=True, exist_ok=True)
    timed = {row.topic for row in rows}
    runs = [*_other_topics(output / DATA_FILE, timed)]
    runs.append({"command": command, "machine": machine_facts(), "rows": [asdict(row) for row in rows]})
    (output / DATA_FILE).write_text(json.dumps({"runs": runs}, indent=2) + "\n", encoding="utf-8")
    lines = ["# Speed", "", _NOTE, ""]
    for run in runs:
        described = ", ".join(f"{name} {value}" for name, value in run["machine"].items())
        lines += [f"`{run['command']}`: {described}.", ""]
        kept = [Row(**row) for row in run["rows"]]
        for topic in dict.fromkeys(row.topic for row in kept):
            lines += [
                f"## {topic[0].upper()}{topic[1:]}",
                "",
                *_table([row for row in kept if row.topic == topic]),
                "",
            ]
    if not any(run["machine"]["cuda"] for run in runs):
        lines += ["## On a GPU", "", "Not measured: this machine has none.", ""]
    path = output / REPORT_FILE
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _other_topics(path: Path, timed: set[str]) -> Iterator[dict[str, Any]]:
    """What earlier runs have of other topics."""
    if not path.exists():
        return
    for run in json.loads(path.read_text(encoding="utf-8"))["runs"]:
        if rows := [row for row in run["rows"] if row["topic"] not in timed]:
            yield {**run, "rows": rows}


def machine_facts() -> dict[str, Any]:
    """What the figures depend on."""
    import torch

    return {
        "date": date.today().isoformat(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _table(rows: Sequence[Row]) -> list[str]:
    lines = ["| case | ours | peer | floor | times as fast | share of floor | more |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        seconds = [_duration(row.seconds.get(way)) for way in (PRODUCT, PEER, FLOOR)]
        ratios = ["" if ratio is None else f"{ratio:.2f}" for ratio in (row.speedup, row.floor_share)]
        more = ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in row.figures.items())
        lines.append(f"| {' | '.join([row.case, *seconds, *ratios, more])} |")
    return lines


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{1000 * seconds:.2f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name}: {part}" for name, part in value.items()) + ")"
    return f"{value:.2g}" if isinstance(value, float) and value < 0.001 else str(value)
