# SPDX-License-Identifier: Apache-2.0
"""Score answers with another, fixed model instead of the policy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from trl_diversity.likelihood.scorers import PolicyScorer, RowScores
from trl_diversity.likelihood.splice import ScoringRow
from trl_diversity.likelihood.token_text import decode, encode_answer


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class FrozenScorer:
    """
    Scores answers with a model that is not trained, such as a larger one.

    Where its tokenizer is not the policy's, the text of prompt and reasoning, special tokens included, is encoded with
    its own tokenizer, and y and y* are encoded as what follows. A row that then does not fit, or that its tokenizer
    cannot spell, is malformed.

    Args:
        model (`nn.Module`):
            Causal language model. Its parameters are only read.
        tokenizer (`PreTrainedTokenizerBase`):
            Tokenizer of `model`.
        policy_tokenizer (`PreTrainedTokenizerBase`):
            Tokenizer of the ids in the rows.
        max_length (`int`, *optional*):
            Most tokens of prefix and answer together, as `model` counts them. A longer row is `"too_long"`.
        **kwargs:
            Further arguments of [`PolicyScorer`]: `path`, `tokens_per_forward`, `pad_token_id`, `agree_on_max`,
            `forward_context`.

    Example:

    ```python
    scorer = FrozenScorer(judge, judge_tokenizer, policy_tokenizer)
    DarlTrainer(..., scorer=scorer)
    ```
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: "PreTrainedTokenizerBase",
        policy_tokenizer: "PreTrainedTokenizerBase",
        *,
        max_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.policy_tokenizer = policy_tokenizer
        self.max_length = max_length
        self._same_ids = tokenizer.get_vocab() == policy_tokenizer.get_vocab()
        self._scorer = PolicyScorer(model, **kwargs)

    def score(self, rows: Sequence[ScoringRow]) -> list[RowScores]:
        """
        Probabilities of the answer tokens of each row, as this scorer's model counts tokens.

        Args:
            rows (`Sequence[ScoringRow]`):
                Rows to score, in the policy's ids, with their texts. Every rank must make this call.

        Returns:
            `list[RowScores]`: one for every row, in order.
        """
        own = [self._own_row(row) for row in rows]
        scores = iter(self._scorer.score([row for row in own if isinstance(row, ScoringRow)]))
        return [next(scores) if isinstance(row, ScoringRow) else RowScores(malformed=row) for row in own]

    def _own_row(self, row: ScoringRow) -> ScoringRow | str:
        """The row in this model's ids, or why there is none."""
        own = row if self._same_ids else self._translated(row)
        if own is None:
            return "unencodable"
        longest = len(own.prefix_ids) + max(len(own.answer_ids), len(own.reference_ids))
        return own if self.max_length is None or longest <= self.max_length else "too_long"

    def _translated(self, row: ScoringRow) -> ScoringRow | None:
        text = decode(row.prefix_ids, self.policy_tokenizer)
        prefix = [*self._beginning(text), *self.tokenizer.encode(text, add_special_tokens=False)]
        own = replace(row, prefix_ids=tuple(prefix), answer_ids=(), reference_ids=(), answer_lead=0, reference_lead=0)
        if row.answer_ids:
            encoded = encode_answer(row.joining, row.answer, row.closing, prefix, self.tokenizer)
            if encoded is None:
                return None
            own = replace(own, answer_ids=encoded.lead_ids + encoded.answer_ids, answer_lead=len(encoded.lead_ids))
        if row.reference_ids:
            encoded = encode_answer(row.joining, row.reference, row.closing, prefix, self.tokenizer)
            if encoded is None:
                return None
            own = replace(
                own, reference_ids=encoded.lead_ids + encoded.answer_ids, reference_lead=len(encoded.lead_ids)
            )
        return own

    def _beginning(self, text: str) -> list[int]:
        """The token that begins every text, if this tokenizer adds one and the text does not spell it already."""
        begin = self.tokenizer.bos_token_id
        if begin is None or text.startswith(str(self.tokenizer.bos_token)):
            return []
        return [begin] if begin in self.tokenizer("a").input_ids else []
