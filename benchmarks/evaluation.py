# SPDX-License-Identifier: Apache-2.0
"""Evaluation: verifications with a time limit, and a scored NoveltyBench file of 1000 prompts."""

import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.timing import PEER, PRODUCT, Row, time_row
from trl_diversity.equivalence.verification import MathVerifier


def _answers(count: int, seed: int) -> list[tuple[str, str]]:
    numbers = random.Random(seed)
    forms: list[Any] = [
        lambda a, b: (rf"\frac{{{a}}}{{{b}}}", rf"{2 * a}/{2 * b}"),
        lambda a, b: (f"{a + b}", f"{a}"),
        lambda a, b: (rf"\sqrt{{{a * a}}}", f"{a}"),
        lambda a, b: (rf"({a}, {b})", rf"({a},{b})"),
    ]
    pairs = [forms[index % 4](numbers.randint(2, 999), numbers.randint(2, 999)) for index in range(count)]
    return [(f"${gold}$", f"${answer}$") for gold, answer in pairs]


def _verify_in_process(pairs: list[tuple[str, str]]) -> list[bool]:
    from math_verify import parse, verify

    return [
        verify(parse(gold, parsing_timeout=None), parse(answer, parsing_timeout=None), timeout_seconds=None)
        for gold, answer in pairs
    ]


def evaluation_rows(rounds: int, quick: bool) -> Iterator[Row]:
    """Math-Verify in children that can be stopped, against plain calls that can hang; then NoveltyBench."""
    count = 20 if quick else 400
    pairs = _answers(count, 0)
    seeds = itertools.count(1)  # both ways keep what they have read once: every call has answers of its own
    verifier = MathVerifier()
    try:
        if verifier.verify(pairs) != _verify_in_process(pairs):
            raise AssertionError("the children judge otherwise than plain calls")
        ways = {
            PRODUCT: lambda: verifier.verify(_answers(count, next(seeds))),
            PEER: lambda: _verify_in_process(_answers(count, next(seeds))),
        }
        row = time_row("evaluation", f"{count} verifications in two children, against none", ways, rounds)
    finally:
        verifier.close()
    row.figures["verifications_per_second"] = round(count / row.seconds[PRODUCT], 1)
    yield row
    yield _noveltybench_row(20 if quick else 1000)


def _noveltybench_row(prompts: int) -> Row:
    from trl_diversity.cli import main

    numbers = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "scored.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for index in range(prompts):
                row = {
                    "id": f"p{index}",
                    "prompt": f"question {index}",
                    "generations": [" ".join(f"w{numbers.randrange(50)}" for _ in range(100)) for _ in range(10)],
                    "partition": _labels(numbers),
                    "generation_scores": [numbers.randint(1, 10) for _ in range(10)],
                }
                file.write(json.dumps(row) + "\n")
        printed = StringIO()
        begin = time.perf_counter()
        with redirect_stdout(printed):
            main(["evaluate", "noveltybench", "--input", str(path), "--json"])
        seconds = time.perf_counter() - begin
        if json.loads(printed.getvalue())["prompts"] != prompts:
            raise AssertionError(f"the summary counts other than {prompts} prompts: {printed.getvalue()}")
    return Row("evaluation", f"NoveltyBench, scored file of {prompts} prompts x 10", {PRODUCT: seconds})


def _labels(numbers: random.Random) -> list[int]:
    labels: list[int] = []
    for _ in range(10):
        labels.append(numbers.randint(0, max(labels, default=-1) + 1))
    return labels
