# SPDX-License-Identifier: Apache-2.0
"""Logits of a classifier whose last layer computes its first token only, against the whole forward pass."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CamembertConfig,
    CamembertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from tests.tiny import seeded
from trl_diversity.equivalence.first_token import only_first_token


SIZES = {"vocab_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
FIRST_TOKEN = {
    BertForSequenceClassification: BertConfig,
    CamembertForSequenceClassification: CamembertConfig,
    ElectraForSequenceClassification: ElectraConfig,
    RobertaForSequenceClassification: RobertaConfig,
    XLMRobertaForSequenceClassification: XLMRobertaConfig,
}


def classifier(model_class, config_class, **options):
    with seeded(0):
        config = config_class(**SIZES, intermediate_size=32, initializer_range=0.5, **options)
        return model_class(config).eval()


def features(lengths=(9, 7, 3)):
    """Three texts of unequal length, padded on the right with token 1, which is RoBERTa's padding."""
    ids = torch.full((len(lengths), max(lengths)), 1)
    mask = torch.zeros_like(ids)
    numbers = torch.Generator().manual_seed(0)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, 40, (length,), generator=numbers)
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask}


def last_layer_lengths(model):
    """Fills with the number of tokens that the last layer's feed-forward part is given."""
    seen = []
    layer = model.base_model.encoder.layer[-1]
    layer.intermediate.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    return seen


@pytest.mark.parametrize(("model_class", "config_class"), FIRST_TOKEN.items(), ids=lambda part: part.__name__)
@pytest.mark.parametrize("lengths", [(9, 7, 3), (5, 5), (1,)])
@torch.no_grad()
def test_the_logits_are_those_of_the_whole_pass_and_the_last_layer_saw_one_token(model_class, config_class, lengths):
    model = classifier(model_class, config_class)
    inputs = features(lengths)
    expected = model(**inputs).logits
    seen = last_layer_lengths(model)
    with only_first_token(model):
        found = model(**inputs).logits
    assert torch.allclose(found, expected, atol=1e-6)
    assert seen == [1]
    assert expected.abs().max() > 0.01
    model(**inputs)
    assert seen == [1, max(lengths)]  # and outside nothing has changed


@torch.no_grad()
def test_the_layer_is_whole_again_after_an_error():
    model = classifier(BertForSequenceClassification, BertConfig)
    with pytest.raises(RuntimeError, match="stop"), only_first_token(model):
        raise RuntimeError("stop")
    assert model(**features(), output_hidden_states=True).hidden_states[-1].shape == (3, 9, 16)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            DistilBertForSequenceClassification(DistilBertConfig(vocab_size=40, n_layers=1, n_heads=2, dim=16)).eval(),
            id="other layers",
        ),
        pytest.param(
            ModernBertForSequenceClassification(
                ModernBertConfig(**SIZES, intermediate_size=32, classifier_pooling="mean", pad_token_id=1)
            ).eval(),
            id="mean pooling",
        ),
        pytest.param(classifier(BertForSequenceClassification, BertConfig).train(), id="in training"),
        pytest.param(
            classifier(BertForSequenceClassification, BertConfig, attn_implementation="eager"), id="own attention"
        ),
        pytest.param(None, id="no transformers model"),
    ],
)
def test_what_it_does_not_know_is_left_alone(model):
    before = {} if model is None else {name: vars(module).copy() for name, module in model.named_modules()}
    with only_first_token(model):
        for name, module in [] if model is None else model.named_modules():
            assert vars(module).keys() == before[name].keys(), name
