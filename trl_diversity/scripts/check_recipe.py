# SPDX-License-Identifier: Apache-2.0
"""
Check a recipe before GPUs are spent: `trl-diversity check-recipe FILE.yaml [--num-processes N] [--json]`.

The file is parsed as strictly as its command parses it, on any machine. Then follow the batch geometry, an estimate of
memory, the servers it needs, and how it differs from the papers' runs.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from trl_diversity.scripts.recipe_geometry import BatchGeometry
    from trl_diversity.scripts.recipe_parsing import Recipe


def make_parser(prog: str | None = None) -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = argparse.ArgumentParser(
        prog=prog,
        allow_abbrev=False,
        description="Parse a recipe strictly and print what follows from it: batch geometry, memory, servers, and how "
        "it differs from the papers' runs. Status 1: it cannot work.",
    )
    parser.add_argument("recipe", metavar="FILE.yaml", nargs="?", help="The recipe.")
    parser.add_argument("--config", metavar="FILE.yaml", help="The recipe, as other commands take it.")
    parser.add_argument(
        "--num-processes",
        "--num_processes",
        type=int,
        default=None,
        help="Training processes, one a GPU. Default: what the launch command in the recipe's header starts, else 1.",
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object instead of a table.")
    return parser


def examine(path: str, num_processes: int | None = None) -> dict[str, Any]:
    """
    Everything that is known about a recipe.

    Args:
        path (`str`):
            The recipe.
        num_processes (`int`, *optional*):
            Training processes. By default those of the header's launch command.

    Returns:
        `dict`: `prompts_per_generation_batch`, `rollouts_per_prompt`, `prompts_per_optimizer_step`,
        `optimizer_steps_per_generation` and the other sizes, `memory_per_gpu_gib` (an estimate by what needs it, or
        `None` where the model's shape is not known here), `servers`, `total_gpus`, `audit` and `errors`.

    Raises:
        `OSError`: if the file cannot be read.
        `ValueError`: if its command would refuse it.
    """
    from trl_diversity.scripts.recipe_audit import audit
    from trl_diversity.scripts.recipe_parsing import parse_recipe

    recipe = parse_recipe(path, num_processes)
    if recipe.command == "divpo":
        return _examine_divpo(recipe)
    geometry = geometry_of(recipe)
    findings = audit(recipe, geometry)
    servers = _servers(recipe)
    return {
        "recipe": path,
        "command": recipe.command,
        "num_processes": recipe.num_processes,
        "prompts_per_generation_batch": geometry.prompts_per_generation_batch,
        "rollouts_per_prompt": geometry.num_generations,
        "prompts_per_optimizer_step": geometry.prompts_per_optimizer_step,
        "optimizer_steps_per_generation": geometry.optimizer_steps_per_generation,
        "completions_per_generation_batch": geometry.completions_per_generation_batch,
        "max_sequence_tokens": geometry.max_sequence_tokens,
        "max_tokens_per_optimizer_step": geometry.max_tokens_per_optimizer_step,
        "max_pairs_per_generation_batch": geometry.max_pairs_per_generation_batch if _asks_pairs(recipe) else 0,
        "memory_per_gpu_gib": _memory(recipe),
        "servers": servers,
        "total_gpus": recipe.num_processes + sum(server["gpus"] for server in servers),
        "audit": [vars(finding) for finding in findings],
        "errors": [f"{finding.subject}: {finding.message}" for finding in findings if finding.level == "error"],
    }


def _examine_divpo(recipe: "Recipe") -> dict[str, Any]:
    """DivPO trains on pairs in rounds: it has no generation batch, and one process samples."""
    script_args = recipe.script_args
    return {
        "recipe": recipe.path,
        "command": recipe.command,
        "num_processes": recipe.num_processes,
        "rounds": script_args.rounds,
        "prompts_per_generation_batch": script_args.prompts_per_round,
        "rollouts_per_prompt": script_args.num_generations,
        "servers": _servers(recipe),
        "total_gpus": recipe.num_processes,
        "audit": [],
        "errors": [],
    }


def geometry_of(recipe: "Recipe") -> "BatchGeometry":
    """The sizes of a parsed recipe."""
    from trl_diversity.scripts.recipe_geometry import BatchGeometry

    args = recipe.training_args
    return BatchGeometry(
        num_processes=recipe.num_processes,
        per_device_train_batch_size=args.per_device_train_batch_size,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        steps_per_generation=args.steps_per_generation,
        num_generations=args.num_generations,
        num_iterations=args.num_iterations,
        max_prompt_tokens=recipe.script_args.max_prompt_tokens,
        max_completion_length=args.max_completion_length,
    )


def _asks_pairs(recipe: "Recipe") -> bool:
    return getattr(recipe.training_args, "diversity_measure", None) == "partition"


def _servers(recipe: "Recipe") -> list[dict[str, Any]]:
    return [
        {"kind": command.serves, "gpus": command.gpus, "command": " ".join(command.words)}
        for command in recipe.commands
        if command.serves
    ]


def _memory(recipe: "Recipe") -> dict[str, float] | None:
    from trl_diversity.scripts.recipe_memory import BYTES, MemoryPlan, lora_parameters

    shape = _shape(recipe.model_args.model_name_or_path)
    prompt_tokens = recipe.script_args.max_prompt_tokens
    dtype = recipe.model_args.dtype or "float32"
    if shape is None or prompt_tokens is None or dtype not in BYTES:
        return None
    sharded = next((launch.sharded for launch in recipe.commands if launch.sharded is not None), True)
    elsewhere = recipe.script_args.reward_model_device is not None
    rewards = [] if elsewhere else [_shape(name) for name in recipe.script_args.reward_funcs or [] if "/" in name]
    reward_dtype = recipe.script_args.reward_model_dtype or dtype
    args = recipe.training_args
    plan = MemoryPlan(
        shape,
        recipe.num_processes,
        sharded and recipe.num_processes > 1,
        args.per_device_train_batch_size,
        prompt_tokens,
        args.max_completion_length,
        dtype=dtype,
        activation_checkpointing=bool(args.gradient_checkpointing),
        reference_model=args.beta > 0 and not recipe.model_args.use_peft,
        adapter_parameters=lora_parameters(shape, recipe.model_args.lora_r) if recipe.model_args.use_peft else None,
        reward_parameters=sum(reward.parameters for reward in rewards if reward is not None),
        reward_dtype=reward_dtype if reward_dtype in BYTES else "bfloat16",
    )
    return {name: round(value, 2) for name, value in plan.gigabytes().items()}


def _shape(name_or_path: str | None) -> Any:
    """The shape of a model that is known or on this machine; nothing is downloaded."""
    from trl_diversity.scripts.recipe_memory import KNOWN_SHAPES, shape_of

    if name_or_path in KNOWN_SHAPES:
        return KNOWN_SHAPES[str(name_or_path)]
    if name_or_path is None or not os.path.isdir(name_or_path):
        return None
    from transformers import AutoConfig

    return shape_of(AutoConfig.from_pretrained(name_or_path))


def table(report: dict[str, Any]) -> str:
    """A report as text."""
    if report["command"] == "divpo":
        return (
            f"{report['recipe']}\n  `trl-diversity divpo`, {report['rounds']} rounds of "
            f"{report['prompts_per_generation_batch']} prompts x {report['rollouts_per_prompt']} completions, at most "
            "one pair a prompt"
        )
    rows = [
        ("training processes", f"{report['num_processes']} (one GPU each), `trl-diversity {report['command']}`"),
        (
            "generation batch",
            f"{report['prompts_per_generation_batch']} prompts x {report['rollouts_per_prompt']} completions = "
            f"{report['completions_per_generation_batch']}",
        ),
        ("optimizer step", f"{report['prompts_per_optimizer_step']} prompts"),
        ("steps per generation", str(report["optimizer_steps_per_generation"])),
        ("longest sequence", _tokens(report["max_sequence_tokens"])),
        ("tokens per step", _tokens(report["max_tokens_per_optimizer_step"])),
        *(
            ("pairs per generation", f"at most {pairs}")
            for pairs in [report["max_pairs_per_generation_batch"]]
            if pairs
        ),
        ("memory per GPU", _memory_line(report["memory_per_gpu_gib"])),
        *(
            (f"{server['kind']} server", f"{server['gpus']} GPU(s): {server['command']}")
            for server in report["servers"]
        ),
        ("GPUs in all", str(report["total_gpus"])),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [report["recipe"], *(f"  {name:<{width}}  {value}" for name, value in rows), "  audit"]
    return "\n".join([*lines, *(_finding_line(finding) for finding in report["audit"])])


def _tokens(value: int | None) -> str:
    return "no bound" if value is None else f"at most {value} tokens"


def _memory_line(parts: dict[str, float] | None) -> str:
    if parts is None:
        return "not estimated: the model's shape or a length is not known here"
    largest = sorted((item for item in parts.items() if item[0] != "total"), key=lambda item: -item[1])
    return f"about {parts['total']:.0f} GiB (" + ", ".join(f"{n} {v:.1f}" for n, v in largest if v >= 0.05) + ")"


def _finding_line(finding: dict[str, str]) -> str:
    return f"    {finding['level']:<8} {finding['subject']}: {finding['message']}"


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line, print the report, and end with status 1 if the recipe cannot work."""
    parser = make_parser(prog)
    args = parser.parse_args(argv)
    if (args.recipe is None) == (args.config is None):
        parser.error("give one recipe: `FILE.yaml`, or `--config FILE.yaml`")
    args.recipe = args.recipe or args.config
    try:
        report = examine(args.recipe, args.num_processes)
    except (OSError, ValueError) as error:
        if args.json:
            print(json.dumps({"recipe": args.recipe, "errors": [str(error)]}, indent=2))
        print(f"{args.recipe}: cannot work: {error}", file=sys.stderr)
        sys.exit(1)
    print(json.dumps(report, indent=2) if args.json else table(report))
    if report["errors"]:
        print(f"{args.recipe}: cannot work: {'; '.join(report['errors'])}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.check_recipe")
