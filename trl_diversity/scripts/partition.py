# SPDX-License-Identifier: Apache-2.0
"""
Sort the completions of every prompt into clusters of one meaning each.

`trl-diversity partition --input groups.jsonl --model NAME_OR_PATH --output out.jsonl [--option VALUE ...]`
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any, Literal

from trl_diversity.diversity.groups import CompletionGroup, GroupDiversity, completion_text, narrow_text, prompt_text
from trl_diversity.diversity.measures import PartitionDiversity
from trl_diversity.scripts.files import require_input_and_output
from trl_diversity.scripts.parsing import StrictParser, export_environment


@dataclass
class PartitionArguments:
    """
    Arguments of `trl-diversity partition`.

    Args:
        input (`str`):
            File of JSON lines with the keys `prompt` and `completions`, each text or messages as TRL writes them.
        output (`str`):
            File to write: the same lines with `labels` (the cluster of every completion, numbered by first
            appearance) and `diversity` (share of the others that mean something else, in `[0, 1]`). It appears once
            it is complete.
        model (`str`):
            Equivalence model: Hub name, directory or short name, as `load_equivalence_model` takes them.
        clustering (`str`, *optional*, defaults to `"closure"`):
            `"closure"`, `"greedy"` or `"pairwise"`, which makes no clusters: `labels` are null.
        threshold (`float`, *optional*):
            Probability in `[0, 1]` above which two completions are one cluster. The checkpoint's own by default.
        short_answer_rule (`bool`, *optional*, defaults to `False`):
            Settle pairs of at most five words by their common words.
        diversity_text (`str`, *optional*, defaults to `"full"`):
            Text of a completion that is compared: `"full"`, `"after_think"` or `"answer"`.
        batch_groups (`int`, *optional*, defaults to `64`):
            Groups that are judged together. It changes the speed, not the result.
        device (`str`, *optional*):
            Device of the model. The GPU if there is one by default.
        dtype (`str`, *optional*):
            Data type of the model. `float32` on CPU and `bfloat16` on GPU by default.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run.
    """

    input: str = field(metadata={"help": "File of JSON lines with the keys `prompt` and `completions`."})
    output: str = field(metadata={"help": "File to write: the same lines with `labels` and `diversity`."})
    model: str = field(metadata={"help": "Equivalence model: Hub name, directory or short name (such as `default`)."})
    clustering: Literal["closure", "greedy", "pairwise"] = field(
        default="closure",
        metadata={
            "help": "`closure` (transitive), `greedy` (NoveltyBench) or `pairwise` (raw judgements, no labels)."
        },
    )
    threshold: float | None = field(
        default=None,
        metadata={"help": "Probability above which two completions are one cluster. Default: the checkpoint's own."},
    )
    short_answer_rule: bool = field(
        default=False, metadata={"help": "Settle pairs of at most five words by their common words."}
    )
    diversity_text: Literal["full", "after_think", "answer"] = field(
        default="full", metadata={"help": "Text of a completion that is compared."}
    )
    batch_groups: int = field(default=64, metadata={"help": "Groups that are judged together."})
    device: str | None = field(default=None, metadata={"help": "Device of the model. Default: GPU if there is one."})
    dtype: str | None = field(
        default=None, metadata={"help": "Data type of the model. Default: float32 on CPU, bfloat16 on GPU."}
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "Whether code from the checkpoint may run."})

    def __post_init__(self):
        if self.batch_groups < 1:
            raise ValueError(f"`batch_groups` is at least 1; got {self.batch_groups}.")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"`threshold` lies in [0, 1]; got {self.threshold}.")
        require_input_and_output(self.input, self.output)


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        PartitionArguments,
        prog=prog,
        usage="%(prog)s --input FILE.jsonl --model NAME_OR_PATH --output FILE.jsonl [--option VALUE ...]",
        description="Sort the completions of every prompt into clusters of one meaning each.",
    )


def main(args: PartitionArguments) -> None:
    """
    Read groups, write them with their labels and diversity, and print a summary.

    Raises:
        `SystemExit`: naming file and line, if a line is no group. Nothing is written then.
    """
    from trl_diversity.equivalence import load_equivalence_model

    model = load_equivalence_model(
        args.model,
        threshold=args.threshold,
        device=args.device,
        dtype=args.dtype,
        trust_remote_code=args.trust_remote_code,
    )
    measure = PartitionDiversity(model, clustering=args.clustering, short_answer_rule=args.short_answer_rule)
    totals: Counter[str] = Counter()
    with _written_whole(args.output) as output:
        rows = _read_rows(args.input)
        while batch := list(islice(rows, args.batch_groups)):
            results = measure([_group(row, args.diversity_text) for row in batch])
            for row, result in zip(batch, results, strict=True):
                output.write(_line(row, result))
            totals.update(measure.pop_statistics())
            totals["groups"] += len(results)
            totals["clusters"] += sum(len(set(result.labels or [])) for result in results)
    print(_summary(totals, args))


def _read_rows(path: str) -> Iterator[dict[str, Any]]:
    """The lines of a file one by one, under a progress bar on stderr that counts its bytes."""
    from tqdm import tqdm

    with (
        open(path, "rb") as lines,
        tqdm(total=os.path.getsize(path), desc="partition", unit="B", unit_scale=True) as progress,
    ):
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield _checked_row(json.loads(line))
                except ValueError as error:
                    raise SystemExit(f"{path}, line {number}: {error}") from error
            progress.update(len(line))


def _checked_row(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with the keys `prompt` and `completions`, got {type(row).__name__}")
    if missing := [key for key in ("prompt", "completions") if key not in row]:
        raise ValueError(f"the key {missing[0]!r} is missing; there are {', '.join(map(repr, row)) or 'none'}")
    if not isinstance(row["completions"], list) or not row["completions"]:
        raise ValueError(f"`completions` is a list of at least one completion, got {row['completions']!r:.80}")
    for key, value in (("prompt", row["prompt"]), *(("completions", completion) for completion in row["completions"])):
        if not isinstance(value, str) and not (
            isinstance(value, list) and all(isinstance(message, dict) and "role" in message for message in value)
        ):
            raise ValueError(f"`{key}` holds {value!r:.80}: expected a text or a list of messages with a role")
    return row


def _group(row: dict[str, Any], diversity_text: str) -> CompletionGroup:
    texts = [narrow_text(completion_text(completion), diversity_text) for completion in row["completions"]]
    return CompletionGroup(prompt_text(row["prompt"]), texts)


def _line(row: dict[str, Any], result: GroupDiversity) -> str:
    return json.dumps({**row, "labels": result.labels, "diversity": result.scores}, ensure_ascii=False) + "\n"


def _summary(totals: Counter[str], args: PartitionArguments) -> str:
    groups = totals["groups"]
    clusters = f"{totals['clusters'] / groups:.2f} clusters per group, " if groups and totals["clusters"] else ""
    return (
        f"{groups} groups, {clusters}{totals['pairs_scored']} pairs asked, {totals['pairs_skipped']} pairs skipped. "
        f"Written to {args.output}."
    )


@contextmanager
def _written_whole(path: str) -> Iterator[IO[str]]:
    """A file that appears under its name once it is complete; an error leaves what was there before."""
    partial = f"{path}.partial"
    try:
        with open(partial, "w", encoding="utf-8") as output:
            yield output
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and partition."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.partition")
