# SPDX-License-Identifier: Apache-2.0
"""Filtering, de-duplication and sampling against a slow oracle, and the same rows whatever the order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from tests.data.published import conversation
from trl_diversity.data.preparation import prepare
from trl_diversity.data.sources import SOURCES


WILDCHAT = SOURCES["wildchat"]
TOKENIZER = tiny.tiny_tokenizer()  # a byte a token, three for the template


def texts(prepared):
    return [row["prompt"][0]["content"] for row in prepared.rows]


def total(prepared):
    return sum(prepared.dropped.values()) + prepared.not_sampled + len(prepared.rows)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.text("abAB ", max_size=9), st.booleans(), st.sampled_from(["English", "German"]))),
    num_samples=st.none() | st.integers(1, 5),
    limit=st.none() | st.integers(4, 9),
)
def test_counts_add_up_and_rows_are_the_oracles(rows, num_samples, limit):
    stream = [conversation(text, language, toxic) for text, toxic, language in rows]
    prepared = prepare(stream, WILDCHAT, tokenizer=TOKENIZER, max_prompt_tokens=limit, num_samples=num_samples, seed=3)
    assert prepared.read == len(rows) == total(prepared)
    left: dict[str, str] = {}
    for text, toxic, language in rows:
        if text.strip() and language == "English" and not toxic:
            left.setdefault(" ".join(text.lower().split()), text)
    fit = {text for text in left.values() if limit is None or len(text.encode()) + 3 <= limit}
    assert set(texts(prepared)) <= fit
    assert len(prepared.rows) == min(len(fit), num_samples or len(fit))
    assert prepared.dropped.get("too many tokens", 0) == len(left) - len(fit)


@given(st.permutations(list(range(12))))
def test_the_sample_does_not_depend_on_the_order(order):
    stream = [conversation(f"prompt number {i}") for i in range(12)]
    expected = texts(prepare(stream, WILDCHAT, num_samples=5, seed=1))
    assert texts(prepare([stream[i] for i in order], WILDCHAT, num_samples=5, seed=1)) == expected


def test_seeds_give_other_samples_and_more_samples_extend_them():
    stream = [conversation(f"prompt number {i}") for i in range(200)]
    ten = texts(prepare(stream, WILDCHAT, num_samples=10, seed=1))
    assert texts(prepare(stream, WILDCHAT, num_samples=20, seed=1))[:10] == ten
    assert set(texts(prepare(stream, WILDCHAT, num_samples=10, seed=2))) != set(ten)
    assert texts(prepare(stream, WILDCHAT, num_samples=10, seed=1)) == ten


def test_the_sample_is_even():
    """Each of 40 rows is in about half of 60 samples of 20."""
    stream = [conversation(f"prompt number {i}") for i in range(40)]
    counts = dict.fromkeys((f"prompt number {i}" for i in range(40)), 0)
    for seed in range(60):
        for text in texts(prepare(stream, WILDCHAT, num_samples=20, seed=seed)):
            counts[text] += 1
    assert sum(counts.values()) == 60 * 20 and min(counts.values()) > 15 and max(counts.values()) < 45


def test_prompts_are_dropped_not_cut():
    """FC-047."""
    stream = [conversation("x" * 30), conversation("y" * 31)]
    prepared = prepare(stream, WILDCHAT, tokenizer=TOKENIZER, max_prompt_tokens=33)
    assert texts(prepared) == ["x" * 30] and prepared.dropped == {"too many tokens": 1}
    with pytest.raises(ValueError, match="counted with the policy's tokenizer"):
        prepare(stream, WILDCHAT, max_prompt_tokens=33)


def test_a_column_that_is_missing_is_named():
    with pytest.raises(KeyError, match="wildchat needs the column 'toxic'; row 0 has only"):
        prepare([{"conversation": [], "language": "English"}], WILDCHAT)
