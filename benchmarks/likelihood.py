# SPDX-License-Identifier: Apache-2.0
"""Scoring of references: one pass over shared prefixes against decoding, editing, tokenising and two passes."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.models import POLICY_VOCABULARY, smollm2, word_tokenizer
from benchmarks.timing import FLOOR, PEER, PRODUCT, Row, time_row
from trl_diversity.likelihood import PolicyScorer, ScoringRow


PROMPT, ANSWER = 32, 20


def scoring_rows(count: int, reasoning: int) -> list[ScoringRow]:
    """Completions of one prompt: reasoning of its own, an answer, and a reference as long as the answer."""
    numbers = random.Random(0)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(numbers.randrange(5, POLICY_VOCABULARY) for _ in range(length))

    prompt = ids(PROMPT)
    return [ScoringRow((*prompt, *ids(reasoning)), ids(ANSWER), ids(ANSWER)) for _ in range(count)]


def likelihood_rows(rounds: int, quick: bool) -> Iterator[Row]:
    """64, 300 and 1500 tokens of reasoning."""
    model = smollm2()
    tokenizer = word_tokenizer(POLICY_VOCABULARY)
    for reasoning, count in [(64, 2)] if quick else [(64, 16), (300, 8), (1500, 2)]:
        rows = scoring_rows(count, reasoning)
        scorer = PolicyScorer(model)

        @torch.inference_mode()
        def forward(ids: list[list[int]], keep: int) -> torch.Tensor:
            return model(input_ids=torch.tensor(ids), use_cache=False, logits_to_keep=keep).logits

        def peer(rows: list[ScoringRow] = rows, reasoning: int = reasoning) -> None:
            """Text edited and tokenised anew; probabilities of the whole response in two passes."""
            whole, answers, references = (
                [str(tokenizer.decode(list(ids))) for ids in texts]
                for texts in (
                    [[*row.prefix_ids, *row.answer_ids] for row in rows],
                    [row.answer_ids for row in rows],
                    [row.reference_ids for row in rows],
                )
            )
            edited = [
                text.removesuffix(answer) + reference
                for text, answer, reference in zip(whole, answers, references, strict=True)
            ]
            for texts in (whole, edited):
                ids = tokenizer(texts).input_ids
                logits = forward(ids, reasoning + ANSWER + 1)[:, :-1]
                targets = torch.tensor(ids)[:, -logits.shape[1] :, None]
                logits.log_softmax(-1).gather(-1, targets)

        def floor(rows: list[ScoringRow] = rows) -> None:
            forward([[*row.prefix_ids, *row.answer_ids, *row.reference_ids] for row in rows], 2 * ANSWER)

        ways: dict[str, Callable[[], Any]] = {PRODUCT: partial(scorer.score, rows), PEER: peer, FLOOR: floor}
        case = f"{count} completions, {reasoning} tokens of reasoning, answers of {ANSWER}"
        yield time_row("likelihood of references", case, ways, rounds)
