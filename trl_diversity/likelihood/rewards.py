# SPDX-License-Identifier: Apache-2.0
"""DARL's reward: the likelihood of the reference, and a bonus for answers that differ from it within bounds."""

import math
from collections.abc import Sequence


AGGREGATIONS = ("mean_prob", "mean_logprob", "product", "geometric_mean")
THRESHOLD_TYPES = ("dynamic", "static")


def aggregate(probabilities: Sequence[float], how: str = "mean_prob") -> float:
    """
    Likelihood r(y, z, x) of an answer from the probabilities of its tokens (arXiv 2506.18254).

    Args:
        probabilities (`Sequence[float]`):
            Probability of every token of the answer, in `[0, 1]`.
        how (`str`, *optional*, defaults to `"mean_prob"`):
            - `"mean_prob"`: mean of the probabilities, in `[0, 1]`. The papers' choice.
            - `"mean_logprob"`: mean of their logarithms, in nats, at most 0.
            - `"product"`: probability of the whole answer, in `[0, 1]`.
            - `"geometric_mean"`: `exp` of the mean of the logarithms, in `[0, 1]`.

    Returns:
        `float`: NaN if there is no token or a probability is NaN; minus infinity if `"mean_logprob"` meets a 0.

    Raises:
        `ValueError`: if `how` is unknown or a probability lies outside `[0, 1]`.
    """
    if how not in AGGREGATIONS:
        raise ValueError(f"aggregation {how!r} is unknown; expected one of {', '.join(AGGREGATIONS)}")
    if any(math.isnan(value) for value in probabilities) or not len(probabilities):
        return math.nan
    if not all(0 <= value <= 1 for value in probabilities):
        raise ValueError(f"probabilities must lie in [0, 1], got {list(probabilities)}; pass no log-probabilities")
    if how == "mean_prob":
        return math.fsum(probabilities) / len(probabilities)
    if how == "product":
        return math.prod(probabilities)
    if min(probabilities) == 0:
        return 0.0 if how == "geometric_mean" else -math.inf
    mean = math.fsum(math.log(value) for value in probabilities) / len(probabilities)
    return math.exp(mean) if how == "geometric_mean" else mean


def bounded_bonus(
    reference: float,
    answer: float,
    *,
    threshold_type: str = "dynamic",
    gamma: float = 8.0,
    tau: float | None = None,
) -> tuple[float, bool]:
    """
    How much less likely the own answer is than the reference, and whether that is within bounds (arXiv 2601.14700).

    `delta = max(r(y*) - r(y), 0)`; within bounds is `delta <= tau`, the boundary included.

    Args:
        reference (`float`):
            r(y*, z, x), never debiased.
        answer (`float`):
            r(y, z, x).
        threshold_type (`str`, *optional*, defaults to `"dynamic"`):
            `"dynamic"`: tau is `r(y*, z, x) / gamma`. `"static"`: tau is the argument.
        gamma (`float`, *optional*, defaults to `8.0`):
            For the dynamic threshold. Above 0.
        tau (`float`, *optional*):
            For the static threshold. At least 0.

    Returns:
        `tuple[float, bool]`: delta, at least 0, and whether it is within bounds; NaN and `False` if a likelihood is
        not finite.

    Raises:
        `ValueError`: if a setting is unknown, out of range or missing.
    """
    _check_threshold(threshold_type, gamma, tau)
    if not (math.isfinite(reference) and math.isfinite(answer)):
        return math.nan, False
    delta = max(reference - answer, 0.0)
    threshold = tau if threshold_type == "static" and tau is not None else reference / gamma
    return delta, delta <= threshold


def darl_reward(
    reference: Sequence[float],
    answer: Sequence[float] | None,
    *,
    alpha: float = 1.0,
    delta_weight: float = 0.01,
    threshold_type: str = "dynamic",
    gamma: float = 8.0,
    tau: float | None = None,
    aggregation: str = "mean_prob",
    debias: bool = False,
    baseline: Sequence[float] | None = None,
    malformed: Sequence[str | bool | None] | None = None,
    format_score: Sequence[float] | None = None,
    format_weight: float = 0.1,
) -> list[float]:
    """
    Reward of each completion (arXiv 2601.14700): `alpha r(y*) + delta_weight delta 1[delta <= tau]`, then the format.

    The order is fixed: debias, clip to `[0, 1]`, alpha; tau and delta use the raw r(y*); then the format is mixed in.
    RLPR (arXiv 2506.18254) is `delta_weight=0, debias=True`.

    Args:
        reference (`Sequence[float]`):
            r(y*, z, x) of every completion. Read only where the completion is not malformed.
        answer (`Sequence[float]`, *optional*):
            r(y, z, x) of every completion. Not needed if `delta_weight` is 0.
        alpha (`float`, *optional*, defaults to `1.0`):
            Weight of the reference's likelihood.
        delta_weight (`float`, *optional*, defaults to `0.01`):
            Weight of the bonus, beta in the paper.
        threshold_type, gamma, tau:
            See [`bounded_bonus`].
        aggregation (`str`, *optional*, defaults to `"mean_prob"`):
            How the likelihoods were aggregated. A mean of log-probabilities is negative, so a dynamic threshold on it
            would be too: refused.
        debias (`bool`, *optional*, defaults to `False`):
            Replace r(y*, z, x) by `clip(r(y*, z, x) - r(y*|x), 0, 1)` before alpha.
        baseline (`Sequence[float]`, *optional*):
            r(y*|x) of every completion's prompt under the initial policy. Needed if `debias`.
        malformed (`Sequence[str | bool | None]`, *optional*):
            Reason of every completion whose answer could not be scored, else `None` (or `False`). Its likelihood
            part, bonus included, is 0.
        format_score (`Sequence[float]`, *optional*):
            Format reward of every completion, 0 or 1. If given, the reward is `(1 - format_weight) * reward +
            format_weight * format_score`.
        format_weight (`float`, *optional*, defaults to `0.1`):
            In `[0, 1]`. Only read if `format_score` is given.

    Returns:
        `list[float]`: one reward for every completion; NaN where a likelihood that it needs is not finite.

    Raises:
        `ValueError`: if lengths differ, or a setting is unknown, out of range, missing or contradictory.
    """
    check_reward_settings(threshold_type, gamma, tau, aggregation, format_weight)
    count = len(reference)
    columns = {"answer": answer, "baseline": baseline, "malformed": malformed, "format_score": format_score}
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise ValueError(f"{name} has {len(column)} values for {count} completions; pass one for each")
    if answer is None and delta_weight:
        raise ValueError(f"delta_weight={delta_weight} needs the likelihood of the own answers; pass answer")
    if baseline is None and debias:
        raise ValueError("debias=True needs r(y*|x) of each prompt; pass baseline")
    rewards = []
    for index in range(count):
        reward = 0.0
        if malformed is None or not malformed[index]:
            likelihood = reference[index]
            if debias and baseline is not None:
                likelihood = _clip(likelihood - baseline[index])
            reward = alpha * likelihood
            if delta_weight and answer is not None:
                delta, inside = bounded_bonus(
                    reference[index], answer[index], threshold_type=threshold_type, gamma=gamma, tau=tau
                )
                reward += delta_weight * delta if inside or math.isnan(delta) else 0.0
        if format_score is not None:
            reward = (1 - format_weight) * reward + format_weight * format_score[index]
        rewards.append(reward if math.isfinite(reward) else math.nan)
    return rewards


def check_reward_settings(
    threshold_type: str = "dynamic",
    gamma: float = 8.0,
    tau: float | None = None,
    aggregation: str = "mean_prob",
    format_weight: float = 0.1,
) -> None:
    """
    Check the settings of [`darl_reward`] before there is anything to reward.

    Raises:
        `ValueError`: if a setting is unknown, out of range, missing or contradictory.
    """
    _check_threshold(threshold_type, gamma, tau)
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation={aggregation!r} is unknown; expected one of {', '.join(AGGREGATIONS)}")
    if threshold_type == "dynamic" and aggregation == "mean_logprob":
        raise ValueError(
            "threshold_type='dynamic' with aggregation='mean_logprob' gives a negative threshold, which nothing is "
            "below; use threshold_type='static' with a tau, or another aggregation"
        )
    if not 0 <= format_weight <= 1:
        raise ValueError(f"format_weight={format_weight} lies outside [0, 1]")


def _check_threshold(threshold_type: str, gamma: float, tau: float | None) -> None:
    if threshold_type not in THRESHOLD_TYPES:
        raise ValueError(f"threshold_type={threshold_type!r} is unknown; expected one of {', '.join(THRESHOLD_TYPES)}")
    if threshold_type == "dynamic" and not (math.isfinite(gamma) and gamma > 0):
        raise ValueError(f"gamma={gamma} must be a number above 0, since tau is r(y*) / gamma")
    if threshold_type == "static" and (tau is None or not tau >= 0):
        raise ValueError(f"threshold_type='static' needs a tau of at least 0, got {tau}; the paper's r lie in [0, 1]")


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else math.nan
