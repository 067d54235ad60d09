# SPDX-License-Identifier: Apache-2.0
"""The README.md beside a trained classifier: what it is, how it was trained, and what it scored."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


_TAGS = """---
library_name: trl-diversity
pipeline_tag: text-classification
tags:
- trl-diversity
- text-similarity
- equivalence
---
"""


def write_model_card(
    directory: str | Path,
    title: str,
    description: str,
    command: str,
    settings: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, float]],
    calibration: Mapping[str, Any],
) -> None:
    """
    Write README.md.

    Args:
        directory (`str` or `pathlib.Path`):
            Of the checkpoint.
        title (`str`):
            Name of the model.
        description (`str`):
            What it is and what its scores were measured on.
        command (`str`):
            The command that trained it.
        settings (`Mapping`):
            All that the result depends on, the seed included.
        scores (`Mapping`):
            For each set of pairs its metrics, each in `[0, 1]`.
        calibration (`Mapping`):
            `threshold` and `temperature`, and how they were chosen.
    """
    lines = [
        _TAGS,
        f"# {title}\n",
        description.strip() + "\n",
        "Load it with `trl_diversity.equivalence.load_equivalence_model(path)`, or name it as `partition_model`.\n",
        "## Calibration\n",
        *_table(("what", "value"), calibration.items()),
        "",
        "## Scores\n",
        *_scores(scores),
        "",
        "## Training\n",
        f"```\n{command.strip()}\n```\n",
        *_table(("setting", "value"), settings.items()),
    ]
    Path(directory, "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _scores(scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not scores:
        return ["None were measured."]
    names = list(next(iter(scores.values())))
    rows = [(what, *(f"{values[name]:.3f}" for name in names)) for what, values in scores.items()]
    return _table(("pairs", *names), rows)


def _table(header: Sequence[str], rows: Any) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value).replace("|", "\\|").replace("\n", " ")
