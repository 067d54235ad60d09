# SPDX-License-Identifier: Apache-2.0
"""Characters and tokens: places are right where tokens overlap, split a character, or spell nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.likelihood import tokenizers
from trl_diversity.likelihood.token_text import TokenText, decode, encode_answer, encode_continuation


TEXTS = st.text(alphabet="ab >5<}{\\\n7東京é🙂/", min_size=0, max_size=12)


def slow_count_before(ids, tokenizer, position):
    """By trying every number of ids."""
    text = decode(ids, tokenizer)
    return max(
        count
        for count in range(len(ids) + 1)
        if (prefix := decode(ids[:count], tokenizer)) == text[: len(prefix)] and len(prefix) <= position
    )


@pytest.mark.parametrize("name", tokenizers.EXACT)
@given(text=TEXTS, data=st.data())
def test_count_before_is_the_longest_run_that_ends_in_time(name, text, data):
    tokenizer = tokenizers.EXACT[name]()
    ids = tokenizer.encode("x" + text, add_special_tokens=False)
    spelled = TokenText(ids, tokenizer)
    assert spelled.text == "x" + text
    position = data.draw(st.integers(0, len(spelled.text)))
    assert spelled.count_before(position) == slow_count_before(ids, tokenizer, position)


@pytest.mark.parametrize("name", tokenizers.EXACT)
@given(text=TEXTS, data=st.data())
def test_count_covering_is_the_shortest_run_that_spells_the_characters(name, text, data):
    tokenizer = tokenizers.EXACT[name]()
    ids = tokenizer.encode("x" + text, add_special_tokens=False)
    spelled = TokenText(ids, tokenizer)
    position = data.draw(st.integers(0, len(spelled.text)))
    wanted = spelled.text[:position]
    slow = next(count for count in range(len(ids) + 1) if decode(ids[:count], tokenizer).startswith(wanted))
    assert spelled.count_covering(position) == slow


@given(ids=st.lists(st.integers(4, 259), max_size=12), position=st.integers(0, 12))
def test_bytes_that_are_no_text_keep_their_order(ids, position):
    tokenizer = tokenizers.glued_bytes()
    spelled = TokenText(ids, tokenizer)
    count = spelled.count_before(position)
    assert spelled.spelled(count)[0] <= max(position, 0)
    assert spelled.text.startswith(decode(ids[:count], tokenizer))
    covering = spelled.count_covering(min(position, len(spelled.text)))
    assert spelled.spelled(covering)[0] >= min(position, len(spelled.text))


def test_decoding_is_not_quadratic():
    tokenizer = tokenizers.gpt_bpe()
    ids = tokenizer.encode("<think>two plus two is four</think>" * 200, add_special_tokens=False)
    spelled = TokenText(ids, tokenizer)
    spelled.count_before(len(spelled.text) // 2)
    spelled.count_covering(len(spelled.text) - 5)
    assert len(spelled._known) < 40 < len(ids)


@pytest.mark.parametrize("name", tokenizers.EXACT)
@given(context=TEXTS, text=TEXTS)
def test_a_continuation_spells_the_text_and_leaves_the_context_alone(name, context, text):
    tokenizer = tokenizers.EXACT[name]()
    context_ids = tokenizer.encode("x" + context, add_special_tokens=False)
    ids = encode_continuation(text, context_ids, tokenizer)
    assert ids is not None
    assert decode(context_ids + ids, tokenizer) == "x" + context + text


def test_metaspace_adds_no_space_in_front():
    tokenizer = tokenizers.metaspace_bpe()
    context = tokenizer.encode("<answer>", add_special_tokens=False)
    assert tokenizer.decode(context + tokenizer.encode("42", add_special_tokens=False)) == "<answer> 42"
    assert decode(context + encode_continuation("42", context, tokenizer), tokenizer) == "<answer>42"


def test_a_text_that_the_tokenizer_cannot_spell_is_none():
    tokenizer = tokenizers.metaspace_unigram()
    context = tokenizer.encode("<answer>", add_special_tokens=False)
    assert encode_continuation("ж", context, tokenizer) is None
    assert encode_answer("", "ж", "</answer>", context, tokenizer) is None


# FC-104: the token that is a space only is not part of the answer, and not counted twice.
def test_the_space_only_token_before_japanese_is_not_the_answer():
    tokenizer = tokenizers.metaspace_unigram()
    context = tokenizer.encode("x <answer>", add_special_tokens=False)
    encoded = encode_answer(" ", "東京", "</answer>", context, tokenizer)
    assert tokenizer.convert_ids_to_tokens(list(encoded.lead_ids)) == ["▁"]
    assert tokenizer.convert_ids_to_tokens(list(encoded.answer_ids)) == ["東京"]
    tokenizer = tokenizers.metaspace_bpe()  # here the space is a part of the token
    encoded = encode_answer(" ", "東京", "</answer>", tokenizer.encode("x <answer>"), tokenizer)
    assert (encoded.lead_ids, tokenizer.convert_ids_to_tokens(list(encoded.answer_ids))) == ((), ["▁東", "京"])


# FC-103: every byte token of a character that has no token of its own is scored, once.
def test_every_byte_token_of_a_character_is_the_answer():
    tokenizer = tokenizers.glued_bytes()
    context = tokenizer.encode("<answer>", add_special_tokens=False)
    encoded = encode_answer("", "東京", "</answer>", context, tokenizer)
    assert len(encoded.answer_ids) == len("東京".encode()) == 6
    assert encoded.lead_ids == ()


def test_a_normalising_tokenizer_gets_its_own_form_of_the_answer():
    tokenizer = tokenizers.gpt_bpe(nfc=True)
    context = tokenizer.encode("<answer>", add_special_tokens=False)
    encoded = encode_answer("", "cafe\u0301", "</answer>", context, tokenizer)
    assert encoded.answer == "caf\u00e9"
    assert decode(encoded.answer_ids, tokenizer) == "caf\u00e9"
    ligature = encode_answer(
        "",
        "ﬁve",
        "",
        tokenizers.metaspace_unigram().encode("<", add_special_tokens=False),
        tokenizers.metaspace_unigram(),
    )
    assert ligature.answer == "five"


def test_parts_that_share_a_token_are_scored_and_parts_that_do_not_are_not():
    tokenizer = tokenizers.glued_bytes()
    context = tokenizer.encode("<answer", add_special_tokens=False)
    glued = encode_answer(">", "5", "</answer>", context, tokenizer)
    assert (glued.lead_ids, decode(glued.answer_ids, tokenizer)) == ((), ">5")
    apart = encode_answer(">", "8", "</answer>", context, tokenizer)
    assert (decode(apart.lead_ids, tokenizer), decode(apart.answer_ids, tokenizer)) == (">", "8")
    closing = encode_answer(">", "\\frac{1}{3}", "</answer>", context, tokenizer)
    assert decode(closing.answer_ids, tokenizer).endswith("}</")
