# SPDX-License-Identifier: Apache-2.0
"""
Preference pairs for the baseline DivPO from sampled and scored groups.

`trl-diversity build-divpo-pairs --input groups.jsonl --output pairs.jsonl [--option VALUE ...]`
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trl_diversity.evaluation.divpo_pairs import PairSelection, select_pair
from trl_diversity.scripts.files import require_input_and_output
from trl_diversity.scripts.parsing import StrictParser, export_environment


@dataclass
class DivpoSelectionArguments:
    """
    Which completions of a group become a pair.

    Args:
        min_quality (`float`, *optional*), max_quality (`float`, *optional*), top_fraction (`float`, *optional*,
        defaults to `0.5`), bottom_fraction (`float`, *optional*, defaults to `0.5`):
            See [`PairSelection`].
        diversity_measure (`str`, *optional*, defaults to `"partition"`):
            `"partition"` or `"ngram"`.
        partition_model (`str`, *optional*, defaults to `"default"`):
            Equivalence model of the partition.
        partition_threshold (`float`, *optional*):
            Probability above which two completions are one cluster. The checkpoint's own by default.
        ngram_n (`int`, *optional*, defaults to `4`):
            Words per n-gram.
    """

    min_quality: float | None = field(
        default=None, metadata={"help": "Good is a quality of at least this; needs `max_quality`."}
    )
    max_quality: float | None = field(
        default=None, metadata={"help": "Bad is a quality of at most this; needs `min_quality`."}
    )
    top_fraction: float = field(default=0.5, metadata={"help": "Else good is the best so large part of the group."})
    bottom_fraction: float = field(default=0.5, metadata={"help": "Else bad is the worst so large part of the group."})
    diversity_measure: Literal["partition", "ngram"] = field(
        default="partition", metadata={"help": "How diversity is measured."}
    )
    partition_model: str = field(default="default", metadata={"help": "Equivalence model of the partition."})
    partition_threshold: float | None = field(
        default=None, metadata={"help": "Probability above which two completions are one cluster."}
    )
    ngram_n: int = field(default=4, metadata={"help": "Words per n-gram."})

    def __post_init__(self):
        self.selection()

    def selection(self) -> PairSelection:
        """What is good and bad."""
        return PairSelection(self.min_quality, self.max_quality, self.top_fraction, self.bottom_fraction)

    def measure(self, device: str | None = None, trust_remote_code: bool = False) -> Any:
        """The diversity measure."""
        from trl_diversity.diversity.measures import NgramDiversity, PartitionDiversity

        if self.diversity_measure == "ngram":
            return NgramDiversity(self.ngram_n)
        from trl_diversity.equivalence import load_equivalence_model

        model = load_equivalence_model(
            self.partition_model,
            threshold=self.partition_threshold,
            device=device,
            trust_remote_code=trust_remote_code,
        )
        return PartitionDiversity(model)


@dataclass
class DivpoPairsArguments:
    """
    Arguments of `trl-diversity build-divpo-pairs`, besides those of [`DivpoSelectionArguments`].

    Args:
        input (`str`):
            JSON lines with `prompt`, `completions`, and `quality` (one number per completion) unless `reward_model` is
            given. `diversity` or `labels`, as `trl-diversity partition` writes them, are used where they are.
        output (`str`):
            File of pairs for TRL's DPO trainer: `prompt`, `chosen`, `rejected`.
        reward_model (`str`, *optional*):
            Reward that scores the completions, named as in a recipe's `reward_funcs`.
        device (`str`, *optional*), trust_remote_code (`bool`, *optional*, defaults to `False`):
            Of the models.
    """

    input: str = field(metadata={"help": "JSON lines with `prompt`, `completions` and `quality`."})
    output: str = field(metadata={"help": "File of pairs: `prompt`, `chosen`, `rejected`."})
    reward_model: str | None = field(
        default=None, metadata={"help": "Reward that scores the completions, named as in `reward_funcs`."}
    )
    device: str | None = field(default=None, metadata={"help": "Device of the models."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Whether code from checkpoints may run."})

    def __post_init__(self):
        require_input_and_output(self.input, self.output)


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        (DivpoPairsArguments, DivpoSelectionArguments),
        prog=prog,
        usage="%(prog)s --input FILE.jsonl --output FILE.jsonl [--option VALUE ...]",
        description="Preference pairs for DivPO: the most diverse good completion over the least diverse bad one.",
    )


def main(args: DivpoPairsArguments, selection: DivpoSelectionArguments) -> None:
    """
    Write the pairs and print how many groups gave one.

    Raises:
        `SystemExit`: with a message, if a row is wrong. Nothing is written then.
    """
    from trl_diversity.evaluation.journal import write_rows

    counts: Counter[str] = Counter()
    try:
        write_rows(args.output, _pairs(args, selection, counts))
    except (FileNotFoundError, ImportError, ValueError) as error:
        raise SystemExit(f"trl-diversity build-divpo-pairs: {error}") from error
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()) if reason != "pairs")
    print(f"{counts['pairs']} pairs of {sum(counts.values())} groups" + (f" (no pair: {skipped})" if skipped else ""))
    print(f"Written to {args.output}.")


def _pairs(
    args: DivpoPairsArguments, selection: DivpoSelectionArguments, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    from tqdm import tqdm

    from trl_diversity.evaluation.journal import read_rows

    scorer = _Scorer(args, selection)
    for number, row in enumerate(tqdm(read_rows(args.input), desc="pairs", file=sys.stderr), start=1):
        try:
            pair, reason = make_pair(row, *scorer(row), selection.selection())
        except ValueError as error:
            raise ValueError(f"{args.input}, row {number}: {error}") from None
        counts["pairs" if reason is None else reason] += 1
        if pair is not None:
            yield pair


def make_pair(
    row: dict[str, Any],
    quality: Sequence[float],
    diversity: Sequence[float],
    selection: PairSelection,
    finished: Sequence[bool] | None = None,
) -> tuple[dict[str, Any] | None, str | None]:
    """
    The pair of a row with `prompt` and `completions` in TRL's form, or the reason why it gives none.

    Conversational where the prompt is.
    """
    from trl_diversity.diversity.groups import completion_text

    texts = [completion_text(completion) for completion in row["completions"]]
    pair = select_pair(texts, quality, diversity, selection, finished)
    if pair.reason is not None:
        return None, pair.reason
    made: dict[str, Any] = {"prompt": row["prompt"]}
    for name, index in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        is_chat = isinstance(row["prompt"], list)
        made[name] = [{"role": "assistant", "content": texts[index]}] if is_chat else texts[index]
        made[f"{name}_quality"] = float(quality[index])
        made[f"{name}_diversity"] = float(diversity[index])
    return made, None


class _Scorer:
    """Quality and diversity of a row's completions; models are loaded for the first row that needs them."""

    def __init__(self, args: DivpoPairsArguments, selection: DivpoSelectionArguments):
        self.args, self.selection = args, selection
        self._measure: Any = None
        self._quality: Any = None

    def __call__(self, row: dict[str, Any]) -> tuple[list[float], list[float]]:
        for key, kinds in (("prompt", (str, list)), ("completions", (list,))):
            if not isinstance(row.get(key), kinds) or not row[key]:
                raise ValueError(f"expected `{key}`, got {row.get(key)!r:.80}")
        return self._qualities(row), self._diversities(row)

    def _qualities(self, row: dict[str, Any]) -> list[float]:
        from trl_diversity.diversity.groups import completion_text

        if self.args.reward_model is None:
            return _numbers(row, "quality")
        if self._quality is None:
            from trl_diversity.scripts.quality import load_quality

            self._quality = load_quality(
                self.args.reward_model, self.args.device, trust_remote_code=self.args.trust_remote_code
            )
        return self._quality(
            [row["prompt"]] * len(row["completions"]), [completion_text(c) for c in row["completions"]]
        )

    def _diversities(self, row: dict[str, Any]) -> list[float]:
        from trl_diversity.diversity.clustering import label_diversity
        from trl_diversity.diversity.groups import CompletionGroup, completion_text, prompt_text

        if row.get("diversity") is not None:
            return _numbers(row, "diversity")
        if row.get("labels") is not None:
            return label_diversity(row["labels"])
        if self._measure is None:
            self._measure = self.selection.measure(self.args.device, self.args.trust_remote_code)
        texts = [completion_text(completion) for completion in row["completions"]]
        return self._measure([CompletionGroup(prompt_text(row["prompt"]), texts)])[0].scores


def _numbers(row: dict[str, Any], key: str) -> list[float]:
    values = row.get(key)
    if not isinstance(values, list) or not all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    ):
        raise ValueError(f"expected `{key}` as a list of numbers, one per completion; got {values!r:.80}")
    return values


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and build pairs."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.build_divpo_pairs")
