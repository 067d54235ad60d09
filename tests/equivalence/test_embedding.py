# SPDX-License-Identifier: Apache-2.0
"""Cosines of sentence embeddings, against a computation by hand."""

import json
import random
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from tests.tiny import save_tiny_causal_lm, save_tiny_sentence_transformer
from trl_diversity.equivalence import EmbeddingEquivalence
from trl_diversity.equivalence.embedding import load_sentence_transformer


PAIRS = [("the cat", "a dog"), ("no", "yes"), ("cat", "river " * 10), ("cat", "cat"), ("dog", "cat")]


@pytest.fixture
def equivalence(sentence_transformer_path):
    return EmbeddingEquivalence(sentence_transformer_path, threshold=0.7, device="cpu")


def watch_encoded(equivalence, monkeypatch):
    """List that fills with every text the model encodes."""
    encoded = []
    original = equivalence.sentence_transformer.encode

    def encode(texts, **kwargs):
        encoded.extend(texts)
        return original(texts, **kwargs)

    monkeypatch.setattr(equivalence.sentence_transformer, "encode", encode)
    return encoded


def test_scores_are_cosines_of_mean_pooled_token_states(equivalence, sentence_transformer_path):
    tokenizer = AutoTokenizer.from_pretrained(sentence_transformer_path)
    model = AutoModel.from_pretrained(sentence_transformer_path).eval()

    def embedding(text):
        with torch.no_grad():
            return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0)

    expected = [torch.cosine_similarity(embedding(one), embedding(other), dim=0).item() for one, other in PAIRS]
    scores = equivalence.score_pairs(PAIRS)
    assert scores == pytest.approx(expected, abs=1e-5)
    assert all(type(score) is float and 0 <= score <= 1 for score in scores)
    assert equivalence.score_pairs([]) == []


def test_negative_cosines_become_0_and_a_zero_vector_equals_nothing(equivalence, monkeypatch):
    vectors = {"east": [1.0, 0.0], "west": [-2.0, 0.0], "north-east": [3.0, 3.0], "nowhere": [0.0, 0.0]}
    monkeypatch.setattr(
        equivalence.sentence_transformer, "encode", lambda texts, **_: np.array([vectors[text] for text in texts])
    )
    pairs = [("east", "west"), ("east", "north-east"), ("east", "east"), ("nowhere", "east")]
    assert equivalence.score_pairs(pairs) == pytest.approx([0.0, 2**-0.5, 1.0, 0.0])


def test_each_distinct_text_is_encoded_once_also_over_calls(equivalence, monkeypatch):
    encoded = watch_encoded(equivalence, monkeypatch)
    first = equivalence.score_pairs(PAIRS)
    assert sorted(encoded) == sorted({text for pair in PAIRS for text in pair})
    encoded.clear()
    assert equivalence.score_pairs([*PAIRS, ("cat", "blue")])[:-1] == first
    assert encoded == ["blue"]


@pytest.mark.parametrize(("cache_size", "expected"), [(0, ["a", "b"]), (1, ["a"]), (2, [])])
def test_cache_size_bounds_what_is_kept(sentence_transformer_path, monkeypatch, cache_size, expected):
    equivalence = EmbeddingEquivalence(sentence_transformer_path, 0.7, cache_size=cache_size, device="cpu")
    encoded = watch_encoded(equivalence, monkeypatch)
    equivalence.score_pairs([("a", "b")])
    encoded.clear()
    equivalence.score_pairs([("a", "b")])
    assert encoded == expected


def test_batch_size_reaches_the_model_and_changes_no_score(sentence_transformer_path, equivalence):
    other = EmbeddingEquivalence(sentence_transformer_path, 0.7, batch_size=2, device="cpu")
    batches = []
    other.sentence_transformer[0].register_forward_pre_hook(lambda _, args: batches.append(len(args[0]["input_ids"])))
    assert other.score_pairs(PAIRS) == pytest.approx(equivalence.score_pairs(PAIRS), abs=1e-5)
    assert batches == [2, 2, 2, 1]


def test_texts_equal_up_to_the_limit_are_counted_and_said_once(equivalence, caplog):
    """FC-148: 128 tokens are read, so a long opening hides how two texts end."""
    opening = "word " * 200
    yes, no = opening + "so the answer is yes", opening + "so the answer is no"
    assert equivalence.score_pairs([(yes, no), (no, "cat"), ("cat", "dog")])[0] == pytest.approx(1.0, abs=1e-6)
    equivalence.score_pairs([(yes, no)])
    assert equivalence.pop_statistics() == {"truncated_pairs": 3}
    assert equivalence.pop_statistics() == {"truncated_pairs": 0}
    assert len([record for record in caplog.records if "diversity_text" in record.message]) == 1


def test_a_text_of_exactly_the_limit_is_not_cut(equivalence):
    equivalence.score_pairs([("word " * 126, "word " * 127)])  # two special tokens more
    assert equivalence.pop_statistics() == {"truncated_pairs": 1}


def test_the_end_of_long_texts_can_be_compared_instead(equivalence):
    """FC-148: what `diversity_text="last_tokens"` hands over is told apart."""
    yes, no = ("word " * 100 + f"so the answer is {end}" for end in ("yes", "no"))
    (score,) = equivalence.score_pairs([(yes, no)])
    assert score < 1 - 1e-6
    assert equivalence.pop_statistics() == {"truncated_pairs": 0}


def test_the_threshold_is_the_argument_else_the_checkpoint_s_else_07(sentence_transformer_path, tmp_path, caplog):
    path = save_tiny_sentence_transformer(tmp_path, trl_diversity={"threshold": 0.42})
    assert EmbeddingEquivalence(path, 0.3, device="cpu").threshold == 0.3
    assert EmbeddingEquivalence(path, device="cpu").threshold == 0.42
    assert "no threshold" not in caplog.text
    assert EmbeddingEquivalence(sentence_transformer_path, device="cpu").threshold == 0.7
    assert "no threshold of its own: 0.7 is used" in caplog.text


def test_dtype_and_device_are_used_for_names_and_for_loaded_models(equivalence, sentence_transformer_path):
    assert equivalence.dtype is torch.float32
    by_name = EmbeddingEquivalence(sentence_transformer_path, 0.7, device="cpu", dtype="bfloat16")
    loaded = EmbeddingEquivalence(SentenceTransformer(sentence_transformer_path, device="cpu"), 0.7, dtype="bfloat16")
    for other in (by_name, loaded):
        assert other.dtype is torch.bfloat16
        assert other.score_pairs(PAIRS) == pytest.approx(equivalence.score_pairs(PAIRS), abs=0.05)
    model = SentenceTransformer(sentence_transformer_path, device="cpu")
    assert EmbeddingEquivalence(model, 0.7, device="meta").device.type == "meta"


def test_a_loaded_model_in_training_mode_is_scored_without_dropout(equivalence, sentence_transformer_path):
    model = SentenceTransformer(sentence_transformer_path, device="cpu")
    other = EmbeddingEquivalence(model, 0.7)
    model.train()
    assert other.score_pairs(PAIRS) == equivalence.score_pairs(PAIRS)


def test_loading_and_scoring_leave_the_global_generators_alone(sentence_transformer_path):
    """FC-059."""
    states = []
    for build in (False, True):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        if build:
            EmbeddingEquivalence(sentence_transformer_path, 0.7, device="cpu").score_pairs(PAIRS)
        states.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert states[0] == states[1]


@pytest.fixture
def custom_code_path(sentence_transformer_path, tmp_path, monkeypatch):
    """A checkpoint of which the first module is a class of its own code."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    path = tmp_path / "model"
    shutil.copytree(sentence_transformer_path, path)
    modules = json.loads((path / "modules.json").read_text())
    modules[0]["type"] = "custom_code.CustomTransformer"
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "custom_code.py").write_text(
        "from sentence_transformers.base.modules import Transformer\n\n\nclass CustomTransformer(Transformer):\n"
        "    pass\n"
    )
    return str(path)


def test_custom_code_is_refused_by_default(custom_code_path):
    """FC-156."""
    with pytest.raises(ValueError, match="custom_code.CustomTransformer.*trust_remote_code"):
        EmbeddingEquivalence(custom_code_path, 0.7, device="cpu")


def test_trust_remote_code_is_passed_on(custom_code_path, equivalence):
    """FC-156."""
    other = EmbeddingEquivalence(custom_code_path, 0.7, device="cpu", trust_remote_code=True)
    assert type(other.sentence_transformer[0]).__name__ == "CustomTransformer"
    assert other.score_pairs(PAIRS) == pytest.approx(equivalence.score_pairs(PAIRS), abs=1e-6)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"cache_size": -1}])
def test_impossible_numbers_are_refused(sentence_transformer_path, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        EmbeddingEquivalence(sentence_transformer_path, 0.7, **options)


def test_a_language_model_without_modules_reads_the_text_and_no_chat_template(tmp_path):
    """As the base of a bi-encoder; sentence-transformers alone would embed it as a message of a user."""
    path = save_tiny_causal_lm(tmp_path)
    model = load_sentence_transformer(path, "cpu", "float32", False, None)
    tokenizer, plain = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    with torch.no_grad():
        expected = plain(**tokenizer("the cat is blue", return_tensors="pt")).last_hidden_state[0, -1]
    np.testing.assert_allclose(model.encode("the cat is blue"), expected.numpy(), atol=1e-5)
    model.save_pretrained(str(tmp_path / "saved"))
    saved = load_sentence_transformer(str(tmp_path / "saved"), "cpu", "float32", False, None)
    np.testing.assert_allclose(saved.encode("the cat is blue"), expected.numpy(), atol=1e-5)
