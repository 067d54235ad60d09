# SPDX-License-Identifier: Apache-2.0
"""The reference takes the answer's place in tokens, and what cannot be spliced has a reason."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.likelihood import tokenizers
from trl_diversity.likelihood.answer_span import find_answer
from trl_diversity.likelihood.splice import (
    baseline_row,
    prepare_completion,
    reference_text,
    splice_reference,
)
from trl_diversity.likelihood.token_text import decode


# No "<" next to letters of a tag: a reference that holds a tag would be an answer of its own.
PLAIN = st.text(alphabet="ab7 >.{}\\\n東京é🙂", min_size=1, max_size=10).filter(str.strip)
SPACE = st.sampled_from(["", " ", "\n", "\n ", "  "])
BOX_TEXT = st.text(alphabet="ab7 >.東é🙂", min_size=1, max_size=10).filter(str.strip)


@pytest.mark.parametrize("make", tokenizers.EXACT.values(), ids=tokenizers.EXACT)
@given(before=st.text(alphabet="xy >\n東🙂", max_size=6), space=SPACE, answer=PLAIN, after=SPACE, reference=PLAIN)
@settings(max_examples=60)
def test_tags_keep_the_prefix_and_hold_the_reference_once(make, before, space, answer, after, reference):
    tokenizer = make()
    sampled = tokenizer.encode(f"q{before}<answer>{space}{answer}{after}</answer>", add_special_tokens=False)
    span = find_answer(sampled, tokenizer, "tags")
    spliced = splice_reference(span, reference, tokenizer)
    assert spliced.malformed is None
    assert list(spliced.prefix_ids) == sampled[: len(spliced.prefix_ids)]
    lead = len(answer) - len(answer.lstrip())
    trail = len(answer) - len(answer.rstrip())
    white = (space + answer[:lead], answer[len(answer) - trail :] + after)
    wanted = f"q{before}<answer>{white[0]}{reference.strip()}{white[1]}</answer>"
    assert decode(spliced.completion_ids, tokenizer) == wanted
    again = find_answer(spliced.completion_ids, tokenizer, "tags")
    assert (again.answer, again.malformed) == (reference.strip(), None)
    # Exactly the tokens that spell a character of the reference are scored.
    start = len(f"q{before}<answer>{white[0]}")
    context = spliced.prefix_ids + spliced.lead_ids
    assert wanted[:start].startswith(decode(context, tokenizer))
    assert not wanted[:start].startswith(decode(context + spliced.reference_ids[:1], tokenizer))
    through = wanted[: start + len(reference.strip())]
    assert decode(context + spliced.reference_ids, tokenizer).startswith(through)
    assert not decode(context + spliced.reference_ids[:-1], tokenizer).startswith(through)


@pytest.mark.parametrize("make", tokenizers.EXACT.values(), ids=tokenizers.EXACT)
@given(answer=BOX_TEXT, reference=BOX_TEXT)
@settings(max_examples=30)
def test_boxes_keep_the_prefix_and_hold_the_reference_once(make, answer, reference):
    tokenizer = make()
    sampled = tokenizer.encode(f"so \\boxed{{{answer}}}.", add_special_tokens=False)
    spliced = splice_reference(find_answer(sampled, tokenizer, "boxed"), reference, tokenizer)
    assert list(spliced.prefix_ids) == sampled[: len(spliced.prefix_ids)]
    again = find_answer(spliced.completion_ids, tokenizer, "boxed")
    assert again.answer == reference.strip()
    assert decode(spliced.completion_ids, tokenizer).endswith("}")


@pytest.mark.parametrize("make", [tokenizers.merging_bpe, tokenizers.gpt_bpe, tokenizers.tagged_bpe])
@given(answer=PLAIN)
@settings(max_examples=30)
def test_a_reference_equal_to_the_answer_gives_the_ids_that_were_sampled(make, answer):
    tokenizer = make()
    # Not where a token lies across the border of prefix and answer: that is another cut of the same text.
    prefix, ids = (
        tokenizer.encode("<think>x</think>\n<answer>" + text, add_special_tokens=False)
        for text in ("", f"{answer.strip()}</answer>")
    )
    assume(ids[: len(prefix)] == prefix)
    span = find_answer(ids, tokenizer, "tags")
    assert splice_reference(span, answer, tokenizer).reference_ids == span.answer_ids


@pytest.mark.parametrize(
    ("value", "text"),
    [(42, "42"), (0.25, "0.25"), (1e-07, "1e-07"), (True, "True"), (" 7\n", "7"), (None, ""), ("", ""), (" ", ""),
     (float("nan"), ""), (np.int64(42), "42"), (np.float64(0.25), "0.25"), (np.float32("nan"), ""), (-3, "-3")],
)  # fmt: skip
def test_reference_text(value, text):  # FC-045
    assert reference_text(value) == text


@pytest.mark.parametrize("value", [["42"], {"a": 1}, b"42"])
def test_a_reference_of_another_type_is_an_error_that_names_it(value):
    with pytest.raises(ValueError, match=type(value).__name__):
        reference_text(value)


@pytest.mark.parametrize(("reference", "text"), [(42, "42"), (0.25, "0.25")])
def test_numbers_are_spliced_as_text(reference, text):  # FC-045
    tokenizer = tokenizers.gpt_bpe()
    ids = tokenizer.encode("<answer>x</answer>", add_special_tokens=False)
    prepared = prepare_completion([1], ids, reference, tokenizer)
    assert decode(prepared.row.reference_ids, tokenizer) == text


# FC-092: a cut by offsets would lose the first character of each.
@pytest.mark.parametrize("reference", [">5", "<b>yes", "/2"])
@pytest.mark.parametrize("make", tokenizers.EXACT.values(), ids=tokenizers.EXACT)
def test_every_character_of_a_reference_is_scored(make, reference):
    tokenizer = make()
    ids = tokenizer.encode("<think>x</think>\n<answer>7</answer>", add_special_tokens=False)
    spliced = splice_reference(find_answer(ids, tokenizer, "tags"), reference, tokenizer)
    assert reference in decode(spliced.reference_ids, tokenizer)
    assert decode(spliced.completion_ids, tokenizer) == f"<think>x</think>\n<answer>{reference}</answer>"


# FC-091: encoded together, context and reference may have fewer tokens than the context alone.
@pytest.mark.parametrize("make", tokenizers.EXACT.values(), ids=tokenizers.EXACT)
def test_a_reference_that_merges_with_the_prefix_has_a_token_of_its_own(make):
    tokenizer = make()
    context = tokenizer.encode("The capi", add_special_tokens=False)
    ids = [*context, *tokenizer.encode("x", add_special_tokens=False)[-1:]]
    spliced = splice_reference(find_answer(ids, tokenizer, r"capi(.+)"), "tal", tokenizer)
    assert len(spliced.reference_ids) >= 1
    assert decode(spliced.completion_ids, tokenizer) == "The capital"


def test_the_border_token_is_told_apart_where_the_reference_allows_it():
    tokenizer = tokenizers.glued_bytes()
    ids = tokenizer.encode("<answer>5</answer>", add_special_tokens=False)
    prepared = prepare_completion([1], ids, "8", tokenizer)
    assert decode(prepared.row.prefix_ids[1:], tokenizer) == "<answer"
    assert (decode(prepared.row.reference_ids, tokenizer), prepared.row.reference_lead) == (">8", 1)
    glued = prepare_completion([1], ids, "5", tokenizer)
    assert (decode(glued.row.reference_ids, tokenizer), glued.row.reference_lead) == (">5", 0)


def test_the_thinking_that_the_prompt_opens_is_opened_once():  # FC-036
    tokenizer = tokenizers.gpt_bpe()
    prompt_ids = tokenizer.encode("<|im_start|>assistant\n<think>\n", add_special_tokens=False)
    completion_ids = tokenizer.encode("2 plus 2 is 4.\n</think>\n<answer>4</answer>", add_special_tokens=False)
    row = prepare_completion(prompt_ids, completion_ids, "4", tokenizer).row
    assert decode(row.prefix_ids, tokenizer).count("<think>") == 1
    assert row.answer_ids == row.reference_ids


@pytest.mark.parametrize("completion", ["<think>x</think><answer>7", "<think>x</think><answer>7<|endoftext|>"])
def test_the_closing_tag_is_supplied_once(completion):  # FC-101
    tokenizer = tokenizers.gpt_bpe()
    ids = tokenizer.encode(completion, add_special_tokens=False)
    spliced = splice_reference(find_answer(ids, tokenizer, "tags"), "7", tokenizer)
    assert decode(spliced.completion_ids, tokenizer) == "<think>x</think><answer>7</answer>"


# FC-095, FC-090: what does not fit is neither cut nor scored in part.
def test_a_reference_longer_than_the_room_is_too_long():
    tokenizer = tokenizers.one_per_character()
    prompt_ids = tokenizer.encode("hi", add_special_tokens=False)
    completion_ids = tokenizer.encode("jk:xx", add_special_tokens=False)

    def prepare(max_length):
        return prepare_completion(prompt_ids, completion_ids, "lm", tokenizer, r":(.+)", max_length=max_length)

    assert prepare(6).malformed == "too_long"
    assert prepare(6).row is None
    row = prepare(7).row
    assert decode(row.prefix_ids, tokenizer) == "hijk:"
    assert (decode(row.reference_ids, tokenizer), row.reference_lead) == ("lm", 0)
    assert prepare(None).row == row


def test_reasons_reach_the_prepared_completion():
    tokenizer = tokenizers.metaspace_unigram()
    ids = tokenizer.encode("<answer>7</answer>", add_special_tokens=False)
    assert prepare_completion([1], ids, None, tokenizer).malformed == "empty_reference"
    assert prepare_completion([1], ids, "ж", tokenizer).malformed == "unencodable"
    assert prepare_completion([1], ids[:-1], "7", tokenizer).malformed is None
    assert prepare_completion([1], [], "7", tokenizer).malformed == "no_tag"


@pytest.mark.parametrize("prompt_ids", [{"input_ids": [1], "attention_mask": [1]}, "ab", [1.0], np.array([1])])
def test_prompt_ids_must_be_ids(prompt_ids):  # FC-107
    with pytest.raises(TypeError, match="input_ids"):
        prepare_completion(prompt_ids, [5], "7", tokenizers.gpt_bpe())


def test_the_prefix_is_as_long_as_the_prompt_and_the_reasoning():  # FC-107
    tokenizer = tokenizers.gpt_bpe()
    prompt_ids = tokenizer.encode("2+2 is what?", add_special_tokens=False)
    completion_ids = tokenizer.encode("<answer>4</answer>", add_special_tokens=False)
    prepared = prepare_completion(prompt_ids, completion_ids, "4", tokenizer)
    assert len(prepared.row.prefix_ids) == len(prompt_ids) + len(prepared.span.prefix_ids)
    assert list(prepared.row.prefix_ids[: len(prompt_ids)]) == prompt_ids


def test_an_empty_prompt_is_an_error():
    with pytest.raises(ValueError, match="prompt_ids is empty"):
        prepare_completion([], [5], "7", tokenizers.gpt_bpe())


@pytest.mark.parametrize(
    ("answer_format", "prompt", "text"),
    [
        ("tags", "2+2?", "2+2?<answer>4"),
        ("tags", "2+2? <think>\n", "2+2? <think>\n</think>\n\n<answer>4"),
        ("tags", "2+2? <answer>", "2+2? <answer>4"),
        ("boxed", "2+2?", "2+2?\\boxed{4"),
        ("after_think", "2+2?", "2+2?4"),
        ("after_think", "2+2? <think>", "2+2? <think></think>\n\n4"),
        (r"= (\d+)", "2+2", "2+24"),
    ],
)
@pytest.mark.parametrize("make", tokenizers.EXACT.values(), ids=tokenizers.EXACT)
def test_baseline_row(make, answer_format, prompt, text):  # FC-106
    tokenizer = make()
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    row = baseline_row(prompt_ids, 4, tokenizer, answer_format)
    assert list(row.prefix_ids[: len(prompt_ids)]) == prompt_ids
    assert row.answer_ids == ()
    assert decode(row.prefix_ids + row.reference_ids, tokenizer).removesuffix("}") == text


def test_baseline_row_options():
    tokenizer = tokenizers.gpt_bpe()
    ids = tokenizer.encode("2+2?", add_special_tokens=False)
    row = baseline_row(ids, "4", tokenizer, r"= (\d+)", opening=" = ")
    assert decode(row.prefix_ids + row.reference_ids, tokenizer) == "2+2? = 4"
    assert baseline_row(ids, None, tokenizer) is None
    assert baseline_row(ids, "4", tokenizer, max_length=len(ids)) is None
