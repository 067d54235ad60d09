# SPDX-License-Identifier: Apache-2.0
"""
Quality against diversity over temperatures, for several checkpoints.

`trl-diversity evaluate sweep --prompts FILE.jsonl --models A B --reward_model NAME --output_dir DIRECTORY [...]`
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trl_diversity.scripts.files import require_file
from trl_diversity.scripts.generation_arguments import GenerationArguments
from trl_diversity.scripts.parsing import StrictParser, export_environment
from trl_diversity.scripts.partition_model import PartitionModelArguments


PRESET = "noveltybench"
TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.2)  # arXiv 2509.02534, figure 3


@dataclass
class SweepArguments:
    """
    Arguments of `trl-diversity evaluate sweep`, besides those of [`PartitionModelArguments`] and
    [`GenerationArguments`].

    Args:
        prompts (`str`):
            JSON lines with `prompt`.
        models (`list[str]`):
            Checkpoints, or names under which the server of `base_url` has them.
        reward_model (`str`):
            Quality, named as in a recipe's `reward_funcs`.
        output_dir (`str`):
            Directory for the completions, sweep.json and sweep.png. A run that was interrupted goes on there.
        temperatures (`list[float]`, *optional*, defaults to `[0.2, 0.4, 0.6, 0.8, 1.2]`):
            Temperatures of every checkpoint.
        labels (`list[str]`, *optional*):
            Names of the checkpoints in the figure.
        limit (`int`, *optional*):
            Only the first so many prompts.
        clustering (`str`, *optional*, defaults to `"greedy"`):
            `"greedy"` or `"closure"`.
        json (`bool`, *optional*, defaults to `False`):
            Print one JSON object instead of a table.
    """

    prompts: str = field(metadata={"help": "JSON lines with `prompt`."})
    models: list[str] = field(metadata={"help": "Checkpoints, or names of models on the server of `base_url`."})
    reward_model: str = field(metadata={"help": "Quality, named as in a recipe's `reward_funcs`."})
    output_dir: str = field(metadata={"help": "Directory for all that is computed. An interrupted run goes on there."})
    temperatures: list[float] = field(
        default_factory=lambda: list(TEMPERATURES), metadata={"help": "Temperatures of every checkpoint."}
    )
    labels: list[str] | None = field(default=None, metadata={"help": "Names of the checkpoints in the figure."})
    limit: int | None = field(default=None, metadata={"help": "Only the first so many prompts."})
    clustering: Literal["greedy", "closure"] = field(
        default="greedy", metadata={"help": "`greedy` (NoveltyBench) or `closure` (transitive)."}
    )
    json: bool = field(default=False, metadata={"help": "Print one JSON object instead of a table."})

    def __post_init__(self):
        require_file(self.prompts, "prompts")
        if self.labels is not None and len(self.labels) != len(self.models):
            raise ValueError(f"give one of the `labels` per model; got {len(self.labels)} for {len(self.models)}.")
        names = self.labels or self.models
        if len(set(names)) < len(names):
            raise ValueError(f"two checkpoints have the same name: {', '.join(names)}. Give `labels`.")
        if any(not value > 0 for value in self.temperatures) or len(set(self.temperatures)) < len(self.temperatures):
            raise ValueError(f"`temperatures` are above 0 and differ; got {self.temperatures}.")


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        (SweepArguments, PartitionModelArguments, GenerationArguments),
        prog=prog,
        usage="%(prog)s --prompts FILE.jsonl --models A B --reward_model NAME --output_dir DIRECTORY "
        "[--option VALUE ...]",
        description="Quality against diversity over temperatures, for several checkpoints.",
    )


def main(args: SweepArguments, partition: PartitionModelArguments, generation: GenerationArguments) -> None:
    """
    Draw and measure what is missing, print the points, and draw the fronts.

    Raises:
        `SystemExit`: with a message, if a file or a model is wrong.
    """
    from trl_diversity.evaluation.fronts import mark_dominated
    from trl_diversity.evaluation.plots import draw_fronts

    try:
        points = mark_dominated(_points(args, partition, generation))
        output = Path(args.output_dir)
        draw_fronts(points, output / "sweep.png", f"quality ({args.reward_model})")
    except (ConnectionError, FileNotFoundError, ImportError, OSError, ValueError) as error:
        raise SystemExit(f"trl-diversity evaluate sweep: {error}") from error
    result = {"points": points, "reward_model": args.reward_model, "partition": partition.described()}
    (output / "sweep.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(result, ensure_ascii=False) if args.json else _table(points))


def _points(
    args: SweepArguments, partition: PartitionModelArguments, generation: GenerationArguments
) -> list[dict[str, Any]]:
    from trl_diversity.diversity.measures import PartitionDiversity
    from trl_diversity.scripts.quality import require_no_columns

    require_no_columns(args.reward_model)
    prompts = _read_prompts(args)
    groups = {}
    for name, model in zip(args.labels or args.models, args.models, strict=True):
        groups[name] = _draw(name, model, prompts, args, generation)
    equivalence = partition.load(generation.device, trust_remote_code=generation.trust_remote_code)
    measure = PartitionDiversity(equivalence, clustering=args.clustering)
    quality = generation.load_quality(args.reward_model)
    return [
        {"model": name, "temperature": temperature, **_measured(prompts, completions, measure, quality)}
        for name, by_temperature in groups.items()
        for temperature, completions in by_temperature.items()
    ]


def _read_prompts(args: SweepArguments) -> list[dict[str, Any]]:
    from trl_diversity.evaluation.journal import read_rows

    rows = []
    for number, row in enumerate(read_rows(args.prompts), start=1):
        if not isinstance(row.get("prompt"), str | list):
            raise ValueError(f"{args.prompts}, row {number}: expected a text or a conversation as `prompt`")
        rows.append({"id": str(row.get("id", number)), "prompt": row["prompt"]})
    return rows[: args.limit]


def _draw(
    name: str, model: str, prompts: list[dict[str, Any]], args: SweepArguments, generation: GenerationArguments
) -> dict[float, list[list[str]]]:
    """Completions by temperature; the model is loaded if some are missing."""
    from tqdm import tqdm

    from trl_diversity.evaluation.journal import Journal

    generator, found = None, {}
    step = generation.generation_batch_size if generation.base_url or generation.backend == "vllm" else 1
    for temperature in args.temperatures:
        sampling = replace(generation.sampling(PRESET), temperature=temperature)
        settings = {**generation.described(model, PRESET), "temperature": temperature}
        folder = "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")
        journal = Journal(Path(args.output_dir) / folder / f"temperature-{temperature:g}.jsonl", settings)
        missing = [row for row in prompts if row["id"] not in journal]
        with tqdm(total=len(missing), desc=f"{name}, T={temperature:g}", file=sys.stderr) as bar:
            for start in range(0, len(missing), step):
                batch = missing[start : start + step]
                generator = generator or generation.make_generator(model)
                drawn = generator([generation.prompt_for(row["prompt"]) for row in batch], sampling)
                for row, texts in zip(batch, drawn, strict=True):
                    journal.append({**row, "generations": texts})
                bar.update(len(batch))
        found[temperature] = [journal.rows[row["id"]]["generations"] for row in prompts]
    return found


def _measured(
    prompts: list[dict[str, Any]], completions: list[list[str]], measure: Any, quality: Any
) -> dict[str, Any]:
    from statistics import fmean

    from trl_diversity.diversity.groups import CompletionGroup, prompt_text
    from trl_diversity.evaluation import bootstrap_interval, distinct

    groups = [
        CompletionGroup(prompt_text(row["prompt"]), texts) for row, texts in zip(prompts, completions, strict=True)
    ]
    counts = [float(distinct(result.labels or [])) for result in measure(groups)]
    qualities = [
        fmean(quality([row["prompt"]] * len(texts), texts)) for row, texts in zip(prompts, completions, strict=True)
    ]
    return {
        "quality": fmean(qualities),
        "distinct": fmean(counts),
        "ci": {"quality": list(bootstrap_interval(qualities)), "distinct": list(bootstrap_interval(counts))},
    }


def _table(points: list[dict[str, Any]]) -> str:
    width = max(len(point["model"]) for point in points)
    lines = [f"{'model':<{width}}     T   quality  distinct"]
    lines += [
        f"{point['model']:<{width}} {point['temperature']:>5g} {point['quality']:>9.3f} {point['distinct']:>9.2f}"
        + ("  dominated" if point["dominated"] else "")
        for point in points
    ]
    return "\n".join(lines)


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and sweep."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.evaluate_sweep")
