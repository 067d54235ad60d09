# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that need care: decoders without a pad token, missing heads, custom code, odd label counts."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from tests.tiny import CHAT_TEMPLATE, save_tiny_causal_lm, save_tiny_decoder_classifier, save_tiny_pair_classifier
from trl_diversity.equivalence import CrossEncoderEquivalence
from trl_diversity.equivalence.loading import read_plain_text


PAIRS = [("the cat", "a dog"), ("no", "yes and no " * 10), ("river " * 8, "blue"), ("a", "b"), ("it is", "42")]

CUSTOM_CODE = """
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer


class CustomConfig(BertConfig):
    model_type = "custom-bert"


class CustomClassifier(BertForSequenceClassification):
    config_class = CustomConfig


class CustomTokenizer(BertTokenizer):
    pass
"""


def edit_json(path: Path, **changes):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in (content | changes).items() if value is not None}))


@pytest.mark.parametrize("pad_token", [None, "<pad>"])
def test_a_decoder_without_pad_token_gets_one_and_its_scores_do_not_change_with_batch_size(
    decoder_classifier_path, tmp_path, pad_token
):
    """FC-154: neither tokenizer nor config has a pad token, or the tokenizer alone."""
    shutil.copytree(decoder_classifier_path, tmp_path, dirs_exist_ok=True)
    if pad_token is not None:
        edit_json(tmp_path / "tokenizer_config.json", pad_token=pad_token)
    single = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.pad_token == pad_token
    assert single.config.pad_token_id is None
    with torch.no_grad():
        expected = [single(**tokenizer(*p, return_tensors="pt")).logits.softmax(1)[0, 1].item() for p in PAIRS]
    for batch_size in (1, 2, 8):
        equivalence = CrossEncoderEquivalence(str(tmp_path), 0.5, batch_size=batch_size, device="cpu")
        assert equivalence.score_pairs(PAIRS) == pytest.approx(expected, abs=1e-5)
    assert equivalence.cross_encoder.tokenizer.pad_token == (pad_token or "<|end|>")
    assert equivalence.cross_encoder.config.pad_token_id == equivalence.cross_encoder.tokenizer.pad_token_id


def test_a_decoder_that_pads_left_gets_the_same_scores(decoder_classifier_path, tmp_path):
    """FC-154."""
    shutil.copytree(decoder_classifier_path, tmp_path, dirs_exist_ok=True)
    edit_json(tmp_path / "tokenizer_config.json", padding_side="left")
    right = CrossEncoderEquivalence(decoder_classifier_path, 0.5, device="cpu")
    left = CrossEncoderEquivalence(str(tmp_path), 0.5, device="cpu")
    assert left.cross_encoder.tokenizer.padding_side == "left"
    # The tokenizer class brought a pad token of its own, with an id beyond the checkpoint's embeddings.
    assert AutoTokenizer.from_pretrained(tmp_path).pad_token_id == left.cross_encoder.config.vocab_size
    assert left.cross_encoder.tokenizer.pad_token == "<|end|>"
    assert left.score_pairs(PAIRS) == right.score_pairs(PAIRS)


def with_template(path, template, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(path)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in ("<bos>", "<|end|>")}
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A", pair=template, special_tokens=list(ids.items())
    )
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_token_that_ends_every_pair_is_not_taken_for_padding(decoder_classifier_path, tmp_path):
    """FC-154: the classifier reads the last token that is no padding, which here is the end token itself."""
    path = with_template(decoder_classifier_path, "$A $B <|end|>", tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    with torch.no_grad():
        expected = [model(**tokenizer(*p, return_tensors="pt")).logits.softmax(1)[0, 1].item() for p in PAIRS]
    equivalence = CrossEncoderEquivalence(path, 0.5, device="cpu")
    assert equivalence.cross_encoder.tokenizer.pad_token == "<bos>"
    assert equivalence.score_pairs(PAIRS) == pytest.approx(expected, abs=1e-5)


def test_a_decoder_without_any_token_to_spare_is_refused(decoder_classifier_path, tmp_path):
    path = with_template(decoder_classifier_path, "<bos> $A $B <|end|>", tmp_path)
    with pytest.raises(ValueError, match="none to spare: set its `pad_token`"):
        CrossEncoderEquivalence(path, 0.5, device="cpu")


def test_one_label_decoders_work_too(tmp_path):
    path = save_tiny_decoder_classifier(tmp_path, num_labels=1)
    assert all(0 < score < 1 for score in CrossEncoderEquivalence(path, 0.5, device="cpu").score_pairs(PAIRS))


@pytest.mark.parametrize("keep_architecture_name", [True, False])
def test_a_missing_head_is_an_error_and_never_random(pair_classifier_path, tmp_path, keep_architecture_name):
    AutoModel.from_pretrained(pair_classifier_path).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(pair_classifier_path).save_pretrained(tmp_path)
    if keep_architecture_name:
        edit_json(tmp_path / "config.json", architectures=["BertForSequenceClassification"])
    with pytest.raises(ValueError, match="classifier|is no equivalence model"):
        CrossEncoderEquivalence(str(tmp_path), 0.5, device="cpu")


def test_the_missing_weights_are_named(pair_classifier_path, tmp_path):
    AutoModel.from_pretrained(pair_classifier_path).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(pair_classifier_path).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", architectures=["BertForSequenceClassification"])
    with pytest.raises(ValueError, match=r"'classifier.bias', 'classifier.weight'"):
        CrossEncoderEquivalence(str(tmp_path), 0.5, device="cpu")


def test_three_labels_are_refused(tmp_path):
    path = save_tiny_pair_classifier(tmp_path, num_labels=3)
    with pytest.raises(ValueError, match="3 labels"):
        CrossEncoderEquivalence(path, 0.5, device="cpu")


def test_a_default_prompt_is_refused(pair_classifier_path):
    model = CrossEncoder(pair_classifier_path, device="cpu", prompts={"task": "Same? "}, default_prompt_name="task")
    with pytest.raises(ValueError, match="'Same\\? '"):
        CrossEncoderEquivalence(model, 0.5)


@pytest.fixture
def chat_classifier_path(tmp_path):
    """A decoder with a head whose tokenizer has a chat template, as most have."""
    path = save_tiny_decoder_classifier(tmp_path / "chat", num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(path)
    return path


def test_a_chat_template_does_not_change_how_a_pair_is_read(chat_classifier_path):
    """sentence-transformers alone would render the texts as messages of the roles "query" and "document"."""
    tokenizer = AutoTokenizer.from_pretrained(chat_classifier_path)
    model = AutoModelForSequenceClassification.from_pretrained(chat_classifier_path).eval()
    with torch.no_grad():
        expected = [model(**tokenizer(*pair, return_tensors="pt")).logits.sigmoid().item() for pair in PAIRS]
    equivalence = CrossEncoderEquivalence(chat_classifier_path, 0.5, device="cpu")
    assert equivalence.score_pairs(PAIRS) == pytest.approx(expected, abs=1e-5)
    assert equivalence.cross_encoder.predict(PAIRS) == pytest.approx(expected, abs=1e-5)


def test_a_classifier_that_was_trained_on_messages_is_refused(chat_classifier_path, tmp_path):
    cross_encoder = CrossEncoder(chat_classifier_path, device="cpu")
    with pytest.raises(ValueError, match="chat template"):
        CrossEncoderEquivalence(cross_encoder, 0.5)
    cross_encoder.save_pretrained(str(tmp_path / "saved"))
    with pytest.raises(ValueError, match="chat template"):
        CrossEncoderEquivalence(str(tmp_path / "saved"), 0.5, device="cpu")


def test_a_generative_reranker_is_refused(tmp_path):
    """Without a chat template too: its score is that of the next word, and no weight of it was trained for pairs."""
    path = save_tiny_causal_lm(tmp_path / "base", words=("yes", "no"))
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(path)
    (tmp_path / "base" / "chat_template.jinja").unlink(missing_ok=True)
    cross_encoder = CrossEncoder(path, device="cpu")
    assert cross_encoder[0].transformer_task == "text-generation"
    with pytest.raises(ValueError, match="generative reranker"):
        CrossEncoderEquivalence(cross_encoder, 0.5)
    cross_encoder.save_pretrained(str(tmp_path / "saved"))
    with pytest.raises(ValueError, match="generative reranker"):
        CrossEncoderEquivalence(str(tmp_path / "saved"), 0.5, device="cpu")


def test_a_module_of_another_library_reads_pairs_in_its_own_way():
    module = torch.nn.Identity()
    read_plain_text(torch.nn.Sequential(module))
    assert not hasattr(module, "modality_config")


def test_pickled_weights_are_not_read(pair_classifier_path, tmp_path):
    shutil.copytree(pair_classifier_path, tmp_path, dirs_exist_ok=True)
    model = AutoModelForSequenceClassification.from_pretrained(pair_classifier_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        CrossEncoderEquivalence(str(tmp_path), 0.5, device="cpu")


@pytest.mark.parametrize("batch_size", [0, -1])
def test_impossible_batch_sizes_are_refused(pair_classifier_path, batch_size):
    with pytest.raises(ValueError, match="batch_size"):
        CrossEncoderEquivalence(pair_classifier_path, 0.5, batch_size=batch_size)


@pytest.fixture
def custom_code_path(pair_classifier_path, tmp_path, monkeypatch):
    """A checkpoint of which config, model and tokenizer are classes of its own code."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    path = tmp_path / "checkpoint"
    shutil.copytree(pair_classifier_path, path)
    (path / "custom_code.py").write_text(CUSTOM_CODE)
    edit_json(
        path / "config.json",
        model_type="custom-bert",
        architectures=["CustomClassifierForSequenceClassification"],
        auto_map={
            "AutoConfig": "custom_code.CustomConfig",
            "AutoModelForSequenceClassification": "custom_code.CustomClassifier",
        },
    )
    edit_json(
        path / "tokenizer_config.json",
        tokenizer_class="CustomTokenizer",
        auto_map={"AutoTokenizer": ["custom_code.CustomTokenizer", "custom_code.CustomTokenizer"]},
    )
    return str(path)


def test_custom_code_is_refused_by_default(custom_code_path):
    """FC-156."""
    with pytest.raises(ValueError, match="trust_remote_code"):
        CrossEncoderEquivalence(custom_code_path, 0.5, device="cpu")


def test_trust_remote_code_reaches_config_tokenizer_and_model(custom_code_path, two_label_scores):
    """FC-156."""
    equivalence = CrossEncoderEquivalence(custom_code_path, 0.5, device="cpu", trust_remote_code=True)
    parts = (equivalence.cross_encoder.config, equivalence.cross_encoder.tokenizer, equivalence.cross_encoder.model)
    assert [type(part).__name__ for part in parts] == ["CustomConfig", "CustomTokenizer", "CustomClassifier"]
    assert equivalence.score_pairs(PAIRS) == pytest.approx(two_label_scores, abs=1e-6)


def test_custom_modules_of_a_saved_cross_encoder_are_refused_by_default(pair_classifier_path, tmp_path):
    """FC-156."""
    CrossEncoder(pair_classifier_path, device="cpu").save_pretrained(str(tmp_path), create_model_card=False)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[0]["type"] = "custom_code.CustomTransformer"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="custom_code.CustomTransformer.*trust_remote_code"):
        CrossEncoderEquivalence(str(tmp_path), 0.5, device="cpu")


@pytest.fixture
def two_label_scores(pair_classifier_path):
    return CrossEncoderEquivalence(pair_classifier_path, 0.5, device="cpu").score_pairs(PAIRS)


def test_the_tokenizer_may_lie_elsewhere(pair_classifier_path, two_label_scores, tmp_path):
    AutoModelForSequenceClassification.from_pretrained(pair_classifier_path).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(pair_classifier_path).save_pretrained(tmp_path / "tokenizer")
    equivalence = CrossEncoderEquivalence(
        str(tmp_path / "model"), 0.5, device="cpu", tokenizer_name_or_path=str(tmp_path / "tokenizer")
    )
    assert equivalence.score_pairs(PAIRS) == two_label_scores


def test_loading_and_scoring_leave_the_global_generators_alone(pair_classifier_path):
    """FC-059: a resumed run draws what the uninterrupted run draws, whenever the classifier is built."""
    states = []
    for build in (False, True):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        if build:
            CrossEncoderEquivalence(pair_classifier_path, 0.5, device="cpu").score_pairs(PAIRS)
        states.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert states[0] == states[1]
