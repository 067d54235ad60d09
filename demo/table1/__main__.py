# SPDX-License-Identifier: Apache-2.0
"""`python -m demo.table1`: train every arm of the table on every seed, and write table1.md and its figure."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from demo.environment import prepare_environment


QUICK_STEPS = 2
_QUICK = {
    "grpo.yaml": ["--max_steps", "1", "--per_device_train_batch_size", "16", "--max_completion_length", "6"],
    "divpo.yaml": ["--rounds", "1", "--prompts_per_round", "2", "--max_completion_length", "6"],
}
_QUICK["darling.yaml"] = _QUICK["grpo.yaml"]


def main(argv: list[str] | None = None) -> None:
    """Run the experiment with the options of a command line. Runs that are complete are not repeated."""
    parser = argparse.ArgumentParser(prog="python -m demo.table1", description=__doc__)
    parser.add_argument("--output", type=Path, default=None, help="folder for all runs (default: outputs/table1)")
    parser.add_argument("--results", type=Path, default=None, help="folder for table1.md and table1.png")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the training")
    parser.add_argument("--arms", nargs="+", help="folders of the arms, such as grpo darling (default: the table's)")
    parser.add_argument("--held-out-model", help="equivalence model of the second partition (default: shared words)")
    parser.add_argument("--pilot", action="store_true", help="run the pilot and tell the detectable differences")
    parser.add_argument("--quick", action="store_true", help="one step of every arm, to check that it runs")
    args = parser.parse_args(argv)
    prepare_environment()

    from demo.table1.arms import find_arms

    try:
        arms = find_arms(args.arms)
        args.output = args.output or Path("outputs/table1-quick" if args.quick else "outputs/table1")
        if args.pilot:
            run_pilot(args)
            return
        results = run_all(args, arms)
    except ValueError as error:
        raise SystemExit(f"python -m demo.table1: {error}") from error

    from demo.table1.report import write_report

    power_file = args.output / "power.json"
    power = json.loads(power_file.read_text(encoding="utf-8")) if power_file.exists() else None
    command = "python -m demo.table1 " + " ".join(sys.argv[1:] if argv is None else argv)
    path = write_report(results, args.results or args.output, command.strip(), power, args.quick)
    print(path.read_text(encoding="utf-8"))
    print(f"Table and figure: {path.parent}/")


def run_all(args: argparse.Namespace, arms: list[Any]) -> list[dict[str, Any]]:
    """All runs, seed by seed, so that every arm has the first seed before any has the second."""
    from demo.table1.runs import Plan, complete_run
    from demo.warm_up import warm_policy

    policy = warm_policy(max_steps=QUICK_STEPS) if args.quick else warm_policy()
    plan = Plan(args.output, policy, held_out_model=args.held_out_model)
    if args.quick:
        plan = Plan(args.output, policy, prompt_count=2, groups_per_prompt=1, overrides=_QUICK)
    results = []
    for seed in args.seeds[:1] if args.quick else args.seeds:
        for arm in arms:
            print(f"{arm.name}, seed {seed}", flush=True)
            results.append(complete_run(arm, seed, plan))
    order = {arm.name: index for index, arm in enumerate(arms)}
    return sorted(results, key=lambda result: (order[result["arm"]], result["seed"]))


def run_pilot(args: argparse.Namespace) -> None:
    """Two arms on two seeds and the development prompts; writes and prints what the table can detect."""
    from demo.table1.arms import PILOT_ARMS, PILOT_PROMPTS, PILOT_SEEDS, find_arms
    from demo.table1.measure import MEASURES
    from demo.table1.runs import HELD_OUT, Plan, complete_run
    from demo.table1.statistics import detectable_difference
    from demo.warm_up import PROMPTS, warm_policy

    policy = warm_policy(max_steps=QUICK_STEPS) if args.quick else warm_policy()
    plan = Plan(
        args.output / "pilot", policy, PROMPTS / f"{PILOT_PROMPTS}.jsonl", overrides=_QUICK if args.quick else {}
    )
    first, second = find_arms(list(PILOT_ARMS))
    runs = {arm.name: [complete_run(arm, seed, plan) for seed in PILOT_SEEDS] for arm in (first, second)}
    prompts = len(HELD_OUT.read_text(encoding="utf-8").splitlines())
    measures = {}
    for name in MEASURES:
        tables = ([run["per_prompt"][name] for run in runs[arm.name]] for arm in (second, first))
        differences = [[one - other for one, other in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]
        measures[name] = detectable_difference(differences, len(args.seeds), prompts)
    power = {
        "arms": f"{second.name} against {first.name}",
        "pilot_seeds": ", ".join(map(str, PILOT_SEEDS)),
        "pilot_prompts": len(plan.read_prompts()),
        "seeds": len(args.seeds),
        "prompts": prompts,
        "measures": measures,
    }
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "power.json").write_text(json.dumps(power, indent=2) + "\n", encoding="utf-8")
    for name, values in measures.items():
        print(f"{MEASURES[name]}: a difference of {values['difference']:.3f} can be detected")


if __name__ == "__main__":
    main()
