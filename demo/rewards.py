# SPDX-License-Identifier: Apache-2.0
"""The demo's quality reward: is the completion a short, finished answer that is about its prompt?"""

import re
from functools import lru_cache
from typing import Any

from trl_diversity import load_equivalence_model


RELEVANT = 0.6  # cosine to the prompt from which an answer counts as fully relevant
UNRELATED = 0.1  # cosine that an unrelated answer reaches by chance
FEW_WORDS = 6  # up to here an answer is short; each word more costs a quarter
STEM_LETTERS = 4  # "hobby" and "hobbies", "tree" and "trees" count as one word
FUNCTION_WORDS = frozenset(
    "a an and are at by can could do for from get give go how i in is it me my of on or should some that the to was "
    "what with you your".split()
)


def relevance(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
    """
    Quality of completions, `format * (1 - copied) * relevance`.

    `relevance` is the cosine of completion and prompt by all-MiniLM-L6-v2, stretched so that 0.1 (two unrelated texts)
    gives 0 and 0.6 (a good short answer) gives 1. `copied` is the share of the completion's words that stand in the
    prompt too: without it, repeating the question would be the best answer. `format` is in `format_score`.

    Args:
        prompts (`list`):
            Prompts, conversational or plain; of a conversation the last message counts.
        completions (`list`):
            Completions in the same order and format.
        columns (`Any`):
            Further columns of the data set, not used.

    Returns:
        `list[float]`: one value in `[0, 1]` per completion.
    """
    questions = [_last_text(prompt) for prompt in prompts]
    answers = [_last_text(completion) for completion in completions]
    cosines = minilm().score_pairs(list(zip(answers, questions, strict=True)))
    return [
        format_score(answer) * (1.0 - copied_share(question, answer)) * stretch(cosine)
        for question, answer, cosine in zip(questions, answers, cosines, strict=True)
    ]


def stretch(cosine: float) -> float:
    """Map a cosine to a relevance in `[0, 1]`: `UNRELATED` and below to 0, `RELEVANT` and above to 1."""
    return min(1.0, max(0.0, (cosine - UNRELATED) / (RELEVANT - UNRELATED)))


def format_score(answer: str) -> float:
    """
    1 for a short, finished answer: one line and one sentence of at most `FEW_WORDS` words that ends with a full stop.

    Each word more costs a quarter, a missing full stop (an answer that was cut off) a half, and repeated words take
    their share off. An answer without content, a question back, several lines or sentences, and text that is not ASCII
    get 0.
    """
    words, text = _words(answer), answer.strip()
    if not _content(words) or not text.isascii():
        return 0.0
    if "\n" in text or "?" in text or re.search(r"[.!;:]\s*\S", text):
        return 0.0
    finished = 1.0 if text[-1] in ".!" else 0.5
    brevity = max(0.0, 1.0 - 0.25 * max(0, len(words) - FEW_WORDS))
    return finished * brevity * len(set(words)) / len(words)


def copied_share(question: str, answer: str) -> float:
    """Share of the answer's content words that stand in the question too, in `[0, 1]`; 0 without content words."""
    asked = {word[:STEM_LETTERS] for word in _words(question)}
    given = _content(_words(answer))
    return sum(word[:STEM_LETTERS] in asked for word in given) / max(1, len(given))


def _content(words: list[str]) -> list[str]:
    return [word for word in words if word not in FUNCTION_WORDS]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def _last_text(messages: Any) -> str:
    return messages if isinstance(messages, str) else messages[-1]["content"]


@lru_cache(maxsize=1)
def minilm() -> Any:
    """The one copy of all-MiniLM-L6-v2 that the reward uses."""
    return load_equivalence_model("minilm", device="cpu")
