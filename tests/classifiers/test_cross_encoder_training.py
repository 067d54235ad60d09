# SPDX-License-Identifier: Apache-2.0
"""Training a cross-encoder: it learns, repeats itself, resumes, and its checkpoint says the same everywhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
    RobertaConfig,
    RobertaModel,
    TrainerCallback,
    XLNetConfig,
    XLNetModel,
)

from tests.classifiers.conftest import word_pairs
from tests.tiny import (
    save_tiny_causal_lm,
    save_tiny_embedding_decoder,
    save_tiny_pair_classifier,
    seeded,
    tiny_bert_tokenizer,
)
from trl_diversity.classifiers.cross_encoder_training import (
    CrossEncoderSettings,
    build_cross_encoder,
    train_cross_encoder,
)
from trl_diversity.classifiers.lora import merge_adapters
from trl_diversity.equivalence import CrossEncoderEquivalence, load_equivalence_model
from trl_diversity.equivalence.loading import read_json


PAIRS, DEV = word_pairs(48), word_pairs(24, seed=1)


def settings_for(path, **changes):
    """A high learning rate, because two epochs of three steps must show."""
    tiny = CrossEncoderSettings(path, learning_rate=2e-3, batch_size=16, num_train_epochs=3, use_cpu=True)
    return replace(tiny, max_side_tokens=16, patience=5, **changes)


def scores(path):
    return load_equivalence_model(str(path), device="cpu").score_pairs([(p.generation_0, p.generation_1) for p in DEV])


@pytest.fixture(scope="module")
def trained(pair_classifier_one_label_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained")
    return path, train_cross_encoder(PAIRS, DEV, str(path), settings_for(pair_classifier_one_label_path))


def test_it_learns_and_its_threshold_and_temperature_are_read_back(trained):
    path, metrics = trained
    assert metrics["auc"] > 0.9
    stored = read_json(str(path), "config.json")["trl_diversity"]
    equivalence = CrossEncoderEquivalence(str(path), device="cpu")
    assert (equivalence.threshold, equivalence.temperature) == (stored["threshold"], stored["temperature"])
    same = np.array(scores(path)) > equivalence.threshold
    assert np.mean(same == [pair.similar for pair in DEV]) == pytest.approx(metrics["accuracy"])


def test_transformers_cross_encoder_and_equivalence_give_the_same_probability(trained):
    path, _ = trained
    equivalence = CrossEncoderEquivalence(str(path), device="cpu")
    texts = [(pair.generation_0, pair.generation_1) for pair in DEV]
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForSequenceClassification.from_pretrained(path)
    with torch.no_grad():
        batch = tokenizer(*zip(*texts, strict=True), padding=True, truncation=True, return_tensors="pt")
        plain = torch.sigmoid(model.eval()(**batch).logits[:, 0] / equivalence.temperature)
    logits = CrossEncoder(str(path), device="cpu").predict(texts, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(equivalence.score_pairs(texts), plain.numpy(), atol=1e-5)
    scaled = torch.sigmoid(torch.tensor(logits) / equivalence.temperature)
    np.testing.assert_allclose(scaled.numpy(), plain.numpy(), atol=1e-5)


def test_the_card_has_the_command_the_scores_and_the_threshold_and_no_path_of_the_machine(trained):
    path, metrics = trained
    card = (path / "README.md").read_text()
    assert f"{metrics['auc']:.3f}" in card
    assert "threshold" in card and "balanced_accuracy" in card
    assert str(path.parent) not in card


class Interrupt(TrainerCallback):
    """Ends the run after the first epoch's checkpoint, as a lost machine would."""

    def on_save(self, args, state, control, **kwargs):
        raise KeyboardInterrupt


@pytest.mark.parametrize("num_labels", [1, 2])
def test_an_interrupted_run_resumes_to_the_same_model_and_a_seed_repeats_it(
    pair_classifier_path, pair_classifier_one_label_path, tmp_path, num_labels
):
    """FC-157: two labels are evaluated as one label is, and the threshold is saved."""
    path = pair_classifier_one_label_path if num_labels == 1 else pair_classifier_path
    settings = settings_for(path, num_labels=num_labels, class_weights=True)
    train_cross_encoder(PAIRS, DEV, str(tmp_path / "whole"), settings)
    with pytest.raises(KeyboardInterrupt):
        train_cross_encoder(PAIRS, DEV, str(tmp_path / "cut"), settings, callbacks=[Interrupt()])
    train_cross_encoder(PAIRS, DEV, str(tmp_path / "cut"), replace(settings, resume=True))
    np.testing.assert_array_equal(scores(tmp_path / "whole"), scores(tmp_path / "cut"))
    assert load_equivalence_model(str(tmp_path / "cut"), device="cpu").threshold not in (0.5, None)


def test_another_seed_is_another_model(pair_classifier_one_label_path, tmp_path, trained):
    train_cross_encoder(PAIRS, DEV, str(tmp_path), settings_for(pair_classifier_one_label_path, seed=1))
    assert scores(tmp_path) != scores(trained[0])


def test_nothing_to_resume_is_an_error(pair_classifier_path, tmp_path):
    with pytest.raises(ValueError, match="resume.*no checkpoint"):
        train_cross_encoder(PAIRS, DEV, str(tmp_path / "none"), settings_for(pair_classifier_path, resume=True))


@pytest.mark.parametrize("fixture", ["pair_classifier_path", "decoder_classifier_path"])
def test_adapters_train_and_are_merged_into_a_plain_checkpoint(request, tmp_path, fixture):
    settings = settings_for(request.getfixturevalue(fixture), num_labels=2, lora_rank=4, num_train_epochs=2)
    metrics = train_cross_encoder(PAIRS, DEV, str(tmp_path), settings)
    assert not list(tmp_path.glob("adapter*"))
    same = np.array(scores(tmp_path)) > load_equivalence_model(str(tmp_path), device="cpu").threshold
    assert np.mean(same == [pair.similar for pair in DEV]) == pytest.approx(metrics["accuracy"])


def test_class_weights_raise_the_probability_of_the_rarer_class(pair_classifier_one_label_path, tmp_path):
    few = [pair for index, pair in enumerate(PAIRS) if pair.similar == 0 or index % 8 == 1]
    means = []
    for weighted in (False, True):
        settings = settings_for(
            pair_classifier_one_label_path, class_weights=weighted, num_train_epochs=1, learning_rate=2e-4
        )
        path = tmp_path / str(weighted)
        train_cross_encoder(few, DEV, str(path), settings)
        logits = CrossEncoder(str(path), device="cpu").predict(
            [(p.generation_0, p.generation_1) for p in DEV], activation_fn=torch.nn.Identity()
        )
        means.append(logits.mean())
    assert means[1] > means[0]


@pytest.mark.parametrize("num_labels", [1, 2])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_language_model_gets_a_classification_head(tmp_path, architecture, num_labels):
    """sentence-transformers alone would score its next token, "yes" or "no", after a chat template."""
    base = save_tiny_causal_lm(tmp_path / "base", architecture)
    cross_encoder = build_cross_encoder(settings_for(base, num_labels=num_labels))
    assert type(cross_encoder.model).__name__.endswith("ForSequenceClassification")
    assert (len(cross_encoder), cross_encoder.num_labels) == (1, num_labels)
    state = AutoModelForCausalLM.from_pretrained(base).model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in cross_encoder.model.model.state_dict().items())
    metrics = train_cross_encoder(PAIRS, DEV, str(tmp_path / "out"), settings_for(base, num_labels=num_labels))
    assert metrics["auc"] > 0.9
    assert np.std(scores(tmp_path / "out")) > 0.01


def test_an_embedding_model_over_a_language_model_gets_one_too(tmp_path):
    """As Qwen3-Embedding: modules of sentence-transformers, and the architecture of a language model."""
    base = save_tiny_embedding_decoder(tmp_path / "base")
    metrics = train_cross_encoder(PAIRS, DEV, str(tmp_path / "out"), settings_for(base, lora_rank=4))
    assert metrics["auc"] > 0.9
    assert np.std(scores(tmp_path / "out")) > 0.01


TOKENIZER = tiny_bert_tokenizer(64)
SIZES = {"vocab_size": len(TOKENIZER), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "initializer_range": 0.2, "pad_token_id": 0}
ENCODERS = {
    "roberta": (RobertaModel, RobertaConfig(**SIZES, max_position_embeddings=24)),
    "deberta": (DebertaV2Model, DebertaV2Config(**SIZES, pooler_hidden_size=32)),
    "modernbert": (ModernBertModel, ModernBertConfig(**SIZES)),
    "distilbert": (
        DistilBertModel,
        DistilBertConfig(vocab_size=len(TOKENIZER), dim=32, hidden_dim=48, n_layers=2, n_heads=2),
    ),
    "xlnet": (XLNetModel, XLNetConfig(vocab_size=len(TOKENIZER), d_model=32, n_layer=2, n_head=2, d_inner=48)),
}
# What each architecture's sequence classifier has besides its base
HEADS = {
    "roberta": {"classifier.dense", "classifier.out_proj"},
    "deberta": {"pooler.dense", "classifier"},
    "modernbert": {"head.dense", "head.norm", "classifier"},
    "distilbert": {"pre_classifier", "classifier"},
    "xlnet": {"sequence_summary.summary", "logits_proj"},
}


def save_encoder(path, name):
    """A pretrained encoder without a head, and a tokenizer that knows no limit."""
    model_class, config = ENCODERS[name]
    with seeded(0):
        model_class(config).save_pretrained(path)
    tokenizer = tiny_bert_tokenizer(10**30)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("name", ENCODERS)
def test_adapters_leave_a_new_head_to_be_trained_whole(tmp_path, name):
    """Its parts have other names in every architecture; what is left frozen in it would stay random."""
    settings = settings_for(save_encoder(tmp_path, name), lora_rank=2)
    model = build_cross_encoder(settings).model
    trained = {
        key.replace(".modules_to_save.default", "") for key, value in model.named_parameters() if value.requires_grad
    }
    heads = {key.rpartition(".")[0] for key in trained if "lora_" not in key}
    assert heads == HEADS[name]
    assert any("lora_" in key for key in trained) and not any(
        "lora_" in key and key.split(".")[0] in HEADS[name] for key in trained
    )
    merge_adapters(model)
    plain = AutoModelForSequenceClassification.from_pretrained(settings.base_model, num_labels=1)
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_a_head_for_other_labels_is_replaced_and_that_is_said(tmp_path, caplog):
    """An NLI classifier is a good base, and has three labels."""
    base = save_tiny_pair_classifier(tmp_path, num_labels=3)
    cross_encoder = build_cross_encoder(settings_for(base, num_labels=2))
    assert cross_encoder.num_labels == 2 and cross_encoder.model.classifier.weight.shape[0] == 2
    assert "3 labels" in caplog.text
    kept = AutoModelForSequenceClassification.from_pretrained(base).bert.state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in cross_encoder.model.bert.state_dict().items())


def test_the_card_tells_how_many_tokens_are_really_read(tmp_path, caplog):
    base = save_tiny_pair_classifier(tmp_path / "base", num_labels=1, max_length=23)
    settings = replace(settings_for(base, num_train_epochs=1), max_side_tokens=64)
    train_cross_encoder(PAIRS, DEV, str(tmp_path / "out"), settings)
    assert "| max_side_tokens | 10 |" in (tmp_path / "out" / "README.md").read_text()
    assert "10 tokens a text" in caplog.text


def test_positions_that_roberta_keeps_for_padding_are_not_read(tmp_path):
    """Its 24 positions begin behind the pad token's: a pair of 24 tokens would be out of range."""
    base = save_encoder(tmp_path / "base", "roberta")
    settings = replace(settings_for(base, num_train_epochs=1), max_side_tokens=64)
    train_cross_encoder(PAIRS, DEV, str(tmp_path / "out"), settings)
    long = [("the cat is blue " * 9, "not a dog " * 9)]
    equivalence = CrossEncoderEquivalence(str(tmp_path / "out"), device="cpu")
    assert equivalence.max_length == 23
    assert 0 <= equivalence.score_pairs(long)[0] <= 1


def test_a_tokenizer_without_the_tokenizers_library_is_refused_before_training(
    pair_classifier_one_label_path, monkeypatch
):
    monkeypatch.setattr("transformers.BertTokenizer.is_fast", False)
    with pytest.raises(ValueError, match="not backed by the `tokenizers` library"):
        build_cross_encoder(settings_for(pair_classifier_one_label_path))
