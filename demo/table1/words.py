# SPDX-License-Identifier: Apache-2.0
"""A second judge of meaning that nothing is trained on: answers are the same if they share their content words."""

from demo.rewards import STEM_LETTERS, _content, _words


class WordEquivalence:
    """
    Share of the content words that two answers have in common, by their stems.

    It learns nothing from embeddings, so a policy that has found out what the default model takes for different gains
    nothing here by that. It cannot see that "A dog." and "A puppy." are close.
    """

    threshold = 0.49  # half of the words or more

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        """Common stems over all stems of both, 1.0 for two answers without content words."""
        return [_overlap(_stems(first), _stems(second)) for first, second in pairs]


def _stems(text: str) -> set[str]:
    return {word[:STEM_LETTERS] for word in _content(_words(text))}


def _overlap(first: set[str], second: set[str]) -> float:
    return len(first & second) / len(first | second) if first | second else 1.0
