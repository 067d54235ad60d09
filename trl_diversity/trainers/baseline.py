# SPDX-License-Identifier: Apache-2.0
"""Likelihood of each reference without any reasoning, under the policy as it is before the first step."""

from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from trl_diversity.distributed import exchange
from trl_diversity.likelihood import ScoringRow, aggregate, baseline_row
from trl_diversity.trainers.references import row_key, row_reference


if TYPE_CHECKING:
    from trl_diversity.trainers.darl_trainer import DarlTrainer

_ROWS_AT_ONCE = 256  # of each rank, between two updates of the progress bar


def score_baselines(trainer: "DarlTrainer") -> dict[str, float]:
    """
    r(y*|x) of all rows of the trainer's data sets (arXiv 2506.18254), dealt out over the ranks.

    A reference that cannot be scored (it is too long, or a tokenizer cannot spell it) has 0. Collective: every rank
    reaches this.

    Returns:
        `dict[str, float]`: likelihoods by [`row_key`], the same on every rank.

    Raises:
        `ValueError`: if the policy has been trained already.
    """
    if trainer.state.global_step:
        raise ValueError(
            "`debias=True`, but the checkpoint holds no likelihoods of the references under the initial policy, and "
            "the policy has moved since. Start the run anew, or set `debias=False`."
        )
    rows = _rows_of_data_sets(trainer)
    keys = list(rows)
    rank, world_size = trainer.accelerator.process_index, trainer.accelerator.num_processes
    baseline: dict[str, float] = {}
    step = _ROWS_AT_ONCE * world_size
    is_quiet = rank != 0 or trainer.args.disable_tqdm
    for start in tqdm(range(0, len(keys), step), desc="Baseline r(y*|x)", disable=is_quiet, leave=False):
        mine = keys[start : start + step][rank::world_size]
        error, scored = None, None
        prepared: list[ScoringRow | None] = []
        try:
            prepared = [_prepare(trainer, *rows[key]) for key in mine]
        except Exception as caught:
            error = caught
        exchange(None, error, rank)  # collective: every rank reaches this
        try:
            scored = list(zip(mine, _score(trainer, prepared), strict=True))
        except Exception as caught:
            error = caught
        for part in exchange(scored, error, rank):  # collective: every rank reaches this
            baseline.update(part)
    return baseline


def known_baseline(trainer: "DarlTrainer", row: dict[str, Any]) -> float:
    """
    r(y*|x) of a row, as it was computed before the first step.

    Raises:
        `ValueError`: if the row was in none of the data sets.
    """
    reference = row_reference(row, trainer.args.reference_column)
    key = row_key(row["prompt"], reference)
    if key not in trainer.darl_state.baseline:
        raise ValueError(
            f"The likelihood of the reference {reference!r} without reasoning is not known: its row was in none of "
            "the trainer's data sets when training began."
        )
    return trainer.darl_state.baseline[key]


def _rows_of_data_sets(trainer: "DarlTrainer") -> dict[str, tuple[Any, str]]:
    """Prompt and reference of every distinct row, by key, in the order of the data sets."""
    eval_dataset = trainer.eval_dataset
    eval_datasets = eval_dataset.values() if isinstance(eval_dataset, dict) else [eval_dataset]
    rows: dict[str, tuple[Any, str]] = {}
    for dataset in [trainer.train_dataset, *eval_datasets]:
        for row in dataset if dataset is not None else ():
            reference = row_reference(row, trainer.args.reference_column)
            rows.setdefault(row_key(row["prompt"], reference), (row["prompt"], reference))
    return rows


def _prepare(trainer: "DarlTrainer", prompt: Any, reference: str) -> ScoringRow | None:
    # One by one: the prompts of one data set may be conversations and those of another texts
    (prompt_ids,) = trainer._tokenize_prompts([prompt])[0]
    return baseline_row(
        prompt_ids, reference, trainer._tokenizer, trainer.args.answer_format, max_length=trainer.max_length
    )


def _score(trainer: "DarlTrainer", prepared: list[ScoringRow | None]) -> list[float]:
    scores = iter(trainer.score_rows([row for row in prepared if row is not None]))
    found = [None if row is None else next(scores) for row in prepared]
    return [
        0.0 if score is None or score.malformed else aggregate(score.reference, trainer.args.aggregation)
        for score in found
    ]
