# SPDX-License-Identifier: Apache-2.0
"""How long scoring takes: one pass against two, and against a plain forward pass over the same tokens."""

import statistics
import time
from collections.abc import Callable

import pytest
import torch
from transformers import LlamaForCausalLM

from benchmarks import models
from benchmarks.likelihood import ANSWER, scoring_rows
from trl_diversity.likelihood import PolicyScorer


ROUNDS = 3
REASONING = 300


@pytest.fixture(scope="module")
def smollm2() -> LlamaForCausalLM:
    return models.smollm2()


def seconds(call: Callable[[], object]) -> float:
    """Processor time of a call: what else the machine does counts little."""
    start = time.process_time()
    call()
    return time.process_time() - start


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
def test_one_pass_costs_little_more_than_its_tokens(smollm2: LlamaForCausalLM) -> None:
    rows = scoring_rows(16, REASONING)
    fast, two_pass = (PolicyScorer(smollm2, path=path) for path in ("fast", "two_pass"))
    ids = torch.tensor([[*row.prefix_ids, *row.answer_ids, *row.reference_ids] for row in rows])

    def plain() -> None:
        # As many logits as scoring reads: a pass that makes all of them would be slower still.
        with torch.no_grad():
            smollm2(input_ids=ids, use_cache=False, logits_to_keep=2 * ANSWER)

    calls = {"fast": lambda: fast.score(rows), "two_pass": lambda: two_pass.score(rows), "plain": plain}
    fast.score(rows[:1])  # the trial of the mask is made once in a run
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(seconds(call))
    against_two = statistics.median(map(lambda one, two: one / two, times["fast"], times["two_pass"]))
    against_plain = statistics.median(map(lambda one, two: one / two, times["fast"], times["plain"]))
    best = ", ".join(f"{name} {min(values):.1f} s" for name, values in times.items())
    print(f"\n{best}; fast is {against_two:.3f} of two_pass and {against_plain:.3f} of plain")
    assert against_two <= 0.60
    assert against_plain <= 1.20
