# SPDX-License-Identifier: Apache-2.0
"""What a model card says about a run beyond TRL's text: rewards, classifier and threshold, metrics, curves."""

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trl_diversity.trainers.saving import scrubbed


HEADING = "## How it was rewarded"
CURVES = "training_curves.png"
# In this order; what a run has not logged is left out.
METRICS = (
    "quality/mean",
    "diversity/clusters_per_group",
    "diversity/mean",
    "darl/reference_prob",
    "darl/malformed_fraction",
    "reward",
    "completions/mean_length",
)
_SETTINGS = (
    "diversity_measure",
    "partition_model",
    "clustering",
    "diversity_text",
    "combine",
    "quality_shift",
    "diversity_floor",
    "alpha",
    "delta_weight",
    "threshold_type",
    "gamma",
    "tau",
    "debias",
    "aggregation",
    "format_style",
    "scale_rewards",
    "loss_type",
    "beta",
    "num_generations",
    "temperature",
    "learning_rate",
)


def describe_run(trainer: Any, card: Path) -> None:
    """
    Add rewards, metrics and curves to a card that TRL has written.

    The curves are drawn beside it as `training_curves.png` where matplotlib is installed.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            One of ours.
        card (`Path`):
            Its README.md.
    """
    text = card.read_text()
    if HEADING in text:
        return
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    parts = [HEADING, "", _table(("setting", "value"), _settings(trainer))]
    if history:
        parts += ["", _table(("metric", "first", "last"), _metrics(history))]
        if _draw(history, card.with_name(CURVES)):
            parts += ["", f"![Metrics over the training steps]({CURVES})"]
    marker = "### Framework versions"
    section = "\n".join([*parts, "", ""])
    card.write_text(text.replace(marker, section + marker, 1) if marker in text else f"{text}\n{section}")


def _settings(trainer: Any) -> list[tuple[str, str]]:
    args, rows = trainer.args, []
    rewards = [name for name in trainer.reward_func_names if name not in ("darling", "darl")]
    if rewards:
        rows.append(("quality rewards", ", ".join(rewards)))
    threshold = getattr(getattr(trainer, "diversity", None), "threshold", None)
    for name in _SETTINGS:
        value = getattr(args, name, None)
        if value is None:
            continue
        rows.append((f"`{name}`", str(scrubbed(value))))
        if name == "diversity_measure" and threshold is not None:
            rows.append(("threshold of the equivalence model", f"{threshold:.4g}"))
    return rows


def _metrics(history: list[dict[str, float]]) -> list[tuple[str, str, str]]:
    rows = []
    for name in METRICS:
        values = [entry[name] for entry in history if _is_number(entry.get(name))]
        if values:
            rows.append((f"`{name}`", f"{values[0]:.4g}", f"{values[-1]:.4g}"))
    return rows


def _is_number(value: float | None) -> bool:
    """Not None, which a checkpoint's history holds for what was not a number."""
    return value is not None and math.isfinite(value)


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _draw(history: list[dict[str, float]], path: Path) -> bool:
    """Whether there was something to draw, and something to draw it with."""
    curves = {
        name: [(e["step"], e[name]) for e in history if _is_number(e.get(name)) and "step" in e] for name in METRICS
    }
    curves = {name: points for name, points in curves.items() if len(points) > 1}
    if not curves or find_spec("matplotlib") is None:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(curves), 2.6))
    for place, (name, points) in enumerate(curves.items(), start=1):
        axis = figure.add_subplot(1, len(curves), place)
        axis.plot(*zip(*points, strict=True))
        axis.set_title(name, fontsize=8)
        axis.tick_params(labelsize=7)
    figure.tight_layout()
    FigureCanvasAgg(figure).print_png(str(path))
    return True
