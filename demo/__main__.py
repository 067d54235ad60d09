# SPDX-License-Identifier: Apache-2.0
"""`python -m demo`: train SmolLM2-135M with Darling and show what changed."""

import argparse
import time
from pathlib import Path

from demo.environment import prepare_environment


# Options that make a run two steps long and tiny. The files are the same, the figures mean nothing.
SMOKE_STEPS = 2
SMOKE_OVERRIDES = [
    "--max_steps",
    str(SMOKE_STEPS),
    "--per_device_train_batch_size",
    "16",
    "--max_completion_length",
    "6",
]


def main(argv: list[str] | None = None) -> None:
    """Run the demo with the options of a command line."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/demo"), help="folder for everything that is written"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the training")
    parser.add_argument("--prompts", default="held_out", help="evaluation prompts: a file of demo/prompts")
    parser.add_argument(
        "--smoke", action="store_true", help="two tiny steps on two development prompts, to check that it runs"
    )
    args = parser.parse_args(argv)
    prepare_environment()

    from demo.experiment import RunSettings, run
    from demo.report import print_answers, print_run
    from demo.warm_up import warm_policy

    started = time.monotonic()
    policy = warm_policy(max_steps=SMOKE_STEPS) if args.smoke else warm_policy()
    settings = RunSettings("Darling", args.output, policy, seed=args.seed, prompts=args.prompts)
    if args.smoke:
        settings.prompts, settings.prompt_count, settings.groups_per_prompt = "development", 2, 1
        settings.overrides = SMOKE_OVERRIDES
    metrics = run(settings)
    print_answers(args.output)
    print_run(metrics)
    minutes = (time.monotonic() - started) / 60
    print(f"{minutes:.1f} minutes. Adapter, model card, metrics, completions and curves.png: {args.output}/")


if __name__ == "__main__":
    main()
