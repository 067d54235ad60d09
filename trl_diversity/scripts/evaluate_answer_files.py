# SPDX-License-Identifier: Apache-2.0
"""
Write the answers that AlpacaEval 2.0, Arena-Hard and EQ-Bench creative writing v3 judge.

`trl-diversity evaluate answer-files --benchmark NAME --questions FILE --model MODEL --output_dir DIRECTORY [...]`
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trl_diversity.evaluation.eq_bench import ATTEMPTS, JUDGE_MODEL, SHORTEST_CHARACTERS
from trl_diversity.scripts.files import require_file
from trl_diversity.scripts.generation_arguments import GenerationArguments
from trl_diversity.scripts.parsing import StrictParser, export_environment


@dataclass
class AnswerFileArguments:
    """
    Arguments of `trl-diversity evaluate answer-files`, besides those of [`GenerationArguments`].

    Args:
        benchmark (`str`):
            `"alpaca-eval"`, `"arena-hard"` or `"eq-bench"`. It is also the decoding preset, unless `preset` is given.
        questions (`str`):
            The benchmark's own file: AlpacaEval's `alpaca_eval.json`, Arena-Hard's `question.jsonl`, EQ-Bench's
            `creative_writing_prompts_v3.json`.
        output_dir (`str`):
            Directory for the answer file. A run that was interrupted goes on there.
        model (`str`, *optional*):
            Model that answers; a server with one model needs none.
        name (`str`, *optional*):
            Name of the model in the answer file. By default the last part of `model`.
        answer_text (`str`, *optional*, defaults to `"after_think"`):
            Part of a completion that is the answer: without the reasoning, or `"full"`.
        limit (`int`, *optional*):
            Only the first so many questions.
        iterations (`int`, *optional*, defaults to `3`):
            EQ-Bench: pieces per prompt.
        run_id (`str`, *optional*, defaults to `"run"`):
            EQ-Bench: as given to its script.
        judge_model (`str`, *optional*, defaults to `"anthropic/claude-3.7-sonnet"`):
            EQ-Bench: the judge, as given to its script.
    """

    benchmark: Literal["alpaca-eval", "arena-hard", "eq-bench"] = field(
        metadata={"help": "`alpaca-eval`, `arena-hard` or `eq-bench`; it is also the decoding preset."}
    )
    questions: str = field(metadata={"help": "The benchmark's own file of questions."})
    output_dir: str = field(metadata={"help": "Directory for the answer file. An interrupted run goes on there."})
    model: str | None = field(default=None, metadata={"help": "Model that answers."})
    name: str | None = field(default=None, metadata={"help": "Name of the model in the answer file."})
    answer_text: Literal["full", "after_think"] = field(
        default="after_think", metadata={"help": "Part of a completion that is the answer."}
    )
    limit: int | None = field(default=None, metadata={"help": "Only the first so many questions."})
    iterations: int = field(default=3, metadata={"help": "EQ-Bench: pieces per prompt."})
    run_id: str = field(default="run", metadata={"help": "EQ-Bench: as given to its script."})
    judge_model: str = field(default=JUDGE_MODEL, metadata={"help": "EQ-Bench: as given to its script."})

    def __post_init__(self):
        require_file(self.questions, "questions")
        if self.model is None and self.name is None:
            raise ValueError("give a `model`, or with a server of one model its `name` in the answer file.")
        for name in ("limit", "iterations"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"`{name}` is at least 1; got {getattr(self, name)}.")
        self.name = self.name or os.path.basename(str(self.model).rstrip("/"))
        if "/" in self.name and self.benchmark == "arena-hard":
            raise ValueError(
                f"Arena-Hard finds a model by its file's name, so `name` has no slash; got {self.name!r}."
            )

    def file(self, ending: str) -> Path:
        """The answer file of this model with an ending."""
        return Path(self.output_dir) / f"{str(self.name).replace('/', '__')}{ending}"


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        (AnswerFileArguments, GenerationArguments),
        prog=prog,
        usage="%(prog)s --benchmark NAME --questions FILE --model MODEL --output_dir DIRECTORY [--option VALUE ...]",
        description="Write the answers that AlpacaEval 2.0, Arena-Hard and EQ-Bench creative writing v3 judge.",
    )


def main(args: AnswerFileArguments, generation: GenerationArguments) -> None:
    """
    Draw the answers that are missing and write the file.

    Raises:
        `SystemExit`: with a message, if the questions have another form or the model cannot be asked.
    """
    try:
        path, note = _WRITERS[args.benchmark](args, generation)
    except (ConnectionError, FileNotFoundError, ImportError, OSError, ValueError) as error:
        raise SystemExit(f"trl-diversity evaluate answer-files: {error}") from error
    print(f"Written to {path}. {note}")


def _write_alpaca_eval(args: AnswerFileArguments, generation: GenerationArguments) -> tuple[Path, str]:
    from trl_diversity.evaluation.answer_files import alpaca_eval_rows

    questions = _read_questions(args, "instruction", lambda row: row.get("instruction"))
    answers = _answer(args, generation, [row["instruction"] for row in questions])
    path = args.file(".json")
    rows = alpaca_eval_rows(questions, answers, str(args.name))
    path.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path, f"Judge it with `alpaca_eval --model_outputs {path}`."


def _write_arena_hard(args: AnswerFileArguments, generation: GenerationArguments) -> tuple[Path, str]:
    from trl_diversity.evaluation.answer_files import arena_hard_prompt, arena_hard_rows
    from trl_diversity.evaluation.journal import write_rows

    questions = _read_questions(args, "prompt", arena_hard_prompt)
    answers = _answer(args, generation, [arena_hard_prompt(row) for row in questions])
    count_tokens = _token_counter(modern="uid" in questions[0])
    path = args.file(".jsonl")
    write_rows(path, arena_hard_rows(questions, answers, str(args.name), count_tokens))
    note = (
        f"Lay it in Arena-Hard's data/<benchmark>/model_answer/ and name {args.name!r} in its judge's configuration."
    )
    if count_tokens is None:
        note += (
            " The numbers for style control were left out, since tiktoken is not installed: run Arena-Hard's "
            "utils/add_markdown_info.py."
        )
    return path, note


def _token_counter(modern: bool) -> Callable[[str], int] | None:
    """Arena-Hard's tokenizers: gpt-4o's since 2025, gpt-3.5-turbo's before."""
    try:
        import tiktoken

        encoding = tiktoken.encoding_for_model("gpt-4o" if modern else "gpt-3.5-turbo")
    except Exception:  # not installed, or its files cannot be had
        return None
    return lambda text: len(encoding.encode(text, disallowed_special=()))


def _write_eq_bench(args: AnswerFileArguments, generation: GenerationArguments) -> tuple[Path, str]:
    from trl_diversity.evaluation.eq_bench import runs_file, writing_tasks

    with open(args.questions, encoding="utf-8") as file:
        prompts = json.load(file)
    if not isinstance(prompts, dict):
        raise ValueError(f"{args.questions}: expected an object of prompts by id, got {type(prompts).__name__}")
    chosen = dict(list(prompts.items())[: args.limit])
    tasks = writing_tasks(chosen, args.iterations)
    keys = [f"{task['prompt_id']}, iteration {task['iteration']}" for task in tasks]
    pieces = _answer(args, generation, [task["prompt"] for task in tasks], keys, SHORTEST_CHARACTERS)
    path = args.file(".runs.json")
    content = runs_file(tasks, pieces, str(args.name), args.run_id, args.judge_model)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path, (
        f"Judge it with EQ-Bench's creative_writing_bench.py --test-model {args.name} "
        f"--judge-model {args.judge_model} --run-id {args.run_id} --iterations {args.iterations} --runs-file {path}."
    )


_WRITERS = {"alpaca-eval": _write_alpaca_eval, "arena-hard": _write_arena_hard, "eq-bench": _write_eq_bench}


def _read_questions(
    args: AnswerFileArguments, key: str, text: Callable[[dict[str, Any]], Any]
) -> list[dict[str, Any]]:
    """Rows of a JSON list or of JSON lines, each of which has a question."""
    from trl_diversity.evaluation.journal import read_rows

    with open(args.questions, encoding="utf-8") as file:
        is_list = file.read(1) == "["
        file.seek(0)
        rows = json.load(file) if is_list else list(read_rows(args.questions))
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not isinstance(text(row), str):
            raise ValueError(f"{args.questions}, row {number}: expected a question as `{key}`, got {row!r:.120}")
    if not rows:
        raise ValueError(f"{args.questions} has no questions.")
    return rows[: args.limit]


def _answer(
    args: AnswerFileArguments,
    generation: GenerationArguments,
    prompts: list[str],
    keys: list[str] | None = None,
    shortest: int = 0,
) -> list[str]:
    """One answer for each prompt, kept as they come; one that is too short is drawn again with another seed."""
    from tqdm import tqdm

    from trl_diversity.diversity.groups import narrow_text
    from trl_diversity.evaluation.journal import Journal

    sampling = replace(generation.sampling(args.benchmark), num_generations=1)
    keys = keys or [str(number) for number in range(len(prompts))]
    settings = {"benchmark": args.benchmark, **generation.described(args.model, args.benchmark)}
    journal = Journal(args.file(".journal.jsonl"), settings)
    missing = [(key, prompt) for key, prompt in zip(keys, prompts, strict=True) if key not in journal]
    generator: Any = generation.make_generator(args.model) if missing else None
    step = generation.generation_batch_size if generation.base_url or generation.backend == "vllm" else 1
    with tqdm(total=len(missing), desc=args.benchmark, file=sys.stderr) as bar:
        for start in range(0, len(missing), step):
            batch = missing[start : start + step]
            texts = [""] * len(batch)
            for attempt in range(ATTEMPTS if shortest else 1):
                again = [i for i, text in enumerate(texts) if len(text.strip()) < max(1, shortest)]
                drawn = generator(
                    [generation.prompt_for(batch[i][1]) for i in again],
                    replace(sampling, seed=sampling.seed + attempt),
                )
                for i, group in zip(again, drawn, strict=True):
                    texts[i] = narrow_text(group[0], args.answer_text)
            for (key, prompt), text in zip(batch, texts, strict=True):
                journal.append({"id": key, "prompt": prompt, "answer": text})
            bar.update(len(batch))
    return [journal.rows[key]["answer"] for key in keys]


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and answer."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.evaluate_answer_files")
