# SPDX-License-Identifier: Apache-2.0
"""Draw what the trainer logged over the training steps."""

from pathlib import Path

from demo.plots import moving_average


WINDOW = 3  # steps in the moving average: the questions of one step are easier than those of another
STYLES = ("-", "--")  # lines that coincide are both seen
# Name of a curve -> key that the trainer logs, title of the panel
CURVES = {
    "reference_prob": ("darl/reference_prob", "r(y*), well-formed completions"),
    "answer_prob": ("darl/answer_prob", "r(y), well-formed completions"),
    "malformed": ("darl/malformed_fraction", "malformed completions (0 to 1)"),
    "entropy": ("entropy", "policy entropy (nats per token)"),
    "bonus_fraction": ("darl/bonus_fraction", "completions with a bonus (0 to 1)"),
}
RUN_PANELS = ("reference_prob", "answer_prob", "malformed", "entropy")
THRESHOLD_PANELS = ("reference_prob", "entropy")


def draw_curves(curves: dict[str, list[dict[str, float]]], path: Path, panels: tuple[str, ...] = RUN_PANELS) -> None:
    """
    Draw one line per name in every panel: a dot for each step, and the mean of the last three steps as a line.

    Args:
        curves (`dict[str, list[dict[str, float]]]`):
            For every name, of which there are one or two, one dictionary per step with `step` and some of the
            `CURVES`.
        path (`pathlib.Path`):
            The PNG file that is written.
        panels (`tuple[str]`, *optional*, defaults to `RUN_PANELS`):
            Which of the `CURVES` are drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, key in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for index, (name, curve) in enumerate(curves.items()):
            points = [point for point in curve if key in point]
            steps, values = [point["step"] for point in points], [point[key] for point in points]
            axes.plot(steps, values, ".", color=f"C{index}", alpha=0.35)
            axes.plot(steps, moving_average(values, WINDOW), STYLES[index], color=f"C{index}", label=name)
        axes.set_title(CURVES[key][1])
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def mean_curve(curves: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """The mean of several runs' curves, step by step, over the runs that have a value there."""
    merged = []
    for points in zip(*curves, strict=True):
        keys = dict.fromkeys(key for point in points for key in point)
        values = {key: [point[key] for point in points if key in point] for key in keys}
        merged.append({key: sum(found) / len(found) for key, found in values.items()})
    return merged
