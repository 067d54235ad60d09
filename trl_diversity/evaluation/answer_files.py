# SPDX-License-Identifier: Apache-2.0
"""The answer files that AlpacaEval 2.0 and Arena-Hard v1.0 and v2.0 read. Their judges are theirs."""

import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any


_FENCED_CODE = re.compile(r"```[^`]*```")
_ORDERED, _UNORDERED = re.compile(r"^\s*\d+\.\s", re.MULTILINE), re.compile(r"^\s*[-*+]\s", re.MULTILINE)
_BOLD = {"**": re.compile(r"\*\*[^*\n]+\*\*"), "__": re.compile(r"__[^_\n]+__")}


def alpaca_eval_rows(questions: Sequence[dict[str, Any]], answers: Sequence[str], name: str) -> list[dict[str, Any]]:
    """
    What `alpaca_eval --model_outputs` reads: a JSON list of `instruction`, `output` and `generator`.

    Args:
        questions (`Sequence[dict]`):
            Rows of AlpacaEval's evaluation set, with `instruction`; `dataset` and `datasplit` are kept.
        answers (`Sequence[str]`):
            One for every question.
        name (`str`):
            Name of the model on the leaderboard.

    Returns:
        `list[dict]`.
    """
    kept = ("dataset", "datasplit", "instruction")
    return [
        {key: row[key] for key in kept if key in row} | {"output": answer, "generator": name}
        for row, answer in zip(questions, answers, strict=True)
    ]


def arena_hard_rows(
    questions: Sequence[dict[str, Any]],
    answers: Sequence[str],
    name: str,
    count_tokens: Callable[[str], int] | None = None,
) -> list[dict[str, Any]]:
    """
    What Arena-Hard reads as `model_answer/<name>.jsonl`, in the form of the questions.

    Questions with a `uid` and a `prompt` are those of its code since 2025 (v2.0, and v1.0 as `arena-hard-v0.1`), those
    with a `question_id` and `turns` are of the code before (v1.0).

    Args:
        questions (`Sequence[dict]`):
            Rows of `question.jsonl`.
        answers (`Sequence[str]`):
            One for every question.
        name (`str`):
            Name of the model: also that of the file.
        count_tokens (`Callable[[str], int]`, *optional*):
            Tokens of an answer by Arena-Hard's own tokenizer. Without it the numbers for style control are left out.

    Returns:
        `list[dict]`.

    Raises:
        `ValueError`: if a question has several turns, which would need the answer to the turn before.
    """
    return [
        _arena_hard_row(question, answer, name, count_tokens)
        for question, answer in zip(questions, answers, strict=True)
    ]


def _arena_hard_row(
    question: dict[str, Any], answer: str, name: str, count_tokens: Callable[[str], int] | None
) -> dict[str, Any]:
    style = {} if count_tokens is None else {"token_len": count_tokens(answer), **markdown_counts(answer)}
    common = {"tstamp": time.time()}
    if "uid" in question:
        messages = [
            {"role": "user", "content": arena_hard_prompt(question)},
            {"role": "assistant", "content": {"answer": answer}},
        ]
        row = {"uid": question["uid"], "ans_id": _short_id(), "model": name, "messages": messages}
        return row | common | {"metadata": style}
    choices = [{"index": 0, "turns": [{"content": answer}]}]
    row = {"question_id": question["question_id"], "answer_id": _short_id(), "model_id": name, "choices": choices}
    return row | common | ({"conv_metadata": style} if style else {})


def arena_hard_prompt(question: dict[str, Any]) -> str:
    """
    The text of an Arena-Hard question of either form.

    Raises:
        `ValueError`: if there is none, or there are several turns.
    """
    if isinstance(question.get("prompt"), str):
        return question["prompt"]
    turns = question.get("turns")
    if not isinstance(turns, list) or len(turns) != 1 or not isinstance(turns[0].get("content"), str):
        raise ValueError(f"expected a question with a `prompt`, or with one turn of text; got {question!r:.120}")
    return turns[0]["content"]


def markdown_counts(answer: str) -> dict[str, dict[str, int]]:
    """
    Headers, list items and bold texts outside of fenced code, as Arena-Hard's style control counts them.

    Returns:
        `dict`: `header_count` (`h1` to `h6`), `list_count` (`ordered`, `unordered`), `bold_count` (`**`, `__`).
    """
    text = _FENCED_CODE.sub("", answer)
    headers = {f"h{level}": len(re.findall(rf"^#{{{level}}}\s", text, re.MULTILINE)) for level in range(1, 7)}
    return {
        "header_count": headers,
        "list_count": {"ordered": len(_ORDERED.findall(text)), "unordered": len(_UNORDERED.findall(text))},
        "bold_count": {mark: len(pattern.findall(text)) for mark, pattern in _BOLD.items()},
    }


def _short_id() -> str:
    return uuid.uuid4().hex[:22]
