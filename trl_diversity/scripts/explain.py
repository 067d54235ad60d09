# SPDX-License-Identifier: Apache-2.0
"""
Show one past step, group by group: clusters, pair scores, quality, diversity, reward.

`trl-diversity explain completions.parquet [--step N] [--model NAME] [--html FILE.html]`
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_diversity.scripts.parsing import StrictParser, export_environment


_TEXT_COLUMNS = ("step", "prompt", "completion")
_FIRST = ("cluster", "quality", "diversity", "darling", "darl", "advantage")
_TABLE_FILE = re.compile(r"completions_(\d+)\.parquet")


@dataclass
class ExplainArguments:
    """
    Arguments of `trl-diversity explain`.

    Args:
        input (`str`):
            A completions table that training wrote with `log_completions: true`, or the directory with several of
            them: `<output_dir>` or `<output_dir>/completions`. It may be given without `--input`.
        step (`int`, *optional*):
            Step to show. The last one by default.
        group_size (`int`, *optional*):
            Completions per prompt. By default a group ends where the prompt changes.
        groups (`int`, *optional*):
            Only the first so many groups.
        model (`str`, *optional*):
            Equivalence model; with it, the scores of all pairs of a group are shown too.
        html (`str`, *optional*):
            Page to write, with the texts in full.
        characters (`int`, *optional*, defaults to `300`):
            Characters of a text that the terminal shows.
        device (`str`, *optional*), trust_remote_code (`bool`, *optional*, defaults to `False`):
            Of the equivalence model.
    """

    input: str = field(metadata={"help": "Completions table, or the directory with several of them."})
    step: int | None = field(default=None, metadata={"help": "Step to show. Default: the last one."})
    group_size: int | None = field(
        default=None, metadata={"help": "Completions per prompt. Default: a group ends where the prompt changes."}
    )
    groups: int | None = field(default=None, metadata={"help": "Only the first so many groups."})
    model: str | None = field(default=None, metadata={"help": "Equivalence model, to show the scores of all pairs."})
    html: str | None = field(default=None, metadata={"help": "Page to write, with the texts in full."})
    characters: int = field(default=300, metadata={"help": "Characters of a text that the terminal shows."})
    device: str | None = field(default=None, metadata={"help": "Device of the equivalence model."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Whether code from the checkpoint may run."})

    def __post_init__(self):
        if not Path(self.input).exists():
            raise ValueError(f"there is no file or directory {self.input!r}.")
        for name in ("group_size", "groups", "characters"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"`{name}` is at least 1; got {getattr(self, name)}.")


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        ExplainArguments,
        prog=prog,
        usage="%(prog)s COMPLETIONS.parquet [--step N] [--model NAME] [--html FILE.html] [--option VALUE ...]",
        description="Show one past step, group by group: clusters, pair scores, quality, diversity, reward.",
    )


def main(args: ExplainArguments) -> None:
    """
    Print the groups of a step, and write them as HTML if asked.

    Raises:
        `SystemExit`: with a message, if there is no such step or the file is no completions table.
    """
    from trl_diversity.evaluation.rendering import html_page, print_sections

    try:
        step, rows = read_step(Path(args.input), args.step)
        groups = split_groups(rows, args.group_size)[: args.groups]
        model = _load_model(args)
        sections = [_section(number, group, model) for number, group in enumerate(groups, start=1)]
    except (FileNotFoundError, ImportError, ValueError) as error:
        raise SystemExit(f"trl-diversity explain: {error}") from error
    print(f"step {step}: {len(rows)} completions")
    print_sections(sections, args.characters)
    if args.html is not None:
        Path(args.html).write_text(html_page(f"Step {step}", sections), encoding="utf-8")
        print(f"Written to {args.html}.")


def read_step(path: Path, step: int | None) -> tuple[int, list[dict[str, Any]]]:
    """
    The rows of one step of a completions table.

    Raises:
        `ValueError`: if there is none, naming those that there are.
    """
    import pandas as pd

    file = _find_file(path, step) if path.is_dir() else path
    try:
        table = pd.read_parquet(file)
    except Exception as error:  # pyarrow raises several kinds
        raise ValueError(f"{file} is no parquet file: {error}") from error
    if missing := [column for column in _TEXT_COLUMNS if column not in table.columns]:
        raise ValueError(
            f"{file} is no completions table: the column {missing[0]!r} is missing. `log_completions: true` writes "
            "one."
        )
    if table.empty:
        raise ValueError(f"{file} has no rows.")
    wanted = int(table["step"].max()) if step is None else step
    rows = table[table["step"] == wanted].to_dict("records")
    if not rows:
        known = ", ".join(str(value) for value in sorted(set(table["step"])))
        raise ValueError(f"{file} has no step {wanted}; it has {known}.")
    return wanted, rows


def _find_file(directory: Path, step: int | None) -> Path:
    files = {
        int(match.group(1)): file
        for folder in (directory, directory / "completions")
        for file in sorted(folder.glob("completions_*.parquet"))
        if (match := _TABLE_FILE.fullmatch(file.name))
    }
    if not files:
        raise ValueError(f"{directory} has no completions table. `log_completions: true` writes one.")
    if step is None:
        return files[max(files)]
    if step not in files:
        raise ValueError(f"{directory} has no step {step}; it has {', '.join(map(str, sorted(files)))}.")
    return files[step]


def split_groups(rows: list[dict[str, Any]], group_size: int | None = None) -> list[list[dict[str, Any]]]:
    """
    Cut the rows of a step into groups: of `group_size`, or else where the prompt changes.

    Raises:
        `ValueError`: if the rows are not whole groups of that size.
    """
    if group_size is not None:
        if len(rows) % group_size:
            raise ValueError(f"{len(rows)} completions are no whole groups of {group_size} (`group_size`).")
        return [rows[start : start + group_size] for start in range(0, len(rows), group_size)]
    groups: list[list[dict[str, Any]]] = []
    for row in rows:
        if groups and str(groups[-1][0]["prompt"]) == str(row["prompt"]):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _load_model(args: ExplainArguments) -> Any:
    if args.model is None:
        return None
    from trl_diversity.equivalence import load_equivalence_model

    return load_equivalence_model(args.model, device=args.device, trust_remote_code=args.trust_remote_code)


def _section(number: int, rows: list[dict[str, Any]], model: Any) -> Any:
    from trl_diversity.diversity.groups import completion_text, prompt_text
    from trl_diversity.evaluation.rendering import Cell, Section, TextTable, number_cell

    texts = [completion_text(_plain(row["completion"])) for row in rows]
    columns = _columns(rows)
    clusters = [_cluster(row) for row in rows]
    table = TextTable(
        ["", *columns, "completion"],
        [
            [
                Cell(str(index)),
                *(number_cell(_number(row[column], column), cluster=cluster) for column in columns),
                Cell(text, cluster),
            ]
            for index, (row, text, cluster) in enumerate(zip(rows, texts, clusters, strict=True))
        ],
    )
    count = len({cluster for cluster in clusters if cluster is not None})
    heading = f"group {number}: {len(rows)} completions" + (f", {count} clusters" if count else "")
    prompt = prompt_text(_plain(rows[0]["prompt"]))
    if model is None:
        return Section(heading, prompt, [table])
    notes = [f"Pairs above {model.threshold:g} are equivalent to {type(model).__name__}; it reads the full texts."]
    return Section(heading, prompt, [table, _pair_table(texts, prompt, model)], notes)


def _pair_table(texts: list[str], prompt: str, model: Any) -> Any:
    from trl_diversity.evaluation.rendering import Cell, TextTable

    pairs = [(i, j) for i in range(len(texts)) for j in range(i + 1, len(texts))]
    scores = model.score_pairs([(texts[i], texts[j]) for i, j in pairs], prompts=[prompt] * len(pairs))
    known = dict(zip(pairs, scores, strict=True))
    rows = [
        [Cell(str(i)), *(Cell(f"{known[i, j]:.2f}" if (i, j) in known else "") for j in range(len(texts)))]
        for i in range(len(texts))
    ]
    return TextTable(["P(same)", *map(str, range(len(texts)))], rows)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    """Columns to show: ours first, then the rewards and whatever else holds a number or a short text."""
    names = [name for name in rows[0] if name not in _TEXT_COLUMNS]
    used = [name for name in names if any(_number(row[name], name) is not None for row in rows)]
    return [name for name in _FIRST if name in used] + [name for name in used if name not in _FIRST]


def _cluster(row: dict[str, Any]) -> int | None:
    value = _number(row.get("cluster"), "cluster")
    return None if value is None else int(value)


def _number(value: Any, name: str) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if name == "cluster":
        return int(value)
    return float(value) if isinstance(value, float | int) and not isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    """A text, or messages as a list: parquet gives arrays."""
    return value if isinstance(value, str) else [dict(message) for message in value]


def with_input_option(argv: Sequence[str]) -> list[str]:
    """A command line whose first word, if it is no option, is the value of `--input`."""
    words = list(argv)
    return ["--input", *words] if words and not words[0].startswith("-") else words


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and explain."""
    import sys

    words = with_input_option(sys.argv[1:] if argv is None else argv)
    export_environment(words, prog)
    main(*make_parser(prog).parse_args_and_config(words))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.explain")
