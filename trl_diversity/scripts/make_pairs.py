# SPDX-License-Identifier: Apache-2.0
"""
Sample pairs of generations of several models, to be labelled.

`trl-diversity make-pairs --inputs a.jsonl b.jsonl --output pairs.jsonl [--option VALUE ...]`
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trl_diversity.scripts.parsing import StrictParser, export_environment


@dataclass
class MakePairsArguments:
    """
    Arguments of `trl-diversity make-pairs`.

    Args:
        inputs (`list[str]`):
            Files of JSON lines, one for each model, with `prompt` and `completions` (or `completion`).
        output (`str`):
            File to write: `prompt`, `generation_0`, `generation_1`, `model_0`, `model_1`.
        pairs_per_prompt (`int`, *optional*, defaults to 1):
            Most pairs of one prompt.
        across_models (`float`, *optional*, defaults to 0.5):
            Share of pairs from two models, in `[0, 1]`.
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws.
    """

    inputs: list[str] = field(metadata={"help": "JSON lines with `prompt` and `completions`, one file per model."})
    output: str = field(metadata={"help": "File of pairs to write."})
    pairs_per_prompt: int = field(default=1, metadata={"help": "Most pairs of one prompt."})
    across_models: float = field(default=0.5, metadata={"help": "Share of pairs from two models, in [0, 1]."})
    seed: int = field(default=0, metadata={"help": "Seed of the draws."})


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        MakePairsArguments,
        prog=prog,
        usage="%(prog)s --inputs A.jsonl B.jsonl ... --output PAIRS.jsonl [--option VALUE ...]",
        description="Sample pairs of generations of several models, to be labelled.",
    )


def main(args: MakePairsArguments) -> None:
    """
    Read generations and write pairs.

    Raises:
        `SystemExit`: with a plain message, if a file is not as it must be.
    """
    from trl_diversity.classifiers.pair_sampling import read_generations, sample_pairs
    from trl_diversity.evaluation.journal import write_rows

    try:
        generations = [generation for path in args.inputs for generation in read_generations(path)]
        rows = sample_pairs(generations, args.pairs_per_prompt, args.seed, args.across_models)
    except (OSError, ValueError) as error:
        raise SystemExit(f"make-pairs: error: {error}") from error
    write_rows(args.output, rows)
    across = sum(row["model_0"] != row["model_1"] for row in rows)
    print(f"{len(rows)} pairs of {len({row['prompt'] for row in rows})} prompts, {across} of two models.")
    print(f"Written to {args.output}.")


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and sample."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.make_pairs")
