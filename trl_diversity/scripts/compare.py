# SPDX-License-Identifier: Apache-2.0
"""
Show completions of several checkpoints side by side, their clusters coloured.

`trl-diversity compare --prompt TEXT --models A B [-n 4] [--html FILE.html] [--option VALUE ...]`
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trl_diversity.scripts.files import require_file
from trl_diversity.scripts.generation_arguments import GenerationArguments
from trl_diversity.scripts.parsing import StrictParser, export_environment
from trl_diversity.scripts.partition_model import PartitionModelArguments


DEFAULT_COMPLETIONS = 4
DEFAULT_MAX_TOKENS = 512


@dataclass
class CompareArguments:
    """
    Arguments of `trl-diversity compare`, besides those of [`PartitionModelArguments`] and
    [`GenerationArguments`].

    Args:
        models (`list[str]`):
            Checkpoints, or names under which the server of `base_url` has them.
        prompt (`list[str]`, *optional*):
            Prompts.
        prompts (`str`, *optional*):
            File of JSON lines with `prompt`.
        clustering (`str`, *optional*, defaults to `"closure"`):
            `"closure"` or `"greedy"`. Completions of all checkpoints are sorted together: one colour is one meaning.
        html (`str`, *optional*):
            Page to write, with the texts in full.
        characters (`int`, *optional*, defaults to `300`):
            Characters of a text that the terminal shows.
    """

    models: list[str] = field(metadata={"help": "Checkpoints, or names of models on the server of `base_url`."})
    prompt: list[str] | None = field(default=None, metadata={"help": "Prompts."})
    prompts: str | None = field(default=None, metadata={"help": "File of JSON lines with `prompt`."})
    clustering: Literal["closure", "greedy"] = field(
        default="closure", metadata={"help": "`closure` (transitive) or `greedy` (NoveltyBench)."}
    )
    html: str | None = field(default=None, metadata={"help": "Page to write, with the texts in full."})
    characters: int = field(default=300, metadata={"help": "Characters of a text that the terminal shows."})

    def __post_init__(self):
        if not self.prompt and self.prompts is None:
            raise ValueError("give a `prompt`, or a file of `prompts`.")
        if self.prompts is not None:
            require_file(self.prompts, "prompts")
        if len(set(self.models)) < len(self.models):
            raise ValueError(f"a model is named twice: {', '.join(self.models)}.")
        if self.characters < 1:
            raise ValueError(f"`characters` is at least 1; got {self.characters}.")


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        (CompareArguments, PartitionModelArguments, GenerationArguments),
        prog=prog,
        usage="%(prog)s --prompt TEXT --models A B [-n 4] [--html FILE.html] [--option VALUE ...]",
        description="Show completions of several checkpoints side by side, their clusters coloured.",
    )


def main(args: CompareArguments, partition: PartitionModelArguments, generation: GenerationArguments) -> None:
    """
    Draw, sort, print, and write HTML if asked.

    Raises:
        `SystemExit`: with a message, if a model or a file is wrong.
    """
    from trl_diversity.evaluation.rendering import html_page, print_sections

    generation.num_generations = generation.num_generations or DEFAULT_COMPLETIONS
    generation.max_tokens = generation.max_tokens or DEFAULT_MAX_TOKENS
    try:
        prompts = [*(args.prompt or []), *_read_prompts(args.prompts)]
        drawn = {name: _draw(name, prompts, generation) for name in args.models}
        model = partition.load(generation.device, trust_remote_code=generation.trust_remote_code)
        sections = _sections(prompts, drawn, args.clustering, model)
    except (ConnectionError, FileNotFoundError, ImportError, OSError, ValueError) as error:
        raise SystemExit(f"trl-diversity compare: {error}") from error
    print_sections(sections, args.characters)
    if args.html is not None:
        Path(args.html).write_text(html_page("Completions side by side", sections), encoding="utf-8")
        print(f"Written to {args.html}.")


def _read_prompts(path: str | None) -> list[Any]:
    from trl_diversity.evaluation.journal import read_rows

    if path is None:
        return []
    rows = list(read_rows(path))
    if without := [number for number, row in enumerate(rows, start=1) if not row.get("prompt")]:
        raise ValueError(f"{path}, row {without[0]}: expected a `prompt`")
    return [row["prompt"] for row in rows]


def _draw(model: str, prompts: list[Any], generation: GenerationArguments) -> list[list[str]]:
    print(f"drawing from {model} ...", file=sys.stderr)
    generator = generation.make_generator(model)
    sampling = generation.sampling("noveltybench")
    return generator([generation.prompt_for(prompt) for prompt in prompts], sampling)


def _sections(prompts: list[Any], drawn: dict[str, list[list[str]]], clustering: str, model: Any) -> list[Any]:
    from trl_diversity.diversity.groups import CompletionGroup, prompt_text
    from trl_diversity.diversity.measures import PartitionDiversity

    groups = [
        CompletionGroup(prompt_text(prompt), [text for texts in drawn.values() for text in texts[index]])
        for index, prompt in enumerate(prompts)
    ]
    results = PartitionDiversity(model, clustering=clustering)(groups)
    return [
        _section(group.prompt, list(drawn), group.completions, result.labels or [])
        for group, result in zip(groups, results, strict=True)
    ]


def _section(prompt: str, models: list[str], completions: list[str], labels: list[int]) -> Any:
    """A column for each model; `completions` and `labels` hold those of the first model first. Without colours, the
    numbers tell the clusters."""
    from trl_diversity.evaluation.rendering import Cell, Section, TextTable

    n = len(completions) // len(models)
    columns = [
        [Cell(f"[{labels[i]}] {completions[i]}", labels[i]) for i in range(start, start + n)]
        for start in range(0, len(completions), n)
    ]
    counts = [len({cell.cluster for cell in column}) for column in columns]
    headers = [f"{model}: {count} of {n} distinct" for model, count in zip(models, counts, strict=True)]
    heading = f"{len(completions)} completions, {len(set(labels))} clusters"
    return Section(heading, prompt, [TextTable(headers, list(zip(*columns, strict=True)))])


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and compare."""
    words = ["--num_generations" if word == "-n" else word for word in (sys.argv[1:] if argv is None else argv)]
    export_environment(words, prog)
    main(*make_parser(prog).parse_args_and_config(words))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.compare")
