# SPDX-License-Identifier: Apache-2.0
"""
Try a recipe on a few prompts before GPUs are spent: `trl-diversity preflight --config FILE.yaml [--option VALUE ...]`.

A trainer is built as the recipe says and takes one step with a learning rate of 0 on a few prompts. Status 1 means
that training would be wasted; the reasons are printed.
"""

import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_diversity.scripts.parsing import StrictParser, export_environment, split_config
from trl_diversity.scripts.preflight_verdicts import LABELLED_PAIRS, reasons_against, share_right


@dataclass
class PreflightArguments:
    """
    Arguments of `trl-diversity preflight` besides those of the recipe's command.

    Args:
        preflight_prompts (`int`, *optional*, defaults to `4`):
            Prompts to sample completions for, as many as the recipe has for a prompt.
        pairs (`str`, *optional*):
            JSON lines with `generation_0`, `generation_1`, `similar` (and `prompt`) that the partition model is tried
            on. Eight plain pairs by default.
        json (`bool`, *optional*, defaults to `False`):
            Print one JSON object instead of a table.
    """

    preflight_prompts: int = field(default=4, metadata={"help": "Prompts to sample completions for."})
    pairs: str | None = field(
        default=None,
        metadata={"help": "JSON lines with `generation_0`, `generation_1`, `similar` to try the partition model on."},
    )
    json: bool = field(default=False, metadata={"help": "Print one JSON object instead of a table."})

    def __post_init__(self):
        if self.preflight_prompts < 1:
            raise ValueError(f"`preflight_prompts` is at least 1; got {self.preflight_prompts}.")


def make_parser(prog: str | None = None, command: str = "darling") -> StrictParser:
    """The parser of this command: that of `trl-diversity darling` or `darl`, and what a preflight adds."""
    from trl_diversity.scripts.recipe_parsing import config_classes

    return StrictParser(
        (PreflightArguments, *config_classes(command)),
        prog=prog,
        description="Try a recipe on a few prompts, without training, and say why training would be wasted.",
    )


def main(args: PreflightArguments, parsed: Sequence[Any], original: Sequence[Any], command: str) -> dict[str, Any]:
    """
    Measure, and say what speaks against training.

    Args:
        args ([`PreflightArguments`]):
            How many prompts, and which pairs.
        parsed (`Sequence`):
            Script, training and model arguments of the one step.
        original (`Sequence`):
            The recipe's own, for the size of the whole run.
        command (`str`):
            `darling` or `darl`.

    Returns:
        `dict`: the report, with `reasons` (empty if nothing speaks against it).
    """
    from trl_diversity.scripts.preflight_servers import check_servers

    servers = check_servers(parsed[1], parsed[2].model_name_or_path, parsed[0].reward_funcs or [])
    report: dict[str, Any] = {"servers": servers}
    reasons = [
        f"the {server['kind']} server {server['url']} {server['problem']}" for server in servers if server["problem"]
    ]
    if not reasons:
        try:
            report |= _measure(args, parsed, original, command)
            reasons = reasons_against(report)
        except (OSError, ValueError, ConnectionError) as error:
            reasons = [str(error)]
    return {**report, "reasons": reasons}


def _measure(args: PreflightArguments, parsed: Sequence[Any], original: Sequence[Any], command: str) -> dict[str, Any]:
    from trl_diversity.scripts.training import build_trainer
    from trl_diversity.trainers import DarlingTrainer, DarlTrainer

    script_args, training_args, model_args = parsed
    trainer_class = DarlTrainer if command == "darl" else DarlingTrainer
    trainer: Any = build_trainer(trainer_class, script_args, training_args, model_args, command == "darling")
    watch = _watch()
    trainer.add_callback(watch)
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
    report = {
        **_from_logs(logged, training_args, script_args),
        **_quality_range(Path(training_args.output_dir)),
        **_data(trainer),
        **_pairs(trainer, args.pairs, script_args.reward_funcs or []),
        **_time(watch.seconds, trainer, training_args, original[1]),
    }
    if hasattr(trainer, "end"):
        trainer.end()
    return report


def _from_logs(logged: dict[str, float], args: Any, script_args: Any) -> dict[str, Any]:
    names = {
        "clusters_per_group": "diversity/clusters_per_group",
        "collapsed_groups": "diversity/collapsed_groups",
        "diversity": "diversity/mean",
        "quality": "quality/mean",
        "negative_quality": "quality/negative_fraction",
        "reward": "reward",
        "groups_without_spread": "frac_reward_zero_std",
        "truncated": "completions/clipped_ratio",
        "completion_tokens": "completions/mean_length",
        "malformed": "darl/malformed_fraction",
        "reference_prob": "darl/reference_prob",
        "diversity_seconds": "diversity/seconds",
    }
    found = {name: logged[key] for name, key in names.items() if key in logged}
    multiplies = getattr(args, "combine", None) == "multiply" and args.diversity_measure != "none"
    found["pays_duplicates"] = multiplies and args.quality_shift == "none" and not args.allow_negative_quality
    return found


def _quality_range(output_dir: Path) -> dict[str, Any]:
    """Least and greatest quality among the completions, from the table that TRL wrote of them."""
    import pyarrow.parquet as pq

    tables = sorted((output_dir / "completions").glob("*.parquet"))
    columns = pq.read_table(tables[0]).to_pydict() if tables else {}
    values = [
        float(v) for v in columns.get("quality") or columns.get("darl") or [] if v is not None and math.isfinite(v)
    ]
    return {"quality_min": min(values), "quality_max": max(values)} if values else {}


def _data(trainer: Any) -> dict[str, Any]:
    from trl_diversity.data.prompt_lengths import prompt_token_count

    dataset = trainer.train_dataset
    if not hasattr(dataset, "num_rows"):
        return {}
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    kwargs = trainer.args.chat_template_kwargs
    longest = max(prompt_token_count(prompt, tokenizer, kwargs) for prompt in dataset["prompt"])
    return {"prompts": dataset.num_rows, "longest_prompt_tokens": longest}


def _pairs(trainer: Any, path: str | None, reward_funcs: Sequence[str]) -> dict[str, Any]:
    model = getattr(getattr(trainer, "diversity", None), "model", None)
    # The plain pairs say nothing about a judge of mathematical solutions
    if model is None or (path is None and "accuracy_reward" in reward_funcs):
        return {}
    pairs: list[tuple[str, str, str, bool]] = list(LABELLED_PAIRS)
    if path is not None:
        rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
        pairs = [
            (row.get("prompt", ""), row["generation_0"], row["generation_1"], bool(row["similar"])) for row in rows
        ]
    prompts, first, second, labels = zip(*pairs, strict=True)
    scores = model.score_pairs(list(zip(first, second, strict=True)), list(prompts))
    threshold = trainer.diversity.threshold
    return {"labelled_pairs": len(pairs), "labelled_pairs_right": share_right(scores, threshold, labels)}


def _time(seconds: float, trainer: Any, args: Any, original: Any) -> dict[str, Any]:
    """Seconds of a whole step and of the run, as if all completions took as long as the ones that were sampled."""
    sampled = args.per_device_train_batch_size * args.steps_per_generation
    step = original.per_device_train_batch_size * original.gradient_accumulation_steps
    found = {"sampled_seconds": seconds, "seconds_per_step": seconds * step / sampled}
    steps = original.max_steps if original.max_steps > 0 else None
    if steps is None and hasattr(trainer.train_dataset, "num_rows"):
        completions = trainer.train_dataset.num_rows * original.num_generations * original.num_train_epochs
        steps = math.ceil(completions * original.num_iterations / (step * original.world_size))
    if steps is not None:
        found |= {"optimizer_steps": steps, "hours": steps * found["seconds_per_step"] / 3600}
    return found


def _watch() -> Any:
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        """Seconds of the one step, sampling and rewards included."""

        seconds = 0.0

        def on_step_begin(self, args, state, control, **kwargs):
            self._start = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            self.seconds = time.perf_counter() - self._start

    return Watch()


def one_step(training_args: Any, prompts: int, output_dir: str) -> list[str]:
    """
    Options that make of a recipe's run one step on a few prompts that changes nothing.

    Args:
        training_args ([`~trl.GRPOConfig`]):
            The recipe's.
        prompts (`int`):
            Prompts of the step, rounded up to whole micro-batches of every process.
        output_dir (`str`):
            Where the table of completions goes.

    Returns:
        `list[str]`: a command line.
    """
    rows = training_args.per_device_train_batch_size * training_args.world_size
    group = training_args.num_generations
    whole = math.lcm(rows, group)
    micro_batches = math.ceil(prompts * group / whole) * whole // rows
    options = {
        "max_steps": 1,
        "learning_rate": 0,
        "gradient_accumulation_steps": micro_batches,
        "num_iterations": 1,
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "push_to_hub": "false",
        "log_completions": "true",
        "logging_strategy": "steps",
        "logging_steps": 1,
        "output_dir": output_dir,
    }
    return [word for key, value in options.items() for word in (f"--{key}", str(value))] + [
        "--steps_per_generation",
        str(micro_batches),
    ]


def table(report: dict[str, Any]) -> str:
    """A report as text."""
    lines = []
    for server in report["servers"]:
        lines.append(f"{server['kind']} server {server['url']}: {server['problem'] or 'serves the model'}")
    numbers = {key: value for key, value in report.items() if key not in ("servers", "reasons", "pays_duplicates")}
    width = max(map(len, numbers), default=0)
    for key, value in numbers.items():
        lines.append(f"{key:<{width}}  {value:.4g}" if isinstance(value, float) else f"{key:<{width}}  {value}")
    verdict = ["Nothing speaks against training."] if not report["reasons"] else ["Training would be wasted:"]
    return "\n".join([*lines, *verdict, *(f"- {reason}." for reason in report["reasons"])])


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line, measure, print the report, and end with status 1 if training would be wasted."""
    words = list(sys.argv[1:] if argv is None else argv)
    export_environment(words, prog)
    parser = make_parser(prog, _command(words))
    args, *original = parser.parse_args_and_config(words)
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(sys.stderr):
        options = one_step(original[1], args.preflight_prompts, directory)
        _, *parsed = parser.parse_args_and_config([*words, *options])
        report = main(args, parsed, original, _command(words))
    if original[1].process_index == 0:
        print(json.dumps(report, indent=2) if args.json else table(report))
    if report["reasons"]:
        sys.exit(1)


def _command(words: list[str]) -> str:
    """`darling` or `darl`: what the recipe's header or keys say; without a recipe, Darling."""
    from trl_diversity.scripts.recipe_parsing import command_of

    with contextlib.suppress(OSError, ValueError):  # the parser reports it
        path, _ = split_config(words)
        if path is not None:
            command = command_of(path)
            if command == "divpo":
                raise SystemExit(
                    "trl-diversity preflight: DivPO has no preflight; a round is short: try `--rounds 1`."
                )
            return command
    return "darling"


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.preflight")
