# SPDX-License-Identifier: Apache-2.0
"""Completions cut by hand into the parts that Darl's reward needs, and its reward computed slowly from them."""

import math
import statistics
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """
    One completion, cut by hand. A part is a list of texts that are encoded one by one.

    Attributes:
        before (`list[str]`):
            What was sampled up to the answer; the reference follows it directly, or after `lead`.
        answer (`list[str]`):
            The tokens that spell the answer.
        after (`list[str]`):
            The rest.
        parsed (`str`):
            Text of the answer.
        reference (`list[str]`):
            The tokens that spell the reference in this place, the scored ones only.
        lead (`list[str]`):
            Tokens between `before` and the reference that are not scored.
        malformed (`str` or `None`):
            Why there is nothing to score; then the parts are read as the text of the completion only.
        format_score, penalty (`float`):
            What the completion earns for its format, and loses for repetition.
    """

    before: list[str]
    answer: list[str]
    after: list[str]
    parsed: str = ""
    reference: tuple[str, ...] = ()
    lead: tuple[str, ...] = ()
    malformed: str | None = None
    format_score: float = 0.0
    penalty: float = 0.0

    @property
    def text(self) -> str:
        return "".join([*self.before, *self.answer, *self.after])


# What every prompt is asked for. The digits of "42" after a space are one token.
REFERENCES = {"p0": "42", "p1": "Paris", "p2": "7", "p3": "東京"}
_REPEATED = "a b c d e f g h i j " * 10

CASES: dict[str, list[Case]] = {
    "p0": [
        Case(["<think>a</think><answer>"], ["42"], ["</answer>"], "42", ("42",), format_score=1),
        Case(["<think>b</think><answer>"], [" 42"], ["</answer>"], "42", (" 42",), format_score=1),
        # White space that is a token of its own stays in front of the reference.
        Case(["<answer>", " "], ["7"], ["</answer>"], "7", ("4", "2")),
        Case(["<think>hm, let me see"], [], [], malformed="truncated"),
    ],
    "p1": [
        Case(["<think>x</think><answer>"], ["Lyon"], ["</answer>"], "Lyon", ("Paris",), format_score=1),
        Case(["<think>x</think><answer>", "\n"], ["Paris"], ["\n</answer>"], "Paris", ("Paris",), format_score=1),
        Case(["<answer>Paris</answer><answer>Rome</answer>"], [], [], malformed="several"),
        Case(
            [_REPEATED, "<think></think><answer>"],
            ["Rome"],
            ["</answer>"],
            "Rome",
            ("Paris",),
            format_score=1,
            penalty=-1,
        ),
    ],
    "p2": [
        Case(["<answer>"], ["7"], [], "7", ("7",)),  # no closing tag
        Case(["</answer><answer>7</answer>"], [], [], malformed="order"),
        Case(["<think>y</think><answer></answer>"], [], [], malformed="empty", format_score=1),
        # The space is glued to the answer; before another answer it is a token of its own, which is not scored.
        Case(["<think>y</think><answer>"], [" 42"], ["</answer>"], "42", ("7",), lead=(" ",), format_score=1),
    ],
    "p3": [
        Case(["<think>z</think><answer>"], ["京都"], ["</answer>"], "京都", ("東京",), format_score=1),
        Case(["<think>z</think><answer>"], ["東京"], ["</answer>"], "東京", ("東京",), format_score=1),
        Case(["it is Tokyo"], [], [], malformed="no_tag"),
        Case(["<think></think><answer>"], ["東"], ["</answer>"], "東", ("東京",), format_score=1),
    ],
}

BOXED: dict[str, list[Case]] = {
    "p0": [
        Case(["<think>c</think>\n\\boxed{"], ["42"], ["}"], "42", ("42",), format_score=1),
        Case(["\\boxed{1} or \\boxed{"], ["\\frac{1}{2}"], ["}."], "\\frac{1}{2}", ("42",), format_score=1),
        Case(["\\boxed {"], ["7"], ["}"], "7", ("42",), format_score=1),
        Case(["\\boxed{42"], [], [], malformed="truncated"),
    ]
}
AFTER_THINK: dict[str, list[Case]] = {
    "p0": [
        Case(["<think>c</think>", "\n"], ["42"], [], "42", ("42",), format_score=1),
        Case(["c</think>"], ["no idea"], [], "no idea", ("42",), format_score=1),
        Case(["c</think>"], [" 42"], [], "42", (" 42",), format_score=1),
        Case(["c"], [], [], malformed="no_tag"),
    ]
}
PATTERN: dict[str, list[Case]] = {
    "p1": [
        Case(["so the answer is: "], ["Paris"], ["."], "Paris", ("Paris",), format_score=1),
        Case(["answer is: Lyon. No, the answer is: "], ["Rome"], ["."], "Rome", ("Paris",), format_score=1),
        Case(["the answer is: "], ["Oslo"], [". Bye"], "Oslo", ("Paris",), format_score=1),
        Case(["no answer"], [], [], malformed="no_tag"),
    ]
}


def encoded(parts: Any, tokenizer: Any) -> list[int]:
    return [index for part in parts for index in tokenizer(part, add_special_tokens=False)["input_ids"]]


def completion_ids(case: Case, tokenizer: Any) -> list[int]:
    """The ids that are sampled: those of the parts, and the end of the turn."""
    return [*encoded([*case.before, *case.answer, *case.after], tokenizer), tokenizer.eos_token_id]


def token_probabilities(model: Any, prefix: list[int], ids: list[int]) -> list[float]:
    """Probability of each of `ids` after `prefix` and those before it: one sequence, one pass, no cache."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prefix, *ids]])).logits[0].double()
    table = torch.softmax(logits, dim=-1)
    return [table[len(prefix) - 1 + place, index].item() for place, index in enumerate(ids)]


def aggregated(probabilities: list[float], how: str) -> float:
    if how == "mean_prob":
        return sum(probabilities) / len(probabilities)
    mean_log = sum(math.log(value) for value in probabilities) / len(probabilities)
    if how == "product":
        return math.exp(mean_log * len(probabilities))
    return {"mean_logprob": mean_log, "geometric_mean": math.exp(mean_log)}[how]


@dataclass
class Expected:
    """What the oracle says about one completion."""

    reference: float
    answer: float
    delta: float
    inside: bool
    reward: float


def expected_case(
    case: Case,
    prompt_ids: list[int],
    model: Any,
    tokenizer: Any,
    *,
    alpha: float = 1.0,
    delta_weight: float = 0.01,
    threshold_type: str = "dynamic",
    gamma: float = 8.0,
    tau: float | None = None,
    aggregation: str = "mean_prob",
    format_weight: float = 0.1,
    format_score: float | None = None,
    repetition_penalty_reward: bool = False,
    baseline: float | None = None,
) -> Expected:
    """Darl's reward as ARCHITECTURE.md orders it: debias, clip, alpha, bonus, format, penalty."""
    format_score = case.format_score if format_score is None else format_score
    penalty = case.penalty if repetition_penalty_reward else 0.0
    if case.malformed:
        return Expected(math.nan, math.nan, math.nan, False, format_weight * format_score + penalty)
    prefix = [*prompt_ids, *encoded(case.before, tokenizer)]
    answer = aggregated(token_probabilities(model, prefix, encoded(case.answer, tokenizer)), aggregation)
    lead = encoded(case.lead, tokenizer)
    reference = aggregated(
        token_probabilities(model, [*prefix, *lead], encoded(case.reference, tokenizer)), aggregation
    )
    delta = reference - answer if reference > answer else 0.0
    inside = delta <= (reference / gamma if threshold_type == "dynamic" else tau)
    likelihood = reference
    if baseline is not None:
        likelihood = min(max(reference - baseline, 0.0), 1.0)
    reward = alpha * likelihood + (delta_weight * delta if inside else 0.0)
    reward = (1 - format_weight) * reward + format_weight * format_score
    return Expected(reference, answer, delta, inside, reward + penalty)


def group_advantages(rewards: list[float]) -> list[float]:
    """GRPO's advantages of one group, scaled by its standard deviation; none without a reward."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    if not known:
        return [0.0] * len(rewards)
    mean = statistics.fmean(known)
    deviation = statistics.stdev(known) if len(known) > 1 else 0.0
    return [0.0 if math.isnan(reward) else (reward - mean) / (deviation + 1e-4) for reward in rewards]
