# SPDX-License-Identifier: Apache-2.0
"""
Prepare a published data set for training: `trl-diversity prepare-data NAME --model POLICY --output DIRECTORY`.

NAME is wildchat, deepscaler, webinstruct or noveltybench. Rows are streamed, filtered, de-duplicated and sampled.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from trl_diversity.data.preparation import prepare
from trl_diversity.data.sources import SOURCES, Source
from trl_diversity.data.writing import counts_of, write_prepared
from trl_diversity.scripts.parsing import StrictParser, export_environment


@dataclass
class PrepareDataArguments:
    """
    Arguments of `trl-diversity prepare-data`.

    Args:
        name (`str`):
            `"wildchat"`, `"deepscaler"`, `"webinstruct"` or `"noveltybench"`; may stand first, without `--name`.
        output (`str`):
            Directory for `train.parquet`, `counts.json` and the card.
        model (`str`, *optional*):
            The policy, whose tokenizer and chat template count tokens. Needed where there is a limit.
        source (`str`, *optional*):
            Another place of the same data: a Hub name, a `.jsonl`, `.json` or `.parquet` file, a pattern of them, or a
            directory. The published data set by default.
        split (`str`, *optional*):
            Split to read. The source's by default (`curated` or `wildchat` for noveltybench).
        num_samples (`int`, *optional*):
            Rows to keep: 10,000 for wildchat and deepscaler, as the paper, and all for the others. 0 keeps all.
        max_prompt_tokens (`int`, *optional*):
            Most tokens of a prompt, the chat template's included: 512 (wildchat), 1024 (deepscaler) or 2048
            (webinstruct) by default, none for noveltybench. 0 is no limit.
        seed (`int`, *optional*, defaults to `0`):
            Of the sample and its order.
        language (`str`, *optional*, defaults to `"English"`):
            Language of wildchat's conversations, or `"all"`.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the tokenizer's checkpoint may run.
    """

    name: Literal["wildchat", "deepscaler", "webinstruct", "noveltybench"] = field(
        metadata={"help": "The data set; may stand first, without --name."}
    )
    output: str = field(metadata={"help": "Directory for train.parquet, counts.json and the data card."})
    model: str | None = field(
        default=None, metadata={"help": "The policy, whose tokenizer and chat template count tokens."}
    )
    source: str | None = field(
        default=None, metadata={"help": "Another place of the same data: Hub name, file, pattern or directory."}
    )
    split: str | None = field(default=None, metadata={"help": "Split to read. Default: the source's."})
    num_samples: int | None = field(
        default=None,
        metadata={"help": "Rows to keep. Default: 10000 for wildchat and deepscaler, else all. 0: all."},
    )
    max_prompt_tokens: int | None = field(
        default=None,
        metadata={"help": "Most tokens of a prompt. Default: 512, 1024 or 2048, as the papers. 0: no limit."},
    )
    seed: int = field(default=0, metadata={"help": "Of the sample and its order."})
    language: str = field(default="English", metadata={"help": "Language of wildchat's conversations, or `all`."})
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Whether code from the tokenizer's checkpoint may run."}
    )

    def __post_init__(self):
        published = SOURCES[self.name]
        for key in ("num_samples", "max_prompt_tokens"):
            value = getattr(self, key)
            if value is not None and value < 0:
                raise ValueError(f"`{key}` is at least 0 (no limit); got {value}.")
            setattr(self, key, getattr(published, key) if value is None else value or None)
        self.split = self.split or published.split
        if self.max_prompt_tokens is not None and self.model is None:
            raise ValueError(
                f"`model` is missing: the limit of {self.max_prompt_tokens} tokens is counted with the policy's "
                "tokenizer. Name it, or set `--max_prompt_tokens 0`."
            )


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        PrepareDataArguments,
        prog=prog,
        usage="%(prog)s {wildchat,deepscaler,webinstruct,noveltybench} --model POLICY --output DIRECTORY "
        "[--option VALUE ...]",
        description="Filter, de-duplicate and sample the prompts of a published data set.",
    )


def main(args: PrepareDataArguments) -> None:
    """Stream, filter, sample, write, and print the counts."""
    source = SOURCES[args.name]
    prepared = prepare(
        _rows(args, source),
        source,
        tokenizer=_tokenizer(args),
        max_prompt_tokens=args.max_prompt_tokens,
        num_samples=args.num_samples,
        seed=args.seed,
        language=args.language,
    )
    made = {**vars(args), "command": _command(args), "model": _shown(args.model)}
    write_prepared(args.output, prepared, source, made)
    for name, count in counts_of(prepared).items():
        print(f"{name}: {count}")
    print(f"Written to {os.path.join(args.output, 'train.parquet')}.")


def _rows(args: PrepareDataArguments, source: Source) -> Iterable[Any]:
    """The rows under a progress bar, read one after another, only the columns that count."""
    from tqdm import tqdm

    from trl_diversity.scripts.training_data import load_split

    reading = SimpleNamespace(dataset_config=None, dataset_streaming=True, dataset_train_split=args.split)
    stream: Any = load_split(reading, args.source or source.hub_name, "dataset_train_split")
    if stream.column_names is not None:
        if missing := [column for column in source.columns if column not in stream.column_names]:
            raise ValueError(
                f"{args.source or source.hub_name} has no column {missing[0]!r}, which {source.name} has, but "
                f"{', '.join(map(repr, stream.column_names))}."
            )
        stream = stream.select_columns(list(source.columns))
    return tqdm(stream, desc=source.name, unit=" rows")


def _tokenizer(args: PrepareDataArguments) -> Any:
    if args.max_prompt_tokens is None:
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(args.model, trust_remote_code=args.trust_remote_code)


def _command(args: PrepareDataArguments) -> str:
    """The command that makes the same rows, without a path of this machine."""
    options = {"model": _shown(args.model), "source": _shown(args.source), "split": args.split, "seed": args.seed}
    options |= {"num_samples": args.num_samples or 0, "max_prompt_tokens": args.max_prompt_tokens or 0}
    given = " ".join(f"--{key} {value}" for key, value in options.items() if value is not None)
    language = f" --language {args.language}" if args.name == "wildchat" else ""
    return f"trl-diversity prepare-data {args.name} {given}{language} --output DIRECTORY"


def _shown(name_or_path: str | None) -> str | None:
    if name_or_path is None or not (os.path.exists(name_or_path) or os.path.isabs(name_or_path)):
        return name_or_path
    return os.path.basename(os.path.normpath(name_or_path))


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and prepare the data."""
    import sys

    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-"):
        words = ["--name", *words]
    export_environment(words, prog)
    main(*make_parser(prog).parse_args_and_config(words))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.prepare_data")
