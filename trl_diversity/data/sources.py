# SPDX-License-Identifier: Apache-2.0
"""The published data sets that training and evaluation need: where they are, and what of a row is kept."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


# Asked for by the verifier: without a box an answer is often not found.
BOXED_INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
# What only a picture can tell: pictures themselves, their source, and words that point at one.
_IMAGE = re.compile(
    r"\[asy\]|\\includegraphics|\\begin\{(?:tikzpicture|asy)\}|!\[[^\]]*\]\(|<img\b|\.(?:png|jpe?g|gif|svg)\b"
    r"|\b(?:in|from|see|by|on|of)\s+(?:the|this)\s+(?:\w+\s+)?(?:figure|diagram|picture|image|drawing)\b"
    r"|\b(?:figure|diagram|picture|image|drawing)s?\s+(?:\w+\s+)?(?:below|above|shows?|shown)\b"
    r"|\bas\s+(?:is\s+)?(?:shown|pictured|depicted|illustrated)\b(?!\s+that)"
    r"|\bshown\s+(?:below|above|at\s+the\s+(?:right|left))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Kept:
    """
    A row that goes on.

    Attributes:
        text (`str`):
            What the user says; two rows with the same text, up to case and white space, are one.
        columns (`dict[str, str]`):
            Further columns of the row that is written.
    """

    text: str
    columns: dict[str, str]


@dataclass(frozen=True)
class Source:
    """
    A published data set.

    Attributes:
        name (`str`):
            Its short name.
        hub_name (`str`):
            Where it is on the Hub.
        split (`str`):
            The split that is read.
        licence (`str`):
            As published.
        columns (`tuple[str, ...]`):
            Columns that are read.
        select (`Callable`):
            From a row, and the language that is kept, to [`Kept`] or the reason why it is dropped.
        rules (`tuple[str, ...]`):
            What `select` drops, in words.
        max_prompt_tokens (`int`, *optional*):
            The papers' limit.
        num_samples (`int`, *optional*):
            Rows that the papers train on; all by default.
    """

    name: str
    hub_name: str
    split: str
    licence: str
    columns: tuple[str, ...]
    select: Callable[[Mapping[str, Any], str], Kept | str]
    rules: tuple[str, ...]
    max_prompt_tokens: int | None = None
    num_samples: int | None = None


def needs_image(text: str) -> bool:
    """Whether a problem cannot be solved without a picture: it holds one, or points at one."""
    return _IMAGE.search(text) is not None


def _wildchat(row: Mapping[str, Any], language: str) -> Kept | str:
    turns: Sequence[Mapping[str, Any]] = row["conversation"]
    if not turns or turns[0].get("role") != "user" or not (turns[0].get("content") or "").strip():
        return "no first user turn"
    if language != "all" and row["language"] != language:
        return "other language"
    if row["toxic"] or turns[0].get("toxic"):
        return "toxic"
    return Kept(turns[0]["content"], {})


def _deepscaler(row: Mapping[str, Any], language: str) -> Kept | str:
    problem, answer = _text(row["problem"]), _text(row["answer"])
    if not problem or not answer:
        return "no problem or no answer"
    if needs_image(problem):
        return "needs an image"
    solution = answer if "$" in answer or "\\boxed" in answer else f"${answer}$"
    if not _readable(solution):
        return "answer that Math-Verify cannot read"
    return Kept(f"{problem} {BOXED_INSTRUCTION}", {"answer": answer, "solution": solution})


def _webinstruct(row: Mapping[str, Any], language: str) -> Kept | str:
    question, answer = _text(row["question"]), _text(row["answer"])
    if not question or not answer:
        return "no question or no answer"
    if needs_image(question):
        return "needs an image"
    return Kept(question, {"answer": answer})


def _noveltybench(row: Mapping[str, Any], language: str) -> Kept | str:
    prompt = _text(row["prompt"])
    return Kept(prompt, {"id": str(row["id"])}) if prompt else "empty"


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _readable(solution: str) -> bool:
    try:
        from math_verify import parse
    except ImportError as error:
        raise ImportError("deepscaler needs math-verify: `pip install 'trl-diversity[math]'`") from error
    return bool(parse(solution))


SOURCES = {
    source.name: source
    for source in (
        Source(
            "wildchat",
            "allenai/WildChat-1M",
            "train",
            "odc-by",
            ("conversation", "language", "toxic"),
            _wildchat,
            (
                "the first turn is kept, which must be the user's and not empty",
                "`language` of the conversation is the one that was asked for",
                "neither the conversation nor its first turn is marked `toxic`",
            ),
            max_prompt_tokens=512,
            num_samples=10_000,
        ),
        Source(
            "deepscaler",
            "agentica-org/DeepScaleR-Preview-Dataset",
            "train",
            "mit",
            ("problem", "answer"),
            _deepscaler,
            (
                "problem and answer are not empty",
                "the problem neither holds nor points at a picture (`trl_diversity.data.sources.needs_image`)",
                "Math-Verify reads the answer, which `solution` holds as it wants it",
                f'the prompt is the problem and "{BOXED_INSTRUCTION}"',
            ),
            max_prompt_tokens=1024,
            num_samples=10_000,
        ),
        Source(
            "webinstruct",
            "TIGER-Lab/WebInstruct-verified",
            "train",
            "apache-2.0",
            ("question", "answer"),
            _webinstruct,
            (
                "question and answer are not empty",
                "the question neither holds nor points at a picture (`trl_diversity.data.sources.needs_image`)",
            ),
            max_prompt_tokens=2048,
        ),
        Source(
            "noveltybench",
            "yimingzhang/novelty-bench",
            "curated",
            "mit",
            ("id", "prompt"),
            _noveltybench,
            ("the prompt is not empty",),
        ),
    )
}
