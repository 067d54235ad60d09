# SPDX-License-Identifier: Apache-2.0
"""
Clusters and utility of the completions of every prompt, as NoveltyBench counts them.

`trl-diversity evaluate noveltybench --input FILE.jsonl [--json] [--option VALUE ...]`
`trl-diversity evaluate noveltybench --prompts FILE.jsonl --model NAME --output_dir DIRECTORY [--option VALUE ...]`
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trl_diversity.evaluation.metrics import PATIENCE, QUALITY_THRESHOLDS
from trl_diversity.scripts.files import require_file
from trl_diversity.scripts.generation_arguments import GenerationArguments
from trl_diversity.scripts.parsing import StrictParser, export_environment
from trl_diversity.scripts.partition_model import PartitionModelArguments


PRESET = "noveltybench"
# The reward model that NoveltyBench's thresholds were made for.
REWARD_MODEL = "Skywork/Skywork-Reward-Gemma-2-27B-v0.2"


@dataclass
class NoveltyBenchArguments:
    """
    Arguments of `trl-diversity evaluate noveltybench`, besides those of [`PartitionModelArguments`] and
    [`GenerationArguments`].

    Args:
        input (`str`, *optional*):
            JSON lines with `generations` (and `prompt`), with a `partition` too, or with `generation_scores` too: what
            is missing is computed. NoveltyBench's own files are read as they are.
        prompts (`str`, *optional*):
            Instead of `input`: JSON lines with `prompt`, to draw completions for.
        model (`str`, *optional*):
            Model that draws them.
        output_dir (`str`, *optional*):
            Directory for generations.jsonl, partitions.jsonl, scores.jsonl and summary.json. Needed with `prompts`. A
            run that was interrupted goes on there.
        limit (`int`, *optional*):
            Only the first so many prompts.
        clustering (`str`, *optional*, defaults to `"greedy"`):
            `"greedy"` as NoveltyBench, or `"closure"`.
        short_answer_rule (`bool`, *optional*, defaults to `False`):
            Settle pairs of at most five words by their common words, as NoveltyBench did before 2026.
        diversity_text (`str`, *optional*, defaults to `"full"`):
            Text of a completion that is compared.
        reward_model (`str`, *optional*):
            Name of a reward, as in a recipe's `reward_funcs`. Used for utility where a row has no scores.
        quality_thresholds (`list[float]`, *optional*):
            Rewards between the qualities 1, 2, ... NoveltyBench's by default, which fit its own reward model alone.
        patience (`float`, *optional*, defaults to 0.8):
            Probability that a user reads on.
        published (`str`, *optional*):
            A published summary.json to check against the rows.
        confidence (`float`, *optional*, defaults to 0.95):
            Of the intervals, which are drawn over prompts.
        json (`bool`, *optional*, defaults to `False`):
            Print one JSON object instead of a table.
    """

    input: str | None = field(
        default=None, metadata={"help": "JSON lines with `generations`, a `partition`, or `generation_scores`."}
    )
    prompts: str | None = field(
        default=None, metadata={"help": "Instead of `input`: JSON lines with `prompt`, to draw completions for."}
    )
    model: str | None = field(default=None, metadata={"help": "Model that draws completions."})
    output_dir: str | None = field(
        default=None, metadata={"help": "Directory for all that is computed. An interrupted run goes on there."}
    )
    limit: int | None = field(default=None, metadata={"help": "Only the first so many prompts."})
    clustering: Literal["greedy", "closure"] = field(
        default="greedy", metadata={"help": "`greedy` (NoveltyBench) or `closure` (transitive)."}
    )
    short_answer_rule: bool = field(
        default=False, metadata={"help": "Settle short pairs by their words, as NoveltyBench did before 2026."}
    )
    diversity_text: Literal["full", "after_think", "answer"] = field(
        default="full", metadata={"help": "Text of a completion that is compared."}
    )
    reward_model: str | None = field(
        default=None, metadata={"help": "Reward for utility, named as in `reward_funcs`. None: no utility."}
    )
    quality_thresholds: list[float] | None = field(
        default=None, metadata={"help": "Rewards between the qualities 1, 2, ... Default: NoveltyBench's nine."}
    )
    patience: float = field(default=PATIENCE, metadata={"help": "Probability that a user reads on."})
    published: str | None = field(default=None, metadata={"help": "A published summary.json to check."})
    confidence: float = field(default=0.95, metadata={"help": "Of the intervals, drawn over prompts."})
    json: bool = field(default=False, metadata={"help": "Print one JSON object instead of a table."})

    def __post_init__(self):
        if (self.input is None) == (self.prompts is None):
            raise ValueError("give either `input` (completions) or `prompts` (to draw completions for).")
        for name in ("input", "prompts", "published"):
            path = getattr(self, name)
            if path is not None:
                require_file(path, name)
        if self.prompts is not None and self.output_dir is None:
            raise ValueError("`prompts` needs an `output_dir`, where the completions are kept.")
        if self.input is not None and self.model is not None:
            raise ValueError("`model` draws completions for `prompts`; those of `input` are there already.")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"`limit` is at least 1; got {self.limit}.")
        if not 0 < self.patience <= 1:
            raise ValueError(f"`patience` lies in (0, 1]; got {self.patience}.")
        if not 0 < self.confidence < 1:
            raise ValueError(f"`confidence` lies in (0, 1); got {self.confidence}.")
        thresholds = self.quality_thresholds or []
        if any(low >= high for low, high in zip(thresholds, thresholds[1:], strict=False)):
            raise ValueError(f"`quality_thresholds` must ascend; got {thresholds}.")


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        (NoveltyBenchArguments, PartitionModelArguments, GenerationArguments),
        prog=prog,
        usage="%(prog)s (--input FILE.jsonl | --prompts FILE.jsonl --model NAME --output_dir DIRECTORY) "
        "[--json] [--option VALUE ...]",
        description="Clusters and utility of the completions of every prompt, as NoveltyBench counts them.",
    )


def main(args: NoveltyBenchArguments, partition: PartitionModelArguments, generation: GenerationArguments) -> None:
    """
    Compute what is missing and print the summary.

    Raises:
        `SystemExit`: with a message, if a file or an argument is wrong.
    """
    from trl_diversity.evaluation.noveltybench import summarize
    from trl_diversity.evaluation.noveltybench_checks import check_published_summary
    from trl_diversity.scripts.quality import require_no_columns

    try:
        if args.reward_model is not None:
            require_no_columns(args.reward_model)
        rows = _rows(args, generation)
        settings = _settings(args, partition, generation, rows)
        rows = _partitioned(rows, args, partition, generation)
        rows, notes = _scored(rows, args, partition, generation)
        summary = summarize(rows, args.patience, args.confidence)
    except (ConnectionError, FileNotFoundError, ImportError, ValueError) as error:
        raise SystemExit(f"trl-diversity evaluate noveltybench: {error}") from error
    summary["warnings"] += notes
    if args.published is not None:
        with open(args.published, encoding="utf-8") as file:
            summary["warnings"] += check_published_summary(summary, json.load(file))
    summary["settings"] = settings
    if args.output_dir is not None:
        _write_summary(os.path.join(args.output_dir, "summary.json"), summary)
    print(json.dumps(summary, ensure_ascii=False) if args.json else _table(summary))


def _rows(args: NoveltyBenchArguments, generation: GenerationArguments) -> list[Any]:
    from trl_diversity.evaluation.journal import read_rows
    from trl_diversity.evaluation.noveltybench import parse_rows

    rows = read_rows(args.input) if args.input is not None else _draw(args, generation)
    return parse_rows(rows)[: args.limit]


def _draw(args: NoveltyBenchArguments, generation: GenerationArguments) -> list[dict[str, Any]]:
    """Rows with generations of every prompt; those that an earlier run drew are read."""
    from itertools import islice

    from trl_diversity.evaluation.journal import Journal, read_rows

    prompts = []
    for number, row in enumerate(islice(read_rows(str(args.prompts)), args.limit), start=1):
        if not isinstance(row.get("prompt"), (str, list)):
            raise ValueError(f"{args.prompts}, row {number}: expected a text or a conversation as `prompt`")
        prompts.append({**row, "id": str(row.get("id", number))})
    settings = {"prompts": os.path.basename(str(args.prompts)), **generation.described(args.model, PRESET)}
    journal = Journal(os.path.join(str(args.output_dir), "generations.jsonl"), settings)
    missing = [row for row in prompts if row["id"] not in journal]
    if missing:
        generator = generation.make_generator(args.model)
        step = generation.generation_batch_size
        for start in _progress(range(0, len(missing), step), "generate", len(missing), step):
            batch = missing[start : start + step]
            drawn = generator([generation.prompt_for(row["prompt"]) for row in batch], generation.sampling(PRESET))
            for row, completions in zip(batch, drawn, strict=True):
                journal.append({**row, "model": args.model, "generations": completions})
    return [journal.rows[row["id"]] for row in prompts]


def _partitioned(
    rows: list[Any],
    args: NoveltyBenchArguments,
    partition: PartitionModelArguments,
    generation: GenerationArguments,
) -> list[Any]:
    missing = [row for row in rows if row.partition is None]
    if not missing:
        return rows
    from trl_diversity.diversity.groups import CompletionGroup, narrow_text, prompt_text
    from trl_diversity.diversity.measures import PartitionDiversity

    journal = _journal(args, "partitions.jsonl", _partition_settings(args, partition))
    model = partition.load(generation.device, generation.dtype, generation.trust_remote_code)
    measure = PartitionDiversity(model, clustering=args.clustering, short_answer_rule=args.short_answer_rule)

    def sort(row: Any) -> dict[str, Any]:
        texts = [narrow_text(text, args.diversity_text) for text in row.generations]
        labels = measure([CompletionGroup(prompt_text(row.prompt or ""), texts)])[0].labels or []
        return {"partition": labels, "distinct": len(set(labels))}

    found = _completed(missing, journal, sort, "partition")
    return [replace(row, partition=found[row.id]["partition"]) if row.id in found else row for row in rows]


def _scored(
    rows: list[Any],
    args: NoveltyBenchArguments,
    partition: PartitionModelArguments,
    generation: GenerationArguments,
) -> tuple[list[Any], list[str]]:
    """Rows with scores where there is a reward model, and what there is to say about them."""
    missing = [row for row in rows if row.scores is None]
    if args.reward_model is None or not missing:
        return rows, []
    from trl_diversity.evaluation.metrics import novelty_utility, reward_to_quality
    from trl_diversity.evaluation.noveltybench import fill_scores

    thresholds = args.quality_thresholds or list(QUALITY_THRESHOLDS)
    settings = {
        **_partition_settings(args, partition),
        "reward_model": args.reward_model,
        "quality_thresholds": thresholds,
    }
    journal = _journal(args, "scores.jsonl", {**settings, "patience": args.patience})
    if any(row.generations is None for row in missing):
        raise ValueError("a row has neither scores nor generations: there is nothing to score.")
    quality = generation.load_quality(args.reward_model)

    def score(row: Any) -> dict[str, Any]:
        rewards = quality([row.prompt or ""] * len(row.generations), row.generations)
        scores, class_scores = fill_scores(row, rewards, lambda reward: reward_to_quality(reward, thresholds))
        utility = novelty_utility(row.partition, scores, args.patience)
        return {
            "partition": row.partition,
            "raw_rewards": rewards,
            "generation_scores": scores,
            "partition_scores": class_scores,
            "utility": utility,
        }

    found = _completed(missing, journal, score, "score")
    scored = [replace(row, scores=found[row.id]["generation_scores"]) if row.id in found else row for row in rows]
    if args.quality_thresholds is None and args.reward_model.rstrip("/") != REWARD_MODEL:
        return scored, [
            f"the quality thresholds were made for {REWARD_MODEL}, not for {args.reward_model}: utility is on no "
            "known scale. Give `quality_thresholds`, such as the deciles of this reward on a reference model."
        ]
    return scored, []


def _journal(args: NoveltyBenchArguments, name: str, settings: dict[str, Any]) -> Any:
    from trl_diversity.evaluation.journal import Journal

    return None if args.output_dir is None else Journal(os.path.join(args.output_dir, name), settings)


def _completed(rows: list[Any], journal: Any, compute: Any, description: str) -> dict[str, dict[str, Any]]:
    """What `compute` gives for every row by id; rows of the journal are not computed again."""
    found = {row.id: journal.rows[row.id] for row in rows if journal is not None and row.id in journal}
    for row in _progress([row for row in rows if row.id not in found], description):
        found[row.id] = compute(row)
        if journal is not None:
            journal.append({"id": row.id, "prompt": row.prompt, "generations": row.generations} | found[row.id])
    return found


def _progress(items: Any, description: str, total: int | None = None, step: int = 1) -> Any:
    from tqdm import tqdm

    with tqdm(total=len(items) if total is None else total, desc=description, file=sys.stderr) as bar:
        for item in items:
            yield item
            bar.update(min(step, bar.total - bar.n))


def _partition_settings(args: NoveltyBenchArguments, partition: PartitionModelArguments) -> dict[str, Any]:
    names = ("clustering", "short_answer_rule", "diversity_text")
    source = {"input": None if args.input is None else os.path.basename(args.input)}
    return {**source, **partition.described(), **{name: getattr(args, name) for name in names}}


def _settings(
    args: NoveltyBenchArguments,
    partition: PartitionModelArguments,
    generation: GenerationArguments,
    rows: list[Any],
) -> dict[str, Any]:
    """What was used. A partition or scores that the file brings are none of ours."""
    settings = _partition_settings(args, partition)
    if all(row.partition is not None for row in rows):
        settings = {"input": settings["input"], "partition": "of the file"}
    if all(row.scores is not None for row in rows):
        settings["scores"] = "of the file"
    elif args.reward_model is not None:
        settings["reward_model"] = args.reward_model
        settings["quality_thresholds"] = args.quality_thresholds or list(QUALITY_THRESHOLDS)
    if args.prompts is not None:
        settings["generation"] = generation.described(args.model, PRESET)
    return settings


def _write_summary(path: str, summary: dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def _table(summary: dict[str, Any]) -> str:
    labels = {"mean_distinct": "distinct clusters", "mean_utility": "utility", "mean_distinct_4": "Distinct-4 (%)"}
    lines = [f"{summary['prompts']} prompts x {summary['generations_per_prompt']} generations"]
    for name, label in labels.items():
        scale = 100 if name == "mean_distinct_4" else 1
        if summary[name] is None:
            lines.append(f"  {label:<18} -")
            continue
        low, high = (scale * end for end in summary["ci"][name])
        lines.append(f"  {label:<18} {scale * summary[name]:.3f}  [{low:.3f}, {high:.3f}]")
    lines.append(f"  ({100 * summary['confidence']:g} % bootstrap intervals over prompts)")
    lines += [f"note: {warning}" for warning in summary["warnings"]]
    return "\n".join(lines)


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and evaluate."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.evaluate_noveltybench")
