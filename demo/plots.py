# SPDX-License-Identifier: Apache-2.0
"""Draw quality, diversity and clusters over the training steps."""

from pathlib import Path
from typing import Any


PANELS = (("quality", "quality (0 to 1)"), ("diversity", "diversity (0 to 1)"), ("clusters", "clusters among 8"))
WINDOW = 6  # steps in the moving average: one pass over the training prompts, which differ more than the steps


def draw_curves(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """
    Draw one colour per method in three panels: quality, diversity, clusters.

    Dots are the training steps, lines their moving average; diamonds, joined by a dashed line, are the evaluation
    prompts before and after training.

    Args:
        runs (`dict[str, dict[str, Any]]`):
            For every method the metrics of a run: `before`, `after` and `curve`, all with the keys of the panels.
        path (`pathlib.Path`):
            The PNG file that is written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(PANELS))
    for axes, (key, label) in zip(panels, PANELS, strict=True):
        for index, (name, run) in enumerate(runs.items()):
            color = f"C{index}"
            steps = [point["step"] for point in run["curve"]]
            values = [point[key] for point in run["curve"]]
            axes.plot(steps, values, ".", color=color, alpha=0.3)
            axes.plot(steps, moving_average(values, WINDOW), color=color, label=f"{name}, training prompts")
            ends = [run["before"][key], run["after"][key]]
            axes.plot(
                [0, steps[-1]],
                ends,
                "D--",
                color=color,
                alpha=0.8,
                label=f"{name}, {run['prompts'].replace('_', '-')} prompts",
            )
        axes.set_title(label)
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2 * len(runs))
    figure.savefig(path, dpi=120)


def moving_average(values: list[float], window: int) -> list[float]:
    """Mean of each value and up to `window - 1` values before it."""
    spans = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(span) / len(span) for span in spans]
