# SPDX-License-Identifier: Apache-2.0
"""From scored completions to Darl's rewards and their metrics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from trl_diversity.likelihood import PreparedCompletion, RowScores, aggregate, bounded_bonus, darl_reward
from trl_diversity.trainers.darl_config import DarlConfig


@dataclass(frozen=True)
class ScoredCompletion:
    """
    What the reward of one completion is made of.

    Attributes:
        answer (`str`):
            The completion's own answer, as parsed.
        reference_likelihood, answer_likelihood (`float`):
            r(y*, z, x) and r(y, z, x); NaN where there is none.
        malformed (`str` or `None`):
            Why the completion could not be scored.
        format_score (`float`):
            1 if the format is right, else 0.
        penalty (`float`):
            Repetition penalty, 0 or -1.
        baseline (`float`):
            r(y*|x), NaN where it is not used.
    """

    answer: str
    reference_likelihood: float
    answer_likelihood: float
    malformed: str | None
    format_score: float
    penalty: float
    baseline: float


def scored_completion(
    prepared: PreparedCompletion,
    scores: RowScores | None,
    aggregation: str,
    format_score: float,
    penalty: float,
    baseline: float,
) -> ScoredCompletion:
    """Join what was parsed from a completion with what the scorer says, `None` for a malformed one."""
    malformed = prepared.malformed or (scores.malformed if scores is not None else None)
    likelihoods = (math.nan, math.nan)
    if scores is not None and not malformed:
        likelihoods = aggregate(scores.reference, aggregation), aggregate(scores.answer, aggregation)
    return ScoredCompletion(prepared.span.answer, *likelihoods, malformed, format_score, penalty, baseline)


def combine_completions(args: DarlConfig, scored: Sequence[ScoredCompletion]) -> list[float]:
    """
    Rewards of the completions of a batch (see [`darl_reward`]), as configured, with the repetition penalty.

    Raises:
        `ValueError`: if there are completions that could be scored and not one of them has a finite likelihood.
    """
    rewards = darl_reward(
        [completion.reference_likelihood for completion in scored],
        [completion.answer_likelihood for completion in scored],
        alpha=args.alpha,
        delta_weight=args.delta_weight,
        threshold_type=args.threshold_type,
        gamma=args.gamma,
        tau=args.tau,
        aggregation=args.aggregation,
        debias=args.debias,
        baseline=[completion.baseline for completion in scored],
        malformed=[completion.malformed for completion in scored],
        format_score=[completion.format_score for completion in scored],
        format_weight=args.format_weight,
    )
    # Malformed completions have a reward, that of their format: they must not hide a broken policy
    well_formed = [reward for reward, one in zip(rewards, scored, strict=True) if one.malformed is None]
    if well_formed and all(math.isnan(reward) for reward in well_formed):
        raise ValueError(
            f"Not one of {len(well_formed)} references has a finite likelihood. The policy's output is broken (NaN "
            "weights, overflow in half precision), or the scorer is."
        )
    return [reward + completion.penalty for reward, completion in zip(rewards, scored, strict=True)]


def group_stds(rewards: Sequence[float], group_size: int) -> list[float]:
    """Population standard deviation of the known rewards of every group; NaN where none is known."""
    stds = []
    for start in range(0, len(rewards), group_size):
        known = [reward for reward in rewards[start : start + group_size] if not math.isnan(reward)]
        stds.append(float(np.std(known)) if known else math.nan)
    return stds


def darl_metrics(args: DarlConfig, scored: Sequence[ScoredCompletion]) -> dict[str, float]:
    """Metrics of the completions of one step, listed in docs/metrics.md."""
    metrics = {
        "darl/malformed_fraction": fmean(completion.malformed is not None for completion in scored),
        "darl/format_score": fmean(completion.format_score for completion in scored),
    }
    references = [c.reference_likelihood for c in scored if math.isfinite(c.reference_likelihood)]
    well_formed = sum(completion.malformed is None for completion in scored)
    metrics["darl/not_finite_fraction"] = (well_formed - len(references)) / len(scored)
    if not references:
        return metrics
    metrics["darl/reference_prob"] = fmean(references)
    answers = [c.answer_likelihood for c in scored if math.isfinite(c.answer_likelihood)]
    if not answers:
        return metrics
    metrics["darl/answer_prob"] = fmean(answers)
    bonuses = [
        bounded_bonus(
            completion.reference_likelihood,
            completion.answer_likelihood,
            threshold_type=args.threshold_type,
            gamma=args.gamma,
            tau=args.tau,
        )
        for completion in scored
        if math.isfinite(completion.reference_likelihood) and math.isfinite(completion.answer_likelihood)
    ]
    if bonuses:
        metrics["darl/delta"] = fmean(delta for delta, _ in bonuses)
        metrics["darl/bonus_fraction"] = sum(delta > 0 and inside for delta, inside in bonuses) / len(scored)
    return metrics
