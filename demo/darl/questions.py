# SPDX-License-Identifier: Apache-2.0
"""Read the demo's questions, and put them as the policy reads them."""

import json
from pathlib import Path
from typing import Any


SYSTEM_PROMPT = "State a fact, then answer."  # short: every token is paid for at each step
QUESTIONS = Path(__file__).parent / "questions"


def read_questions(name: str) -> list[dict[str, Any]]:
    """The rows of `demo/darl/questions/<name>.jsonl`: `prompt`, `answer`, and those of `warm_up` also `reasoning`."""
    with open(QUESTIONS / f"{name}.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def messages(question: str) -> list[dict[str, str]]:
    """A question as the policy reads it: the system message and the question."""
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
