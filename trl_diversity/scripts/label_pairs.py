# SPDX-License-Identifier: Apache-2.0
"""
Label pairs of generations with an LLM judge on an OpenAI-compatible server.

`trl-diversity label-pairs --input pairs.jsonl --output labelled.jsonl --base_url URL --model NAME [--prompt math]`
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from trl_diversity.scripts.files import require_input_and_output
from trl_diversity.scripts.parsing import StrictParser, export_environment


@dataclass
class LabelPairsArguments:
    """
    Arguments of `trl-diversity label-pairs`.

    Args:
        input (`str`):
            File of JSON lines with `prompt`, `generation_0` and `generation_1`.
        output (`str`):
            File to write: the same rows with `similar`. It appears once it is complete; until then the labels are in
            `<output without ending>.labels.jsonl`, where a stopped run is taken up.
        base_url (`str`):
            Address of the server, such as `http://localhost:8000/v1`. Its key, if it needs one, is in JUDGE_API_KEY.
        model (`str`):
            Name of the judge there.
        prompt (`str`, *optional*, defaults to `"writing"`):
            `"writing"`, `"math"`, a template or a file with one.
        yes_means (`str`, *optional*):
            `"same"` or `"different"`, for a template of one's own.
        unparsable (`str`, *optional*, defaults to `"error"`):
            What two replies without a verdict are: `"error"`, or `"different"`.
        max_tokens (`int`, *optional*, defaults to 1024):
            Most tokens of a reply.
        max_concurrency (`int`, *optional*, defaults to 16):
            Most requests under way at a time.
        timeout (`float`, *optional*, defaults to 60.0):
            Seconds to wait for an answer.
    """

    input: str = field(metadata={"help": "JSON lines with `prompt`, `generation_0`, `generation_1`."})
    output: str = field(metadata={"help": "File to write: the same rows with `similar`."})
    base_url: str = field(metadata={"help": "Address of the server. Its key, if any, is in JUDGE_API_KEY."})
    model: str = field(metadata={"help": "Name of the judge there."})
    prompt: str = field(default="writing", metadata={"help": "`writing`, `math`, a template or a file with one."})
    yes_means: Literal["same", "different"] | None = field(
        default=None, metadata={"help": "What [[yes]] says, for a template of your own."}
    )
    unparsable: Literal["error", "different"] = field(
        default="error", metadata={"help": "What two replies without a verdict are."}
    )
    max_tokens: int = field(default=1024, metadata={"help": "Most tokens of a reply."})
    max_concurrency: int = field(default=16, metadata={"help": "Most requests under way at a time."})
    timeout: float = field(default=60.0, metadata={"help": "Seconds to wait for an answer."})

    def __post_init__(self):
        for name in ("max_tokens", "max_concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is at least 1; got {getattr(self, name)}.")
        require_input_and_output(self.input, self.output)


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        LabelPairsArguments,
        prog=prog,
        usage="%(prog)s --input PAIRS.jsonl --output LABELLED.jsonl --base_url URL --model NAME [--option VALUE ...]",
        description="Label pairs of generations with an LLM judge on an OpenAI-compatible server.",
    )


def main(args: LabelPairsArguments) -> None:
    """
    Label what is not labelled yet, and write all rows.

    Raises:
        `SystemExit`: with a plain message, if the input is not as it must be, or the judge gives no answer. The labels
            so far are kept.
    """
    from tqdm import tqdm

    from trl_diversity.classifiers.labelling import check_rows, label_pairs, pair_key
    from trl_diversity.equivalence import JudgeEquivalence
    from trl_diversity.evaluation.journal import Journal, read_rows, write_rows

    try:
        rows = list(read_rows(args.input))
        check_rows(rows, args.input)
        judge = JudgeEquivalence(
            args.base_url,
            args.model,
            args.prompt,
            yes_means=args.yes_means,
            unparsable=args.unparsable,
            max_concurrency=args.max_concurrency,
            timeout=args.timeout,
            request_options={"temperature": 0.0, "max_tokens": args.max_tokens},
        )
        settings = {"model": args.model, "template": judge.prompt.template, "yes_means": judge.prompt.yes_means}
        journal = Journal(f"{os.path.splitext(args.output)[0]}.labels.jsonl", settings, key_name="pair")
        distinct = len({pair_key(row) for row in rows})
        with tqdm(total=distinct, desc="label-pairs", unit="pair") as progress:
            labelled = list(label_pairs(rows, judge, journal, 4 * args.max_concurrency, progress.update))
    except (OSError, ValueError) as error:
        raise SystemExit(f"label-pairs: error: {error}") from error
    write_rows(args.output, labelled)
    similar = sum(row["similar"] for row in labelled)
    print(f"{len(labelled)} pairs ({distinct} distinct), {similar} similar, {judge.pop_statistics()}.")
    print(f"Written to {args.output}.")


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and label."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.label_pairs")
