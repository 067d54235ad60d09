# SPDX-License-Identifier: Apache-2.0
"""Figures of the evaluations. matplotlib is imported when one is drawn, without a screen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def new_figure(width: float, height: float) -> Any:
    """An empty figure that touches no state of pyplot."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'trl-diversity[eval]'") from error

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_pass_at_k(results: dict[str, dict[str, Any]], path: str | Path) -> None:
    """
    Draw pass@k over k: a panel for each benchmark and one for their mean (arXiv 2509.02534, figure 6).

    Args:
        results (`dict[str, dict]`):
            For every label what `trl-diversity evaluate pass-at-k --json` prints.
        path (`str` or `pathlib.Path`):
            The PNG file that is written.
    """
    names = list(dict.fromkeys(name for result in results.values() for name in result["benchmarks"]))
    panels = [*names, "mean"] if len(names) > 1 else names
    figure = new_figure(3.4 * len(panels), 3.4)
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, name in zip(all_axes, panels, strict=True):
        for number, (label, result) in enumerate(results.items()):
            _draw_curve(axes, result, name, f"C{number}", label)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title("mean of the benchmarks" if name == "mean" and len(names) > 1 else name)
        axes.set_xlabel("k (samples)")
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("pass@k")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(results)))
    figure.savefig(path, dpi=120)


def _draw_curve(axes: Any, result: dict[str, Any], name: str, color: str, label: str) -> None:
    if name == "mean":
        curve = {int(k): value for k, value in result["mean"].items()}
        axes.plot(list(curve), list(curve.values()), "o-", color=color, label=label)
        return
    if name not in result["benchmarks"]:
        return
    points = {int(k): point for k, point in result["benchmarks"][name]["pass_at_k"].items()}
    axes.plot(list(points), [point["value"] for point in points.values()], "o-", color=color, label=label)
    low, high = zip(*(point["ci"] for point in points.values()), strict=True)
    axes.fill_between(list(points), low, high, color=color, alpha=0.15, linewidth=0)


def draw_fronts(points: Sequence[dict[str, Any]], path: str | Path, quality_label: str = "quality") -> None:
    """
    Draw quality against diversity, a line for each checkpoint over its temperatures (arXiv 2509.02534, figure 3).

    Filled markers are points that no other point beats in both, open ones are dominated.

    Args:
        points (`Sequence[dict]`):
            Each with `model`, `temperature`, `quality`, `distinct` and `dominated`.
        path (`str` or `pathlib.Path`):
            The PNG file that is written.
        quality_label (`str`, *optional*, defaults to `"quality"`):
            Name of the vertical axis.
    """
    figure = new_figure(6.5, 4.8)
    axes = figure.subplots()
    for number, model in enumerate(dict.fromkeys(point["model"] for point in points)):
        own = sorted((point for point in points if point["model"] == model), key=lambda point: point["temperature"])
        color = f"C{number}"
        axes.plot([p["distinct"] for p in own], [p["quality"] for p in own], "-", color=color, alpha=0.5)
        for point in own:
            face = "white" if point["dominated"] else color
            axes.plot(point["distinct"], point["quality"], "o", color=color, markerfacecolor=face, markersize=7)
            axes.annotate(
                f"T={point['temperature']:g}",
                (point["distinct"], point["quality"]),
                textcoords="offset points",
                xytext=(6, 5),
                fontsize=8,
            )
        axes.plot([], [], "o-", color=color, label=model)
    axes.plot([], [], "o", color="gray", markerfacecolor="white", label="dominated")
    axes.set_xlabel("distinct clusters per prompt")
    axes.set_ylabel(quality_label)
    axes.margins(0.1)
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)


def draw_win_rates(rates: dict[str, dict[str, float]], path: str | Path, first: str, second: str) -> None:
    """
    Draw one bar for each criterion: how often the first model wins (arXiv 2509.02534, figure 4).

    Args:
        rates (`dict[str, dict]`):
            `win_rate` in `[0, 1]` and `pairs` by criterion.
        path (`str` or `pathlib.Path`):
            The PNG file that is written.
        first (`str`), second (`str`):
            Names of the models.
    """
    ordered = sorted(rates.items(), key=lambda item: item[1]["win_rate"])
    figure = new_figure(8, 1.4 + 0.3 * len(ordered))
    axes = figure.subplots()
    values = [100 * rate["win_rate"] for _, rate in ordered]
    axes.barh([name for name, _ in ordered], values, color=["C0" if value >= 50 else "C1" for value in values])
    axes.axvline(50, color="black", linewidth=1)
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"{first} wins against {second} (%, ties count half)")
    axes.set_ylabel("criterion")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)
