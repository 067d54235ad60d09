# SPDX-License-Identifier: Apache-2.0
"""Prompts that are too long are left out or named, never cut."""

import logging

import pytest
from datasets import Dataset

from tests import tiny
from trl_diversity.data.prompt_lengths import drop_long_prompts, prompt_token_count, refuse_long_prompts


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tiny_tokenizer()  # a byte a token, and special tokens


def conversation(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_a_conversation_counts_its_template(tokenizer):
    """`<|user|>`, ten bytes, `<|end|>` and `<|assistant|>`."""
    assert prompt_token_count("a" * 10, tokenizer) == 10
    assert prompt_token_count(conversation("a" * 10), tokenizer) == 13


def test_template_arguments_count(tokenizer):
    other = tiny.tiny_tokenizer(chat_template="{% if long %}xxxxx{% endif %}{{ messages[0]['content'] }}")
    assert prompt_token_count(conversation("ab"), other) == 2
    assert prompt_token_count(conversation("ab"), other, {"long": True}) == 7


@pytest.mark.parametrize("streaming", [False, True])
def test_exactly_the_long_ones_go(tokenizer, caplog, streaming):
    rows = [{"prompt": conversation("x" * n), "answer": str(n)} for n in (5, 8, 7, 6, 20)]
    dataset = Dataset.from_list(rows)
    with caplog.at_level(logging.INFO, logger="trl_diversity"):
        kept = drop_long_prompts(dataset.to_iterable_dataset() if streaming else dataset, tokenizer, 10)
    assert [row["answer"] for row in kept] == ["5", "7", "6"]
    assert next(iter(kept))["prompt"] == conversation("xxxxx")  # not cut
    assert streaming or "2 of 5 prompts have more than 10 tokens" in caplog.text


def test_nothing_left_is_an_error(tokenizer):
    dataset = Dataset.from_list([{"prompt": "long enough"}])
    with pytest.raises(ValueError, match="all 1 prompts have more than `max_prompt_tokens=3`"):
        drop_long_prompts(dataset, tokenizer, 3)
    with pytest.raises(ValueError, match="at least 1; got 0"):
        drop_long_prompts(dataset, tokenizer, 0)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_prompt_that_the_generator_cannot_take_is_named(tokenizer, streaming):
    """FC-047."""
    dataset = Dataset.from_list([{"prompt": "short"}, {"prompt": "y" * 3000}, {"prompt": "z" * 4000}])
    dataset = dataset.to_iterable_dataset() if streaming else dataset
    with pytest.raises(ValueError, match=r"row 1 has 3000 tokens.*leave room for 1536.*max_prompt_tokens: 1536"):
        list(refuse_long_prompts(dataset, tokenizer, 2048 - 512, "`vllm_max_model_length=2048`"))
    assert len(list(refuse_long_prompts(dataset, tokenizer, 4000, "nothing"))) == 3
