# SPDX-License-Identifier: Apache-2.0
"""
Share of problems that k samples solve, by Math-Verify.

`trl-diversity evaluate pass-at-k --input FILE.jsonl [FILE.jsonl ...] [--json] [--option VALUE ...]`
`trl-diversity evaluate pass-at-k --problems FILE_OR_DATASET ... --model NAME --output_dir DIRECTORY [...]`
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trl_diversity.scripts.files import require_file
from trl_diversity.scripts.generation_arguments import GenerationArguments
from trl_diversity.scripts.parsing import StrictParser, export_environment


PRESET = "pass-at-k"
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass
class PassAtKArguments:
    """
    Arguments of `trl-diversity evaluate pass-at-k`, besides those of [`GenerationArguments`].

    Args:
        input (`list[str]`, *optional*):
            One file of JSON lines per benchmark, with `answer` and `completions`, or with `correct` (graded already).
        problems (`list[str]`, *optional*):
            Instead of `input`: files with `question` and `answer`, or Hub data sets, to draw completions for.
        split (`str`, *optional*, defaults to `"test"`):
            Split of Hub data sets.
        model (`str`, *optional*):
            Model that draws completions.
        output_dir (`str`, *optional*):
            Directory for samples, grades, results.json and pass_at_k.png. Needed with `problems`. A run that was
            interrupted goes on there.
        limit (`int`, *optional*):
            Only the first so many problems of each benchmark.
        instruction (`str`, *optional*):
            Text after every question. It must ask for the box: an answer outside of it is not found.
        k (`list[int]`, *optional*):
            Values of k. By default 1, 2, 4, ... 128, as far as every problem has so many samples.
        figure (`str`, *optional*):
            PNG file to draw the curves to.
        label (`str`, *optional*, defaults to `"this run"`):
            Name of this run in the figure.
        compare (`list[str]`, *optional*):
            results.json of other runs, drawn beside it.
        time_limit (`float`, *optional*, defaults to 5.0):
            Seconds for one verification.
        num_workers (`int`, *optional*, defaults to 2):
            Verifications at the same time.
        confidence (`float`, *optional*, defaults to 0.95):
            Of the intervals, which are drawn over problems.
        json (`bool`, *optional*, defaults to `False`):
            Print one JSON object instead of a table.
    """

    input: list[str] | None = field(
        default=None, metadata={"help": "A file per benchmark: JSON lines with `answer` and `completions`."}
    )
    problems: list[str] | None = field(
        default=None,
        metadata={"help": "Instead of `input`: problems to draw completions for, files or Hub data sets."},
    )
    split: str = field(default="test", metadata={"help": "Split of Hub data sets."})
    model: str | None = field(default=None, metadata={"help": "Model that draws completions."})
    output_dir: str | None = field(
        default=None, metadata={"help": "Directory for all that is computed. An interrupted run goes on there."}
    )
    limit: int | None = field(default=None, metadata={"help": "Only the first so many problems of each benchmark."})
    instruction: str = field(
        default=INSTRUCTION, metadata={"help": "Text after every question, which must ask for the box."}
    )
    k: list[int] | None = field(default=None, metadata={"help": "Values of k. Default: 1, 2, 4, ... 128."})
    figure: str | None = field(default=None, metadata={"help": "PNG file to draw the curves to."})
    label: str = field(default="this run", metadata={"help": "Name of this run in the figure."})
    compare: list[str] | None = field(
        default=None, metadata={"help": "results.json of other runs, drawn beside this one."}
    )
    time_limit: float = field(default=5.0, metadata={"help": "Seconds for one verification."})
    num_workers: int = field(default=2, metadata={"help": "Verifications at the same time."})
    confidence: float = field(default=0.95, metadata={"help": "Of the intervals, drawn over problems."})
    json: bool = field(default=False, metadata={"help": "Print one JSON object instead of a table."})

    def __post_init__(self):
        if (self.input is None) == (self.problems is None):
            raise ValueError("give either `input` (completions) or `problems` (to draw completions for).")
        for path in [*(self.input or []), *(self.compare or [])]:
            require_file(path)
        if self.problems is not None and self.output_dir is None:
            raise ValueError("`problems` needs an `output_dir`, where the completions are kept.")
        if self.input is not None and self.model is not None:
            raise ValueError("`model` draws completions for `problems`; those of `input` are there already.")
        names = [benchmark_name(path) for path in self.input or self.problems or []]
        if len(set(names)) < len(names):
            raise ValueError(f"two benchmarks have the same name: {', '.join(names)}. Rename a file.")
        if any(k < 1 for k in self.k or []):
            raise ValueError(f"`k` is at least 1; got {self.k}.")
        for name in ("time_limit", "num_workers", "limit"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0; got {getattr(self, name)}.")
        if not 0 < self.confidence < 1:
            raise ValueError(f"`confidence` lies in (0, 1); got {self.confidence}.")


def benchmark_name(path: str) -> str:
    """Name of a benchmark: that of its file without directory and ending, or of the data set."""
    return os.path.basename(path.rstrip("/")).removesuffix(".jsonl").removesuffix(".samples")


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        (PassAtKArguments, GenerationArguments),
        prog=prog,
        usage="%(prog)s (--input FILE.jsonl ... | --problems FILE.jsonl ... --model NAME --output_dir DIRECTORY) "
        "[--json] [--option VALUE ...]",
        description="Share of problems that k samples solve, by Math-Verify.",
    )


def main(args: PassAtKArguments, generation: GenerationArguments) -> None:
    """
    Draw and grade what is missing, print the curves, and draw them.

    Raises:
        `SystemExit`: with a message, if a file or an argument is wrong.
    """
    try:
        results = _evaluate(args, generation)
        others = {Path(path).parent.name or path: _read_json(path) for path in args.compare or []}
        figure = args.figure or (os.path.join(args.output_dir, "pass_at_k.png") if args.output_dir else None)
        if figure is not None:
            from trl_diversity.evaluation.plots import draw_pass_at_k

            draw_pass_at_k({args.label: results, **others}, figure)
    except (ConnectionError, FileNotFoundError, ImportError, KeyError, ValueError) as error:
        raise SystemExit(f"trl-diversity evaluate pass-at-k: {error}") from error
    if args.output_dir is not None:
        path = Path(args.output_dir) / "results.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(results, ensure_ascii=False) if args.json else _table(results))


def _evaluate(args: PassAtKArguments, generation: GenerationArguments) -> dict[str, Any]:
    from trl_diversity.evaluation.answer_checking import AnswerChecker
    from trl_diversity.evaluation.problems import benchmark_curve, default_ks, mean_curve

    drawn = _draw_all(args, generation) if args.problems is not None else _read_all(args)
    needs_checker = any(problem.correct is None for problems in drawn.values() for problem in problems)
    checker = AnswerChecker(args.num_workers, args.time_limit) if needs_checker else None
    try:
        graded = {name: _grade(name, problems, checker, args) for name, problems in drawn.items()}
    finally:
        if checker is not None:
            checker.close()
    ks = args.k or default_ks([problem for problems in graded.values() for problem in problems])
    benchmarks = {name: benchmark_curve(problems, ks, args.confidence) for name, problems in graded.items()}
    return {
        "benchmarks": benchmarks,
        "mean": mean_curve(benchmarks),
        "confidence": args.confidence,
        "statistics": dict(checker.statistics) if checker is not None else {},
        "warnings": _warnings(benchmarks, dict(checker.statistics) if checker is not None else {}),
        "settings": generation.described(args.model, PRESET) if args.problems is not None else {},
    }


def _read_all(args: PassAtKArguments) -> dict[str, Any]:
    from trl_diversity.evaluation.journal import read_rows
    from trl_diversity.evaluation.problems import parse_problems

    found = {}
    for path in args.input or []:
        problems = parse_problems(read_rows(path), path)[: args.limit]
        if without := [problem.id for problem in problems if problem.completions is None and problem.correct is None]:
            raise ValueError(f"{path}: the problem {without[0]!r} has neither `completions` nor `correct`.")
        found[benchmark_name(path)] = problems
    return found


def _draw_all(args: PassAtKArguments, generation: GenerationArguments) -> dict[str, Any]:
    """Problems of every benchmark with samples; the model is loaded if one lacks them."""
    from tqdm import tqdm

    from trl_diversity.evaluation.journal import Journal

    sampling, generator, found = generation.sampling(PRESET), None, {}
    for path in args.problems or []:
        name, problems = benchmark_name(path), _load_problems(path, args)
        settings = {"benchmark": name, "instruction": args.instruction, **generation.described(args.model, PRESET)}
        journal = Journal(os.path.join(str(args.output_dir), f"{name}.samples.jsonl"), settings)
        missing = [problem for problem in problems if problem.id not in journal]
        generator = generator or (generation.make_generator(args.model) if missing else None)
        step = generation.generation_batch_size if generation.base_url or generation.backend == "vllm" else 1
        with tqdm(total=len(missing), desc=f"sample {name}", file=sys.stderr) as bar:
            for start in range(0, len(missing), step):
                batch = missing[start : start + step]
                questions = [f"{problem.question}\n\n{args.instruction}".strip() for problem in batch]
                prompts = [generation.prompt_for(question) for question in questions]
                for problem, texts in zip(batch, generator(prompts, sampling), strict=True):  # type: ignore[misc]
                    row = {"id": problem.id, "question": problem.question, "answer": problem.answer}
                    journal.append(row | {"completions": texts})
                bar.update(len(batch))
        found[name] = [replace(problem, completions=journal.rows[problem.id]["completions"]) for problem in problems]
    return found


def _load_problems(path: str, args: PassAtKArguments) -> list[Any]:
    from trl_diversity.evaluation.journal import read_rows
    from trl_diversity.evaluation.problems import parse_problems

    if os.path.isfile(path):
        rows: Any = read_rows(path)
    elif path.endswith(".jsonl") or path.startswith((".", "/", "~")):
        raise FileNotFoundError(f"there is no file {path!r} (`problems`).")
    else:
        from datasets import load_dataset

        rows = load_dataset(path, split=args.split)
    problems = parse_problems(rows, path)[: args.limit]
    if without := [problem.id for problem in problems if not isinstance(problem.question, str)]:
        raise ValueError(f"{path}: the problem {without[0]!r} has no question: expected `question` or `problem`.")
    return problems


def _grade(name: str, problems: list[Any], checker: Any, args: PassAtKArguments) -> list[Any]:
    from tqdm import tqdm

    from trl_diversity.evaluation.journal import write_rows

    graded = []
    for problem in tqdm(problems, desc=f"verify {name}", file=sys.stderr):
        if problem.correct is None:
            correct = checker.check([problem.answer] * len(problem.completions), problem.completions)
            problem = replace(problem, correct=correct)
        graded.append(problem)
    if args.output_dir is not None:
        os.makedirs(args.output_dir, exist_ok=True)
        rows = ({"id": problem.id, "answer": problem.answer, "correct": problem.correct} for problem in graded)
        write_rows(os.path.join(args.output_dir, f"{name}.graded.jsonl"), rows)
    return graded


def _warnings(benchmarks: dict[str, Any], statistics: dict[str, int]) -> list[str]:
    warnings = []
    for name, result in benchmarks.items():
        for k, point in result["pass_at_k"].items():
            if point["problems"] < result["problems"]:
                warnings.append(
                    f"pass@{k} of {name} counts only the {point['problems']} of {result['problems']} problems that "
                    f"have {k} samples."
                )
    if failed := statistics.get("failed_verifications"):
        warnings.append(f"{failed} verifications ran past a limit or failed; their answers count as wrong.")
    without, total = statistics.get("without_answer", 0), statistics.get("completions", 0)
    if without:
        warnings.append(f"{without} of {total} completions have no \\boxed{{}} or <answer>; they count as wrong.")
    return warnings


def _read_json(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _table(results: dict[str, Any]) -> str:
    names = list(results["benchmarks"])
    width = max(map(len, [*names, "mean"]))
    ks = sorted({k for result in results["benchmarks"].values() for k in result["pass_at_k"]}, key=int)
    lines = [" " * width + "".join(f"{'@' + k:>8}" for k in ks) + "   problems x samples"]
    for name, result in results["benchmarks"].items():
        values = (f"{result['pass_at_k'][k]['value']:>8.3f}" for k in ks)
        fewest, most = result["samples"]
        samples = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        lines.append(f"{name:<{width}}{''.join(values)}   {result['problems']} x {samples}")
    if len(names) > 1:
        lines.append(f"{'mean':<{width}}" + "".join(f"{results['mean'][k]:>8.3f}" for k in ks))
    return "\n".join(lines + [f"note: {warning}" for warning in results["warnings"]])


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and evaluate."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.evaluate_pass_at_k")
