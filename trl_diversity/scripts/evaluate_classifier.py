# SPDX-License-Identifier: Apache-2.0
"""
Score any equivalence model, a judge included, on labelled pairs.

`trl-diversity evaluate-classifier --data pairs.jsonl --model NAME_OR_PATH [--json true] [--option VALUE ...]`
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from trl_diversity.scripts.parsing import StrictParser, export_environment


@dataclass
class EvaluateClassifierArguments:
    """
    Arguments of `trl-diversity evaluate-classifier`.

    Args:
        data (`str`):
            Labelled pairs: a .jsonl, .json or .parquet file, or a data set on the Hub.
        model (`str`, *optional*, defaults to `"default"`):
            Equivalence model: Hub name, directory or short name.
        server_urls (`list[str]`, *optional*):
            Addresses of vLLM servers of a pair classifier, instead of `model`.
        judge_base_url (`str`, *optional*):
            Address of a chat server, instead of `model`.
        judge_model (`str`, *optional*):
            Name of the judge there.
        judge_prompt (`str`, *optional*, defaults to `"writing"`):
            `"writing"`, `"math"`, a template or a file with one.
        judge_unparsable (`str`, *optional*, defaults to `"error"`):
            What two replies without a verdict are: `"error"`, or `"different"`.
        threshold (`float`, *optional*):
            The model's own by default.
        both_orders (`bool`, *optional*, defaults to `False`):
            Average the scores of both orders of a pair.
        split (`str`, *optional*, defaults to `"train"`):
            Split of a data set on the Hub.
        generation_0_column, generation_1_column, label_column, prompt_column (`str`, *optional*):
            Names of the columns.
        groups (`str`, *optional*):
            File of JSON lines with `prompt` and `completions`, on which the non-transitivity rate is measured.
        resamples (`int`, *optional*, defaults to 2000):
            Bootstrap samples of the pairs for the intervals.
        json (`bool`, *optional*, defaults to `False`):
            Print JSON instead of a table.
        scores_output (`str`, *optional*):
            File of JSON lines to write, one `score` per pair.
        device, dtype (`str`, *optional*):
            Of a local model.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run.
    """

    data: str = field(metadata={"help": "Labelled pairs: a .jsonl, .json or .parquet file, or a data set on the Hub."})
    model: str = field(default="default", metadata={"help": "Equivalence model: Hub name, directory or short name."})
    server_urls: list[str] | None = field(
        default=None, metadata={"help": "vLLM servers of a pair classifier, instead of `model`."}
    )
    judge_base_url: str | None = field(default=None, metadata={"help": "A chat server, instead of `model`."})
    judge_model: str | None = field(default=None, metadata={"help": "Name of the judge there."})
    judge_prompt: str = field(
        default="writing", metadata={"help": "`writing`, `math`, a template or a file with one."}
    )
    judge_unparsable: Literal["error", "different"] = field(
        default="error", metadata={"help": "What two replies without a verdict are."}
    )
    threshold: float | None = field(default=None, metadata={"help": "Default: the model's own."})
    both_orders: bool = field(default=False, metadata={"help": "Average the scores of both orders of a pair."})
    split: str = field(default="train", metadata={"help": "Split of a data set on the Hub."})
    generation_0_column: str = field(default="generation_0", metadata={"help": "Column of the first text."})
    generation_1_column: str = field(default="generation_1", metadata={"help": "Column of the second text."})
    label_column: str = field(default="similar", metadata={"help": "Column of the label: 0, 1, true or false."})
    prompt_column: str = field(default="prompt", metadata={"help": "Column of the prompt, if there is one."})
    groups: str | None = field(
        default=None,
        metadata={"help": "JSON lines with `prompt` and `completions`: measures how often a third pair contradicts."},
    )
    resamples: int = field(default=2000, metadata={"help": "Bootstrap samples for the intervals."})
    json: bool = field(default=False, metadata={"help": "Print JSON instead of a table."})
    scores_output: str | None = field(default=None, metadata={"help": "JSON lines to write: a score per pair."})
    device: str | None = field(default=None, metadata={"help": "Device of the model. Default: GPU if there is one."})
    dtype: str | None = field(default=None, metadata={"help": "Data type of the model."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Whether code from the checkpoint may run."})

    def __post_init__(self):
        if self.resamples < 1:
            raise ValueError(f"`resamples` is at least 1; got {self.resamples}.")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"`threshold` lies in [0, 1]; got {self.threshold}.")
        if (self.judge_base_url is None) != (self.judge_model is None):
            raise ValueError("`judge_base_url` and `judge_model` are given together.")
        if self.judge_base_url is not None and self.server_urls is not None:
            raise ValueError("give `server_urls` or `judge_base_url`, not both.")


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        EvaluateClassifierArguments,
        prog=prog,
        usage="%(prog)s --data PAIRS.jsonl [--model NAME_OR_PATH] [--json true] [--option VALUE ...]",
        description="Score any equivalence model, a judge included, on labelled pairs.",
    )


def main(args: EvaluateClassifierArguments) -> dict[str, Any]:
    """
    Score the pairs and print the metrics with their 95 % intervals.

    Raises:
        `SystemExit`: with a plain message, if the data is not as it must be or a server gives no answer.
    """
    from trl_diversity.classifiers.pairs import PairColumns, load_pairs

    columns = PairColumns(args.generation_0_column, args.generation_1_column, args.label_column, args.prompt_column)
    try:
        pairs = load_pairs(args.data, columns, args.split)
        report = evaluate(load_model(args), pairs, args.resamples, args.scores_output, args.groups)
    except (OSError, ValueError) as error:
        raise SystemExit(f"evaluate-classifier: error: {error}") from error
    report = {"model": _name(args), "data": args.data, **report}
    print(json.dumps(report, indent=2) if args.json else _table(report))
    return report


def load_model(args: EvaluateClassifierArguments) -> Any:
    """The equivalence model that the arguments name."""
    from trl_diversity.equivalence import JudgeEquivalence, ServerEquivalence, load_equivalence_model

    if args.judge_base_url is not None and args.judge_model is not None:
        return JudgeEquivalence(
            args.judge_base_url, args.judge_model, args.judge_prompt, unparsable=args.judge_unparsable
        )
    both_orders = {"both_orders": True} if args.both_orders else {}
    if args.server_urls is not None:
        return ServerEquivalence(args.server_urls, threshold=args.threshold, **both_orders)
    return load_equivalence_model(
        args.model,
        threshold=args.threshold,
        device=args.device,
        dtype=args.dtype,
        trust_remote_code=args.trust_remote_code,
        **both_orders,
    )


def evaluate(
    model: Any, pairs: Sequence[Any], resamples: int, scores_output: str | None = None, groups: str | None = None
) -> dict[str, Any]:
    """
    Metrics of an equivalence model with their 95 % intervals.

    Args:
        model ([`EquivalenceModel`]):
            Any object with `score_pairs` and `threshold`.
        pairs (`Sequence[LabelledPair]`):
            Labelled pairs.
        resamples (`int`):
            Bootstrap samples.
        scores_output (`str`, *optional*):
            File of JSON lines for the scores.
        groups (`str`, *optional*):
            File of groups for the non-transitivity rate.
    """
    import numpy as np

    from trl_diversity.classifiers.calibration import bootstrap_metrics, pair_metrics
    from trl_diversity.evaluation.journal import write_rows

    start = time.perf_counter()
    scores = model.score_pairs(
        [(pair.generation_0, pair.generation_1) for pair in pairs], [pair.prompt for pair in pairs]
    )
    seconds = time.perf_counter() - start
    if scores_output is not None:
        write_rows(scores_output, ({**vars(pair), "score": score} for pair, score in zip(pairs, scores, strict=True)))
    labels, values = np.array([pair.similar for pair in pairs]), np.asarray(scores)
    metrics = pair_metrics(labels, values, model.threshold)
    intervals = bootstrap_metrics(
        lambda drawn: pair_metrics(labels[drawn], values[drawn], model.threshold), labels, resamples
    )
    report: dict[str, Any] = {
        "pairs": len(pairs),
        "threshold": model.threshold,
        "seconds": seconds,
        "metrics": {
            name: {"value": value, "low": intervals[name][0], "high": intervals[name][1]}
            for name, value in metrics.items()
        },
    }
    if hasattr(model, "pop_statistics"):
        report["statistics"] = model.pop_statistics()
    if groups is not None:
        report |= _transitivity(model, groups)
    return report


def _transitivity(model: Any, path: str) -> dict[str, Any]:
    import numpy as np

    from trl_diversity.classifiers.calibration import non_transitivity_rate
    from trl_diversity.diversity.groups import completion_text, prompt_text
    from trl_diversity.evaluation.journal import read_rows

    matrices = []
    for number, row in enumerate(read_rows(path), start=1):
        if not isinstance(row.get("completions"), list) or "prompt" not in row:
            raise ValueError(f"{path}, row {number}: expected the keys `prompt` and `completions` (a list)")
        texts = [completion_text(completion) for completion in row["completions"]]
        indices = list(combinations(range(len(texts)), 2))
        prompts = [prompt_text(row["prompt"])] * len(indices)
        matrix = np.zeros((len(texts), len(texts)))
        scores = model.score_pairs([(texts[i], texts[j]) for i, j in indices], prompts)
        for (i, j), score in zip(indices, scores, strict=True):
            matrix[i, j] = score
        matrices.append(matrix)
    rate = non_transitivity_rate(matrices, model.threshold)
    return {"groups": len(matrices), "non_transitivity_rate": None if math.isnan(rate) else rate}


def _name(args: EvaluateClassifierArguments) -> str:
    return args.judge_model or ("servers" if args.server_urls else args.model)


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['model']} on {report['pairs']} pairs, threshold {report['threshold']:.4g}, "
        f"{report['seconds']:.1f} s (95 % intervals over pairs)"
    ]
    for name, metric in report["metrics"].items():
        lines.append(f"{name:<18} {metric['value']:.3f}   {metric['low']:.3f} to {metric['high']:.3f}")
    if "groups" in report:
        rate = report["non_transitivity_rate"]
        shown = "no triple has two same pairs" if rate is None else f"{rate:.3f}"
        lines.append(f"{'non-transitivity':<18} {shown}   ({report['groups']} groups)")
    return "\n".join(lines)


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and evaluate."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.evaluate_classifier")
