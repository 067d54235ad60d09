# SPDX-License-Identifier: Apache-2.0
"""Pairs are encoded as the tokenizer would, and cut fairly where they are too long."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from tests.tiny import tiny_bert_tokenizer, tiny_tokenizer
from trl_diversity.equivalence.pair_encoding import (
    EncodedPair,
    PairEncoder,
    batches_by_cost,
    batches_by_length,
    fair_lengths,
    pad_pairs,
)


BERT = tiny_bert_tokenizer()
BYTES = tiny_tokenizer()


def bytes_with_template():
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <|end|>",
        pair="<bos> $A <|end|> $B:1 <|end|>:1",
        special_tokens=[("<bos>", tokenizer.bos_token_id), ("<|end|>", tokenizer.eos_token_id)],
    )
    return tokenizer


TOKENIZERS = {"bert": BERT, "bytes": BYTES, "bytes with template": bytes_with_template()}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(pairs=st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), min_size=1, max_size=4))
def test_without_a_limit_the_ids_are_those_of_the_tokenizer(name, pairs):
    tokenizer = TOKENIZERS[name]
    for pair, encoded in zip(pairs, PairEncoder(tokenizer)(pairs), strict=True):
        # In a batch: tokenizer(text, "") takes the empty text for no text.
        expected = tokenizer([pair], return_token_type_ids=True)
        assert encoded == EncodedPair(expected["input_ids"][0], expected["token_type_ids"][0], False)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(2, 150))
def test_fair_lengths_properties(first, second, budget):
    kept = fair_lengths(first, second, budget)
    assert kept == fair_lengths(second, first, budget)[::-1]
    assert sum(kept) <= budget
    assert all(kept_length <= length for kept_length, length in zip(kept, (first, second), strict=True))
    # Each side gets all it asks for up to half, and no token is lost while a side could use it, but for one odd token.
    assert all(
        kept_length >= min(length, budget // 2) for kept_length, length in zip(kept, (first, second), strict=True)
    )
    assert sum(kept) >= min(first + second, budget) - 1


@pytest.mark.parametrize(
    ("first", "second", "budget", "expected"),
    [(3, 4, 10, (3, 4)), (30, 4, 10, (6, 4)), (4, 30, 10, (4, 6)), (30, 30, 10, (5, 5)), (30, 30, 11, (5, 5))],
)
def test_fair_lengths_examples(first, second, budget, expected):
    assert fair_lengths(first, second, budget) == expected


def test_a_long_first_text_does_not_push_the_second_one_out():
    (encoded,) = PairEncoder(BERT, max_length=23)([("word " * 400, "the cat is not a dog")])
    tokens = BERT.convert_ids_to_tokens(encoded.input_ids)
    assert tokens == ["[CLS]", *["word"] * 14, "[SEP]", *"the cat is not a dog".split(), "[SEP]"]
    assert encoded.token_type_ids == [0] * 16 + [1] * 7
    assert encoded.truncated


def test_two_long_texts_keep_half_each():
    (encoded,) = PairEncoder(BERT, max_length=13)([("word " * 400, "river " * 400)])
    tokens = BERT.convert_ids_to_tokens(encoded.input_ids)
    assert tokens == ["[CLS]", *["word"] * 5, "[SEP]", *["river"] * 5, "[SEP]"]


def test_max_side_tokens_limits_either_text_and_leaves_no_rest_to_the_other():
    (encoded,) = PairEncoder(BERT, max_length=128, max_side_tokens=3)([("word " * 9, "the cat")])
    assert BERT.convert_ids_to_tokens(encoded.input_ids) == ["[CLS]", *["word"] * 3, "[SEP]", "the", "cat", "[SEP]"]
    assert encoded.truncated


def test_the_tokenizer_decides_which_end_is_cut():
    tokenizer = tiny_bert_tokenizer()
    tokenizer.truncation_side = "left"
    (encoded,) = PairEncoder(tokenizer, max_side_tokens=2)([("word word the cat", "dog")])
    assert tokenizer.convert_ids_to_tokens(encoded.input_ids) == ["[CLS]", "the", "cat", "[SEP]", "dog", "[SEP]"]


def test_truncation_left_on_by_another_user_of_the_tokenizer_does_not_matter():
    tokenizer = tiny_bert_tokenizer()
    whole = PairEncoder(tokenizer)([("word " * 20, "cat")])
    tokenizer("word " * 20, truncation=True, max_length=4, padding="max_length")
    assert PairEncoder(tokenizer)([("word " * 20, "cat")]) == whole


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 9))
def test_batches_of_one_size_hold_every_pair_once_from_long_to_short(lengths, batch_size):
    batches = batches_by_length(lengths, batch_size)
    order = [index for batch in batches for index in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert all(1 <= len(batch) <= batch_size for batch in batches)


def cost(batches, batch_tokens):
    return sum(max(batch) * len(batch) + batch_tokens for batch in batches)


def all_ways_to_cut(items):
    """Every way to cut a list into runs."""
    for cuts in itertools.product((False, True), repeat=max(len(items) - 1, 0)):
        runs = [items[:1]]
        for cut, item in zip(cuts, items[1:], strict=True):
            if cut:
                runs.append([])
            runs[-1].append(item)
        yield runs


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(1, 600), st.integers(0, 100))
def test_batches_by_cost_are_the_cheapest_of_all_within_the_limit(lengths, max_tokens, batch_tokens):
    batches = batches_by_cost(lengths, max_tokens, batch_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    allowed = [
        runs
        for runs in all_ways_to_cut(sorted(lengths, reverse=True))
        if all(len(run) == 1 or max(run) * len(run) <= max_tokens for run in runs)
    ]
    found = [[lengths[index] for index in batch] for batch in batches]
    assert found in allowed
    assert cost(found, batch_tokens) == min(cost(runs, batch_tokens) for runs in allowed)


def test_no_pairs_no_batches():
    assert batches_by_cost([], 512, 8) == batches_by_length([], 4) == []


def test_padding_is_on_the_right_and_masked():
    pairs = PairEncoder(BERT)([("cat", "dog"), ("the cat", "a dog")])
    features = pad_pairs(pairs, BERT, "cpu")
    expected = BERT(["cat", "the cat"], ["dog", "a dog"], padding=True, return_tensors="pt")
    assert set(features) == set(expected)
    assert all((features[name] == expected[name]).all() for name in features)


def test_token_type_ids_are_left_out_where_the_model_does_not_read_them():
    features = pad_pairs(PairEncoder(BYTES)([("a", "b")]), BYTES, "cpu")
    assert ("token_type_ids" in features) == ("token_type_ids" in BYTES.model_input_names)


@pytest.mark.parametrize(
    ("options", "message"), [({"max_length": 4}, "no room"), ({"max_side_tokens": 0}, "at least 1")]
)
def test_impossible_limits_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PairEncoder(BERT, **options)


def test_a_tokenizer_without_the_tokenizers_library_is_refused():
    class SlowTokenizer:
        is_fast = False

    with pytest.raises(ValueError, match="tokenizer.json"):
        PairEncoder(SlowTokenizer())
