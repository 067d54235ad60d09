# SPDX-License-Identifier: Apache-2.0
"""The table as Markdown, what it shows in words, and its figure."""

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from demo.table1.measure import MEASURES
from demo.table1.statistics import difference, interval


DIGITS = {"quality": 3, "clusters": 2, "clusters_held_out": 2, "distinct4": 1, "utility": 2}
PACKAGES = ("trl", "transformers", "torch", "peft", "sentence-transformers")


def write_report(
    results: list[dict[str, Any]], target: Path, command: str, power: dict[str, Any] | None, quick: bool
) -> Path:
    """
    Write table1.md and table1.png.

    Args:
        results (`list[dict]`):
            Results of all runs, as `complete_run` gives them.
        target (`pathlib.Path`):
            Directory to write to.
        command (`str`):
            The command that makes them.
        power (`dict`, *optional*):
            Detectable differences by measure, from the pilot.
        quick (`bool`):
            Whether this only checks that everything runs.

    Returns:
        `pathlib.Path`: table1.md.
    """
    target.mkdir(parents=True, exist_ok=True)
    arms = _by_arm(results)
    seeds = sorted({result["seed"] for result in results})
    prompts = len(results[0]["per_prompt"]["quality"])
    seconds = sum(sum(result["seconds"].values()) for result in results)
    lines = ["# Table 1 in the small", ""]
    if quick:
        lines += ["**A check that everything runs. Its figures mean nothing.**", ""]
    lines += [
        f"SmolLM2-135M-Instruct, warmed up on short answers; LoRA; {prompts} held-out prompts, answers in groups of "
        f"10; training seeds {', '.join(map(str, seeds))}. Mean and 95 % bootstrap interval over seeds and prompts.",
        "",
        "| | " + " | ".join(MEASURES.values()) + " |",
        "|---" * (len(MEASURES) + 1) + "|",
    ]
    for name, values in arms.items():
        lines.append(f"| {name} | " + " | ".join(_cell(values[key], key) for key in MEASURES) + " |")
    lines += ["", "![quality against clusters](table1.png)", "", *_conclusions(arms), "", *_power_text(power), ""]
    lines += [
        "## How it was made",
        "",
        f"- `{command}`",
        f"- {seconds / 60:.0f} minutes of runs on {platform.machine()}, {_processor_count()} CPU cores",
        "- " + ", ".join(f"{package} {version(package)}" for package in PACKAGES),
        f"- fingerprints of recipe, options, prompts, sizes and policy: {_fingerprints(results)}",
        "",
    ]
    path = target / "table1.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    draw(arms, target / "table1.png")
    return path


def _by_arm(results: list[dict[str, Any]]) -> dict[str, dict[str, list[list[float]]]]:
    """For every arm and measure a table (seeds, prompts), seeds in order."""
    arms: dict[str, dict[str, list[list[float]]]] = {}
    for result in sorted(results, key=lambda result: result["seed"]):
        values = arms.setdefault(result["arm"], {name: [] for name in MEASURES})
        for name in MEASURES:
            values[name].append(result["per_prompt"][name])
    order = list(dict.fromkeys(result["arm"] for result in results))
    return {name: arms[name] for name in order}


def _cell(values: list[list[float]], key: str) -> str:
    low, high = interval(values)
    digits = DIGITS[key]
    return f"{np.mean(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _conclusions(arms: dict[str, dict[str, list[list[float]]]]) -> list[str]:
    """What was expected, and whether the intervals of the differences confirm it."""
    lines = [
        "## Differences",
        "",
        "| | quality | clusters of 10 | clusters of 10, held-out model |",
        "|---|---|---|---|",
    ]
    pairs = (
        ("GRPO, without std", "base"),
        ("GRPO, with std", "base"),
        ("Darling (partition)", "base"),
        ("Darling (partition)", "GRPO, without std"),
        ("Darling (partition)", "DivPO"),
        ("Darling (partition)", "Darling (4-gram)"),
    )
    for first, second in pairs:
        if first in arms and second in arms:
            cells = []
            for key in ("quality", "clusters", "clusters_held_out"):
                mean, low, high = difference(arms[first][key], arms[second][key])
                verdict = "higher" if low > 0 else "lower" if high < 0 else "undecided"
                cells.append(f"{mean:+.3f} [{low:+.3f}, {high:+.3f}] {verdict}")
            lines.append(f"| {first} against {second} | " + " | ".join(cells) + " |")
    return lines + [
        "",
        "Expected: GRPO loses clusters against base; Darling keeps or raises them, at a quality not below GRPO's. "
        f"{_verdicts(arms)} What the table shows holds for a small policy, a reward by rules and embeddings, 12 "
        "steps, and short answers to simple questions. It does not show what happens to an 8B model over thousands of "
        "steps, and the first clusters are those that Darling is trained on: where the held-out model disagrees, "
        "believe that one. Three seeds show little of the spread between seeds, so the intervals are rather too "
        "narrow, and nothing is corrected for the number of comparisons.",
    ]


def _verdicts(arms: dict[str, dict[str, list[list[float]]]]) -> str:
    """Whether the intervals confirm or refute what was expected, claim by claim."""
    claims = (
        ("GRPO (without std) loses clusters", "base", "GRPO, without std", "clusters", True),
        ("Darling keeps or raises clusters", "Darling (partition)", "base", "clusters", False),
        ("by the held-out model too", "Darling (partition)", "base", "clusters_held_out", False),
        ("its quality is not below GRPO's", "Darling (partition)", "GRPO, without std", "quality", False),
    )
    parts = []
    for claim, first, second, key, is_strict in claims:
        if first not in arms or second not in arms:
            continue
        _, low, high = difference(arms[first][key], arms[second][key])
        if high < 0:
            verdict = "refuted"
        elif low > 0 or (low >= 0 and not is_strict):
            verdict = "confirmed"
        else:
            verdict = f"undecided, the interval of the difference reaches from {low:+.3f} to {high:+.3f}"
        parts.append(f"{claim}: {verdict}")
    return "; ".join(parts) + "." if parts else ""


def _power_text(power: dict[str, Any] | None) -> list[str]:
    lines = ["## What this experiment can detect", ""]
    if power is None:
        return [*lines, "No pilot was run (`--pilot`)."]
    lines += [
        f"From a pilot ({power['arms']}, seeds {power['pilot_seeds']}, {power['pilot_prompts']} development prompts): "
        f"with {power['seeds']} seeds and {power['prompts']} prompts, a difference of this size between two arms is "
        "found with a chance of 80 % at a level of 5 %. Two pilot seeds tell the spread between seeds only roughly.",
        "",
        "| measure | detectable difference | sd between seeds | between prompts | residual |",
        "|---|---|---|---|---|",
    ]
    for name, values in power["measures"].items():
        parts = (values[key] for key in ("difference", "seed_sd", "prompt_sd", "residual_sd"))
        lines.append(f"| {MEASURES[name]} | " + " | ".join(f"{value:.3f}" for value in parts) + " |")
    return lines


def _fingerprints(results: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(f"{result['folder']} {result['fingerprint']}" for result in results))


def _processor_count() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def draw(arms: dict[str, dict[str, list[list[float]]]], path: Path) -> None:
    """Quality against clusters, one point with its intervals for each arm, by both partition models."""
    from trl_diversity.evaluation.plots import new_figure

    figure = new_figure(11, 4.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key in zip(panels, ("clusters", "clusters_held_out"), strict=True):
        for number, (name, values) in enumerate(arms.items()):
            x, y = float(np.mean(values[key])), float(np.mean(values["quality"]))
            (x_low, x_high), (y_low, y_high) = interval(values[key]), interval(values["quality"])
            axes.errorbar(
                x,
                y,
                xerr=[[x - x_low], [x_high - x]],
                yerr=[[y - y_low], [y_high - y]],
                fmt="os^Dvp*"[number % 7],
                color=f"C{number}",
                markersize=8,
                elinewidth=1,
                capsize=3,
                alpha=0.9,
                label=name,
            )
        axes.set_xlabel(MEASURES[key])
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(MEASURES["quality"])
    panels[0].set_title("default model, which Darling is trained on")
    panels[1].set_title("a model that no arm is trained on")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)
