# SPDX-License-Identifier: Apache-2.0
"""Whether the final answer of a completion equals a reference, by Math-Verify with hard limits."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from trl_diversity.equivalence.answer import extract_answer, is_words, normalize_answer
from trl_diversity.equivalence.verification import MathVerifier


class AnswerChecker:
    """
    Grades completions against references.

    The answer is what [`~trl_diversity.equivalence.answer.extract_answer`] finds: the last tag or `\\boxed{}`.
    A completion without either is wrong, also if its last line would give the answer away. Words are compared as text,
    without regard to case; everything else is Math-Verify's judgement with the reference as gold. Each pair of
    reference and answer is verified once, in a child process that is killed at its time or memory limit, so that this
    works in threads and worker processes too. A verification that hits a limit or fails counts as wrong.

    Args:
        num_workers (`int`, *optional*, defaults to 2):
            Verifications at the same time.
        time_limit_seconds (`float`, *optional*, defaults to 5.0):
            For one verification.
        memory_limit_gb (`float`, *optional*, defaults to 2.0):
            For one verification, in GiB.

    Attributes:
        statistics (`Counter`):
            `completions`, `without_answer`, `verifications` and `failed_verifications` so far.

    Raises:
        `ImportError`: if math-verify is not installed.
    """

    def __init__(self, num_workers: int = 2, time_limit_seconds: float = 5.0, memory_limit_gb: float = 2.0):
        self._verifier = MathVerifier(num_workers, time_limit_seconds, memory_limit_gb)
        self._known: dict[tuple[str, str], bool | None] = {}
        self.statistics: Counter[str] = Counter()

    def check(self, references: Sequence[str], completions: Sequence[str]) -> list[bool]:
        """
        Grade completions.

        Args:
            references (`Sequence[str]`):
                The reference answer of each completion, bare or in dollars or `\\boxed{}`.
            completions (`Sequence[str]`):
                The completions, in the same order.

        Returns:
            `list[bool]`: one for every completion.

        Raises:
            `ValueError`: if a reference is empty or the lengths differ.
        """
        pairs = [
            (reference_answer(reference), extract_answer(completion))
            for reference, completion in zip(references, completions, strict=True)
        ]
        asked = dict.fromkeys(
            (gold, answer) for gold, answer in pairs if answer is not None and _needs_verification(gold, answer)
        )
        new = [pair for pair in asked if pair not in self._known]
        outcomes = self._verifier.verify([(_boxed(gold), _boxed(answer)) for gold, answer in new])
        self._known.update(zip(new, outcomes, strict=True))
        self.statistics.update(
            completions=len(pairs),
            without_answer=sum(answer is None for _, answer in pairs),
            verifications=len(new),
            failed_verifications=outcomes.count(None),
        )
        return [answer is not None and self._is_correct(gold, answer) for gold, answer in pairs]

    def close(self) -> None:
        """End the child processes; the next verification starts new ones."""
        self._verifier.close()

    def _is_correct(self, gold: str, answer: str) -> bool:
        if _needs_verification(gold, answer):
            return bool(self._known[gold, answer])
        return gold.casefold() == answer.casefold()


def reference_answer(reference: Any) -> str:
    """
    The answer that a reference holds, without its dollars or box.

    Raises:
        `ValueError`: if there is none.
    """
    text = str(reference).strip() if reference is not None else ""
    answer = extract_answer(text) or normalize_answer(text)
    if not answer:
        raise ValueError(f"the reference answer {reference!r} is empty.")
    return answer


def _needs_verification(gold: str, answer: str) -> bool:
    return gold != answer and not is_words(gold) and not is_words(answer)


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"
