# SPDX-License-Identifier: Apache-2.0
"""How probable is the reference after this reasoning? Names that need torch are imported when they are first used."""

from trl_diversity.lazy_names import lazy_names
from trl_diversity.likelihood.answer_span import AnswerSpan, answer_finder, assistant_tail, find_answer
from trl_diversity.likelihood.rewards import aggregate, bounded_bonus, check_reward_settings, darl_reward
from trl_diversity.likelihood.splice import (
    PreparedCompletion,
    ScoringRow,
    SplicedReference,
    baseline_row,
    prepare_completion,
    reference_text,
    splice_reference,
)
from trl_diversity.likelihood.std_filter import StandardDeviationFilter, keep_group
from trl_diversity.likelihood.text_rewards import format_reward, repetition_penalty


_LAZY = {
    "FrozenScorer": "frozen_scorer",
    "PolicyScorer": "scorers",
    "RowScores": "scorers",
    "Scorer": "scorers",
    "ServerScorer": "server_scorer",
}

__all__ = [
    "AnswerSpan",
    "FrozenScorer",
    "PolicyScorer",
    "PreparedCompletion",
    "RowScores",
    "Scorer",
    "ScoringRow",
    "ServerScorer",
    "SplicedReference",
    "StandardDeviationFilter",
    "aggregate",
    "answer_finder",
    "assistant_tail",
    "baseline_row",
    "bounded_bonus",
    "check_reward_settings",
    "darl_reward",
    "find_answer",
    "format_reward",
    "keep_group",
    "prepare_completion",
    "reference_text",
    "repetition_penalty",
    "splice_reference",
]
__getattr__, __dir__ = lazy_names(__name__, _LAZY)
