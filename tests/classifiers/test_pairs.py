# SPDX-License-Identifier: Apache-2.0
"""Labelled pairs: read strictly, split by prompt, augmented."""

import json
import random

import pytest
from datasets import Dataset

from tests.classifiers.conftest import word_pairs
from trl_diversity.classifiers.pairs import (
    LabelledPair,
    PairColumns,
    both_orders,
    edited,
    folds_by_prompt,
    load_pairs,
    split_by_prompt,
    sure_negatives,
    sure_positives,
)
from trl_diversity.classifiers.short_pairs import short_pairs


def written(tmp_path, rows):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def row(label, **changes):
    return {"prompt": "p", "generation_0": "a", "generation_1": "b", "similar": label} | changes


def test_labels_are_read_from_numbers_booleans_and_texts(tmp_path):
    """FC-157."""
    labels = [0, 1, False, True, "0", "1", "false", "True", 1.0]
    pairs = load_pairs(written(tmp_path, [row(label) for label in labels]))
    assert [pair.similar for pair in pairs] == [0, 1, 0, 1, 0, 1, 0, 1, 1]


def test_jsonl_and_parquet_hold_the_same(tmp_path):
    rows = [vars(pair) for pair in word_pairs(10)]
    Dataset.from_list(rows).to_parquet(str(tmp_path / "pairs.parquet"))
    assert load_pairs(str(tmp_path / "pairs.parquet")) == load_pairs(written(tmp_path, rows)) == word_pairs(10)


def test_other_column_names(tmp_path):
    path = written(tmp_path, [{"x": "a", "y": "b", "same": label, "q": "why"} for label in (0, 1)])
    assert load_pairs(path, PairColumns("x", "y", "same", "q"))[1] == LabelledPair("a", "b", 1, "why")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"generation_0": "a", "similar": 1}], r"row 1.*'generation_1' is missing.*generation_1_column"),
        ([row(0), {"generation_0": "a", "generation_1": "b"}], "row 2.*'similar' is missing.*label_column"),
        ([row(0), row("maybe")], "row 2.*'maybe'.*0, 1, true or false"),
        ([row(0), row(2)], "row 2.*2.*0, 1, true or false"),
        ([row(0), row(None)], "row 2.*None"),
        ([row(0), row(1, generation_0=7)], "row 2.*'generation_0' is 7"),
        ([row(1), row(True)], "all 2 pairs have the label 1"),
        ([], "holds no pairs"),
    ],
)
def test_data_that_cannot_train_is_an_error_that_shows_the_row(tmp_path, rows, message):
    """FC-157."""
    with pytest.raises(ValueError, match=message):
        load_pairs(written(tmp_path, rows))


def test_a_file_that_is_not_there_or_broken_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing.jsonl"):
        load_pairs(str(tmp_path / "nothing.jsonl"))
    (tmp_path / "broken.jsonl").write_text('{"prompt": \n')
    with pytest.raises(ValueError, match="broken.jsonl, line 1"):
        load_pairs(str(tmp_path / "broken.jsonl"))


def test_no_prompt_is_on_both_sides_of_a_split():
    pairs = word_pairs(60)
    kept, held_out = split_by_prompt(pairs, 0.2, seed=3)
    assert not {pair.prompt for pair in kept} & {pair.prompt for pair in held_out}
    assert len({pair.prompt for pair in held_out}) == 6
    assert sorted(map(str, kept + held_out)) == sorted(map(str, pairs))
    folds = folds_by_prompt(pairs, 5, seed=3)
    assert sorted(index for fold in folds for index in fold) == list(range(60))
    for fold in folds:
        inside = {pairs[index].prompt for index in fold}
        assert all(pairs[index].prompt not in inside for index in range(60) if index not in fold)


def test_both_orders_keep_the_label():
    (first, second) = both_orders([LabelledPair("a", "b", 1, "p")])
    assert (first.generation_0, second.generation_0, second.generation_1, second.similar) == ("a", "b", "a", 1)


def test_unrelated_pairs_are_of_two_prompts_and_copies_of_one():
    pairs = word_pairs(40)
    prompts = {text: pair.prompt for pair in pairs for text in (pair.generation_0, pair.generation_1)}
    for pair in sure_negatives(pairs, 30, seed=0):
        assert pair.similar == 0
        assert prompts[pair.generation_0] != prompts[pair.generation_1]
    for pair in sure_positives(pairs, 30, seed=0):
        assert pair.similar == 1
        assert pair.generation_0 in prompts or pair.generation_1 in prompts
    with pytest.raises(ValueError, match="same prompt"):
        sure_negatives(pairs[:2], 1, seed=0)


def test_an_edit_keeps_nearly_all_words():
    text = " ".join(f"Sentence {index} is about **thing** {index}." for index in range(20))
    words = set(text.lower().replace("*", "").split())
    for seed in range(20):
        copy = set(edited(text, random.Random(seed)).lower().replace("*", "").split())
        assert len(words & copy) >= 0.9 * len(words)


def test_short_pairs_repeat_and_a_third_is_the_same():
    pairs = short_pairs(300, seed=1)
    assert pairs == short_pairs(300, seed=1) != short_pairs(300, seed=2)
    assert sum(pair.similar for pair in pairs) == 100
    different = [pair for pair in pairs if not pair.similar]
    assert all(pair.generation_0.lower() != pair.generation_1.lower() for pair in different)
