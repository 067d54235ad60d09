# SPDX-License-Identifier: Apache-2.0
"""An equivalence model for mathematics: two completions are equivalent if their final answers are equal."""

import re
from collections import OrderedDict, defaultdict

from trl_diversity.equivalence.loading import checked_threshold
from trl_diversity.equivalence.verification import MathVerifier


_CACHE_SIZE = 100_000
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MATH_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_ONLY_LETTERS = re.compile(r"[^\W\d_]+(?:[\s'’,-]+[^\W\d_]+)*")
_LETTERS_OF_A_WORD = re.compile(r"[^\W\d_]{3}")


class AnswerEquivalence:
    """
    1.0 if two completions have the same final answer, else 0.0.

    The answer is the content of the last `<answer>...</answer>` if there is one, and therein, or else in the whole
    completion, the content of the last `\\boxed{}`. A completion with neither has no answer, which is not known to
    equal anything, not even the lack of another answer: its score is 0.0 with every other text. Answers that are equal
    after normalisation are equal. Words are compared as text, without regard to case. Everything else is asked of
    math-verify, in both directions, since it is not symmetric: equal if either holds. A verification that raises or
    runs past a limit counts as different. Each answer is first verified against 1, which finds those that hang, so
    that an answer costs at most one time limit; each pair of answers is verified once.

    Args:
        threshold (`float`, *optional*, defaults to 0.5):
            Between the two scores, so any value below 1 does the same.
        num_workers (`int`, *optional*, defaults to 2):
            Verifications at the same time.
        time_limit_seconds (`float`, *optional*, defaults to 5.0):
            For one verification.
        memory_limit_gb (`float`, *optional*, defaults to 2.0):
            For one verification, in GiB.

    Raises:
        `ImportError`: if math-verify is not installed.
        `ValueError`: if an argument has an impossible value.
    """

    def __init__(
        self,
        threshold: float = 0.5,
        num_workers: int = 2,
        time_limit_seconds: float = 5.0,
        memory_limit_gb: float = 2.0,
    ):
        self.threshold = checked_threshold(threshold)
        self._verifier = MathVerifier(num_workers, time_limit_seconds, memory_limit_gb)
        # What is known so far: can an answer be verified at all, and are two equal?
        self._usable: OrderedDict[str, bool] = OrderedDict()
        self._equal: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._statistics: dict[str, int] = defaultdict(int)

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        """
        Score pairs of completions.

        Args:
            pairs (`list[tuple[str, str]]`):
                Pairs of texts to compare.
            prompts (`list[str]`, *optional*):
                Not read.

        Returns:
            `list[float]`: 1.0 where the final answers are equal, else 0.0.
        """
        answers = {text: extract_answer(text) for pair in pairs for text in pair}
        asked = [(answers[first], answers[second]) for first, second in pairs]
        self._statistics["pairs_without_answer"] += sum(None in pair for pair in asked)
        open_pairs = {_in_order(one, other) for one, other in asked if _needs_verification(one, other)}
        self._verify(sorted(open_pairs - self._equal.keys()))
        scores = [1.0 if self._are_equal(one, other) else 0.0 for one, other in asked]
        _shrink(self._usable)
        _shrink(self._equal)
        return scores

    def pop_statistics(self) -> dict[str, int]:
        """
        Counts since the last call, then cleared: `pairs_without_answer` (at least one of the two has none) and
        `failed_verifications` (they raised or ran past a limit).
        """
        statistics = {name: self._statistics[name] for name in ("pairs_without_answer", "failed_verifications")}
        self._statistics.clear()
        return statistics

    def close(self) -> None:
        """End the child processes; the next verification starts new ones."""
        self._verifier.close()

    def _are_equal(self, one: str | None, other: str | None) -> bool:
        if one is None or other is None:
            return False
        if not _needs_verification(one, other):
            return _comparable(one) == _comparable(other)
        return self._equal[_in_order(one, other)]

    def _verify(self, pairs: list[tuple[str, str]]) -> None:
        answers = sorted({answer for pair in pairs for answer in pair} - self._usable.keys())
        outcomes = self._verifier.verify([("$1$", _boxed(answer)) for answer in answers])
        self._usable.update(zip(answers, (outcome is not None for outcome in outcomes), strict=True))
        self._statistics["failed_verifications"] += outcomes.count(None)
        usable = [pair for pair in pairs if all(self._usable[answer] for answer in pair)]
        outcomes = self._verifier.verify(
            [(_boxed(one), _boxed(other)) for one, other in usable], either_direction=True
        )
        self._statistics["failed_verifications"] += outcomes.count(None)
        self._equal.update(dict.fromkeys(pairs, False))
        self._equal.update({pair: bool(outcome) for pair, outcome in zip(usable, outcomes, strict=True)})


def extract_answer(completion: str) -> str | None:
    """
    The final answer of a completion, normalised, or None if it marks none.

    Args:
        completion (`str`):
            Text that may hold `<answer>...</answer>` or `\\boxed{}`; the last one counts.

    Returns:
        `str` or `None`.
    """
    tags = _ANSWER_TAG.findall(completion)
    text = tags[-1] if tags else completion
    boxed = last_boxed(text)
    if boxed is None and not tags:
        return None
    return normalize_answer(text if boxed is None else boxed) or None


def last_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{...}` whose braces are balanced, None if there is none."""
    for match in reversed(list(_BOXED.finditer(text))):
        depth, position = 1, match.end()
        while position < len(text):
            character = text[position]
            if character == "\\":  # an escaped brace is no brace
                position += 2
                continue
            depth += (character == "{") - (character == "}")
            if depth == 0:
                return text[match.end() : position]
            position += 1
    return None


def normalize_answer(answer: str) -> str:
    """Remove what does not change an answer: math delimiters, spacing commands, a final full stop; braces stay."""
    answer = re.sub(r"\\[,;:!]|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])", "", answer)
    answer = re.sub(r"\\[dt]frac(?![a-zA-Z])", r"\\frac", answer)
    answer = " ".join(answer.split()).removesuffix(".").strip()
    for opening, closing in _MATH_DELIMITERS:
        inner = answer[len(opening) : -len(closing)]
        if answer.startswith(opening) and answer.endswith(closing) and len(answer) > 2 * len(opening):
            if opening not in inner:
                answer = inner.strip()
    whole_text = _TEXT_COMMAND.fullmatch(answer)
    return whole_text.group(1).strip() if whole_text else answer


def _needs_verification(one: str | None, other: str | None) -> bool:
    if one is None or other is None or _comparable(one) == _comparable(other):
        return False
    return not is_words(one) and not is_words(other)


def is_words(answer: str) -> bool:
    """Whether it reads as words. math-verify takes a word for a product of letters: "listen" would equal "silent"."""
    return bool(_ONLY_LETTERS.fullmatch(answer) and _LETTERS_OF_A_WORD.search(answer))


def _comparable(answer: str) -> str:
    return answer.casefold() if is_words(answer) else answer


def _in_order(one: str | None, other: str | None) -> tuple[str, str]:
    first, second = sorted((str(one), str(other)))
    return first, second


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def _shrink(cache: OrderedDict) -> None:
    while len(cache) > _CACHE_SIZE:
        cache.popitem(last=False)
