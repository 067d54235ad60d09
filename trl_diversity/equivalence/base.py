# SPDX-License-Identifier: Apache-2.0
"""The contract of a model that says whether two completions mean the same."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class EquivalenceModel(Protocol):
    """
    Gives the probability that two completions of one prompt mean the same (arXiv 2509.02534, Eq. 5).

    A model may also have a method `pop_statistics() -> dict[str, int]`, which returns and clears counts gathered since
    the last call, such as `{"truncated_pairs": 3}`. They are summed over the ranks and logged as `diversity/<key>`.

    Attributes:
        threshold (`float`):
            Two completions whose probability lies above it belong to one cluster. In `[0, 1]`. It belongs to the
            checkpoint: another checkpoint needs another threshold.
    """

    threshold: float

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        """
        Score pairs of completions.

        Args:
            pairs (`list[tuple[str, str]]`):
                Pairs of texts to compare.
            prompts (`list[str]`, *optional*):
                The prompt of every pair, for models that read it. As long as `pairs`.

        Returns:
            `list[float]`: one probability in `[0, 1]` for every pair, in order.
        """
        ...
