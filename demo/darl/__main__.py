# SPDX-License-Identifier: Apache-2.0
"""`python -m demo.darl`: train SmolLM2-135M with Darl on questions with references and show what changed."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from demo.environment import prepare_environment


# Options that make a run two steps long and tiny. The files are the same, the figures mean nothing.
SMOKE_STEPS = 2
SMOKE_OVERRIDES = [
    *("--max_steps", str(SMOKE_STEPS)),
    *("--per_device_train_batch_size", "8"),
    *("--max_completion_length", "8"),
]
ONE_RUN, SEVERAL_RUNS = Path("outputs/demo-darl"), Path("outputs/demo-darl-runs")


def main(argv: list[str] | None = None) -> None:
    """Run the demo with the options of a command line."""
    parser = argparse.ArgumentParser(prog="python -m demo.darl", description=__doc__)
    parser.add_argument(
        "--output", type=Path, help=f"folder for everything, {ONE_RUN} or {SEVERAL_RUNS} (several runs) by default"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="one run per seed; those that are complete are kept")
    parser.add_argument(
        "--compare-thresholds", action="store_true", help="the static threshold (SAD) beside the dynamic one (DAD)"
    )
    parser.add_argument("--questions", default="held_out", help="evaluation questions: a file of demo/darl/questions")
    parser.add_argument("--smoke", action="store_true", help="two tiny steps, to check that it runs")
    args = parser.parse_args(argv)
    prepare_environment()
    started = time.monotonic()
    if args.seeds or args.compare_thresholds:
        several_runs(args)
    else:
        one_run(args)
    print(f"{time.monotonic() - started:.0f} seconds.")


def one_run(args: argparse.Namespace) -> None:
    """Train once with the dynamic threshold."""
    from demo.darl.experiment import RunSettings, run
    from demo.darl.report import print_completions, print_runs
    from demo.darl.warm_up import warm_policy

    output = args.output or ONE_RUN
    settings = RunSettings("DAD", output, smoke_policy(args) or warm_policy(), questions=args.questions)
    shrink(settings, args)
    metrics = run(settings)
    print_completions(output)
    print_runs([metrics])
    print(f"Adapter, model card, metrics, completions, curves: {output}/")


def several_runs(args: argparse.Namespace) -> None:
    """Train with every seed, with both thresholds if they are to be compared."""
    from demo.darl.plots import RUN_PANELS, THRESHOLD_PANELS, draw_curves, mean_curve
    from demo.darl.report import print_runs

    output = args.output or SEVERAL_RUNS
    runs: list[dict[str, Any]] = []
    for seed in args.seeds or [0]:
        for threshold in ("DAD", "SAD") if args.compare_thresholds else ("DAD",):
            print(f"{threshold}, seed {seed}")
            runs.append(complete_run(threshold, seed, output, args, runs))
    curves = {
        name: mean_curve([run["curve"] for run in runs if run["threshold"] == name])
        for name in dict.fromkeys(run["threshold"] for run in runs)
    }
    name, panels = ("thresholds", THRESHOLD_PANELS) if args.compare_thresholds else ("seeds", RUN_PANELS)
    draw_curves(curves, output / f"{name}.png", panels)
    (output / f"{name}.json").write_text(json.dumps({"runs": runs}, indent=2) + "\n", encoding="utf-8")
    print_runs(runs)
    print(f"All runs, {name}.json and {name}.png: {output}/")


def complete_run(
    threshold: str, seed: int, output: Path, args: argparse.Namespace, earlier: list[dict[str, Any]]
) -> dict[str, Any]:
    """The metrics of one run: read if it is complete, else made."""
    from demo.darl.experiment import METRICS_FILE, RunSettings, fingerprint, run
    from demo.darl.warm_up import warm_policy

    folder = output / f"{threshold.lower()}-seed{seed}"
    if (folder / METRICS_FILE).exists():
        metrics = json.loads((folder / METRICS_FILE).read_text(encoding="utf-8"))
        if (metrics["questions"], metrics["fingerprint"]) != (args.questions, fingerprint(threshold)):
            raise ValueError(
                f"{folder} holds a run evaluated on {metrics['questions']!r} questions by a recipe with SHA-256 "
                f"{metrics['fingerprint'][:12]}; asked for are {args.questions!r} and {fingerprint(threshold)[:12]}. "
                "Choose another --output."
            )
        return metrics
    settings = RunSettings(threshold, folder, smoke_policy(args) or warm_policy(), seed, args.questions)
    shrink(settings, args)
    return run(settings, before=earlier[0]["before"] if earlier else None)


def smoke_policy(args: argparse.Namespace) -> Path | None:
    """A policy that has hardly been warmed up, if `--smoke` is given."""
    from demo.darl.warm_up import warm_policy

    return warm_policy(max_steps=SMOKE_STEPS) if args.smoke else None


def shrink(settings: Any, args: argparse.Namespace) -> None:
    """Make a run tiny if `--smoke` is given."""
    if args.smoke:
        settings.samples_per_question, settings.question_count, settings.overrides = 2, 2, SMOKE_OVERRIDES


if __name__ == "__main__":
    main()
