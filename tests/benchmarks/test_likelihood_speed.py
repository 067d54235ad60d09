# SPDX-License-Identifier: Apache-2.0
"""How long scoring takes: one pass against two, and against a plain forward pass over the same tokens."""

import statistics
import time
from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests import tiny
from trl_diversity.likelihood import PolicyScorer, ScoringRow


ROUNDS = 3
PROMPT, REASONING, ANSWER = 32, 300, 20


@pytest.fixture(scope="module")
def smollm2() -> LlamaForCausalLM:
    """SmolLM2-135M with random weights."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    with tiny.seeded(0):
        return LlamaForCausalLM(config).eval()


def scoring_rows(count: int) -> list[ScoringRow]:
    """Completions of a group: one prompt, reasoning of its own, an answer, and a reference as long as the answer."""
    with tiny.seeded(1):
        ids = torch.randint(5, 49152, (count, PROMPT + REASONING + 2 * ANSWER))
        ids[:, :PROMPT] = ids[0, :PROMPT]
    prefix = PROMPT + REASONING
    return [ScoringRow(tuple(row[:prefix]), tuple(row[prefix:-ANSWER]), tuple(row[-ANSWER:])) for row in ids.tolist()]


def seconds(call: Callable[[], object]) -> float:
    """Processor time of a call: what else the machine does counts little."""
    start = time.process_time()
    call()
    return time.process_time() - start


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
def test_one_pass_costs_little_more_than_its_tokens(smollm2: LlamaForCausalLM) -> None:
    rows = scoring_rows(16)
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
