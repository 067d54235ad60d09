# SPDX-License-Identifier: Apache-2.0
"""
Win rates per criterion from EQ-Bench's result files.

`trl-diversity evaluate eq-bench-results --input FILE.json [FILE.json ...] --models A B [--option VALUE ...]`
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trl_diversity.scripts.files import require_file
from trl_diversity.scripts.parsing import StrictParser, export_environment


@dataclass
class EqBenchResultsArguments:
    """
    Arguments of `trl-diversity evaluate eq-bench-results`.

    Args:
        input (`list[str]`):
            EQ-Bench's judged runs files, or its `elo_results.json`.
        models (`list[str]`):
            Two models: the win rates are the first one's.
        kind (`str`, *optional*, defaults to `"rubric"`):
            `"rubric"`: which of two pieces scored higher, from runs files. `"pairwise"`: which one the judge of pairs
            preferred, from `elo_results.json`.
        negative_criteria (`str`, *optional*):
            EQ-Bench's `data/negative_criteria.txt`, which names the criteria of which less is better.
        figure (`str`, *optional*):
            PNG file to draw the win rates to.
        json (`bool`, *optional*, defaults to `False`):
            Print one JSON object instead of a table.
    """

    input: list[str] = field(metadata={"help": "Judged runs files, or elo_results.json."})
    models: list[str] = field(metadata={"help": "Two models: the win rates are the first one's."})
    kind: Literal["rubric", "pairwise"] = field(
        default="rubric", metadata={"help": "`rubric` (scores of pieces) or `pairwise` (the judge of pairs)."}
    )
    negative_criteria: str | None = field(
        default=None, metadata={"help": "EQ-Bench's negative_criteria.txt: criteria of which less is better."}
    )
    figure: str | None = field(default=None, metadata={"help": "PNG file to draw the win rates to."})
    json: bool = field(default=False, metadata={"help": "Print one JSON object instead of a table."})

    def __post_init__(self):
        for path in [*self.input, *([self.negative_criteria] if self.negative_criteria else [])]:
            require_file(path)
        if len(self.models) != 2 or self.models[0] == self.models[1]:
            raise ValueError(f"`models` are two different ones; got {', '.join(self.models)}.")


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        EqBenchResultsArguments,
        prog=prog,
        usage="%(prog)s --input FILE.json [FILE.json ...] --models A B [--option VALUE ...]",
        description="Win rates per criterion from EQ-Bench's result files.",
    )


def main(args: EqBenchResultsArguments) -> None:
    """
    Print the win rates, and draw them if asked.

    Raises:
        `SystemExit`: with a message, if the files hold no such comparison.
    """
    from trl_diversity.evaluation.eq_bench import pairwise_win_rates, rubric_win_rates

    first, second = args.models
    try:
        contents = [_read(path) for path in args.input]
        if args.kind == "pairwise":
            rates = pairwise_win_rates(contents, first, second)
        else:
            runs = {
                f"{path} {key}": run
                for path, content in zip(args.input, contents, strict=True)
                for key, run in content.items()
            }
            rates = rubric_win_rates(runs, first, second, _negative(args.negative_criteria))
        if args.figure is not None:
            from trl_diversity.evaluation.plots import draw_win_rates

            draw_win_rates(rates, args.figure, first, second)
    except (ImportError, ValueError) as error:
        raise SystemExit(f"trl-diversity evaluate eq-bench-results: {error}") from error
    result: dict[str, Any] = {"first": first, "second": second, "kind": args.kind, "criteria": rates}
    result["warnings"] = (
        ["no negative_criteria: of every criterion, more was taken to be better."]
        if args.kind == "rubric" and args.negative_criteria is None
        else []
    )
    print(json.dumps(result, ensure_ascii=False) if args.json else _table(result))


def _read(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        try:
            content = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object, got {type(content).__name__}")
    return content


def _negative(path: str | None) -> list[str]:
    if path is None:
        return []
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def _table(result: dict[str, Any]) -> str:
    width = max(map(len, result["criteria"]))
    lines = [f"{result['first']} against {result['second']}: wins in %, a tie counts half"]
    ordered = sorted(result["criteria"].items(), key=lambda item: -item[1]["win_rate"])
    lines += [f"  {name:<{width}} {100 * rate['win_rate']:>6.1f}  of {rate['pairs']}" for name, rate in ordered]
    return "\n".join(lines + [f"note: {warning}" for warning in result["warnings"]])


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and read results."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.evaluate_eq_bench_results")
