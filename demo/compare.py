# SPDX-License-Identifier: Apache-2.0
"""`python -m demo.compare`: Darling beside plain GRPO, with the same seeds, prompts and number of steps."""

import argparse
import json
from pathlib import Path
from typing import Any

from demo.environment import prepare_environment


def main(argv: list[str] | None = None) -> None:
    """Run the comparison with the options of a command line. Runs that are complete are not repeated."""
    parser = argparse.ArgumentParser(prog="python -m demo.compare", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/demo-compare"), help="folder for all runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of the training")
    parser.add_argument("--prompts", default="held_out", help="evaluation prompts: a file of demo/prompts")
    args = parser.parse_args(argv)
    prepare_environment()

    from demo.experiment import METHODS
    from demo.plots import draw_curves
    from demo.report import print_comparison

    runs: list[dict[str, Any]] = []
    for seed in args.seeds:
        for method in METHODS:
            print(f"{method}, seed {seed}")
            runs.append(complete_run(method, seed, args.output, args.prompts, runs))
    summary = {"runs": runs, "prompts": args.prompts, "seeds": args.seeds}
    (args.output / "metrics.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    means = {method: mean_run([run for run in runs if run["method"] == method]) for method in METHODS}
    draw_curves(means, args.output / "curves.png")
    print_comparison(runs)
    print(f"All runs and curves.png: {args.output}/")


def complete_run(method: str, seed: int, output: Path, prompts: str, earlier: list[dict[str, Any]]) -> dict[str, Any]:
    """The metrics of one run: read if it is complete, else made."""
    from demo.experiment import METRICS_FILE, RunSettings, run
    from demo.warm_up import warm_policy

    folder = output / f"{method.lower()}-seed{seed}"
    if (folder / METRICS_FILE).exists():
        metrics = json.loads((folder / METRICS_FILE).read_text(encoding="utf-8"))
        if metrics["prompts"] != prompts:
            raise ValueError(
                f"{folder} holds a run evaluated on {metrics['prompts']!r} prompts, and {prompts!r} are asked "
                "for. Choose another --output."
            )
        return metrics
    settings = RunSettings(method, folder, warm_policy(), seed=seed, prompts=prompts)
    return run(settings, before=earlier[0]["before"] if earlier else None)


def mean_run(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One run with the means of several: `before`, `after`, and `curve` step by step."""
    return {
        "prompts": runs[0]["prompts"],
        "before": _mean([run["before"] for run in runs]),
        "after": _mean([run["after"] for run in runs]),
        "curve": [_mean(list(points)) for points in zip(*(run["curve"] for run in runs), strict=True)],
    }


def _mean(measured: list[dict[str, float]]) -> dict[str, float]:
    return {key: sum(values[key] for values in measured) / len(measured) for key in measured[0]}


if __name__ == "__main__":
    main()
