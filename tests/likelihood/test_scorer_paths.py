# SPDX-License-Identifier: Apache-2.0
"""Which models score in one pass, and that the others score right in two."""

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    LlamaForCausalLM,
    MixtralConfig,
    Qwen2Config,
)

from tests import tiny
from tests.likelihood.scoring import assert_close, assert_scores, policy, rows
from trl_diversity.likelihood.scorers import PolicyScorer
from trl_diversity.likelihood.splice import ScoringRow


def made(config):
    """A random model of a config, all of its weights well away from zero."""
    with tiny.seeded(5):
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


SMALL = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("config", "fast"),
    [
        (GPT2Config(**SMALL), True),  # learned positions
        (MixtralConfig(**SMALL, intermediate_size=32, num_local_experts=2, output_router_logits=True,
                       num_key_value_heads=1), True),
        (BloomConfig(**SMALL), False),  # positions in the mask
        (Qwen2Config(**SMALL, intermediate_size=32, num_key_value_heads=1, use_sliding_window=True,
                     sliding_window=8, max_window_layers=1), False),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_the_path_fits_the_model(config, fast):
    model = made(config)
    scorer = PolicyScorer(model)
    assert scorer.is_fast is None
    short = [
        ScoringRow(tuple(part % 300 for part in row.prefix_ids), row.answer_ids, row.reference_ids) for row in rows()
    ]
    assert_scores(scorer.score(short), model, short, tolerance=1e-3)
    assert scorer.is_fast is fast


class MaskIgnored(LlamaForCausalLM):
    """A model that takes a mask of its own, and makes nothing of it."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, logits_to_keep=0, **kwargs):
        mask = attention_mask if attention_mask.ndim == 2 else torch.ones_like(input_ids)
        return super().forward(input_ids, mask, position_ids, logits_to_keep=logits_to_keep, **kwargs)


class MaskRefused(LlamaForCausalLM):
    """A model that knows two-dimensional masks only, and always returns all logits."""

    def forward(self, input_ids, attention_mask, position_ids=None, **kwargs):
        rows_, columns = attention_mask.shape
        return super().forward(input_ids, attention_mask.view(rows_, columns), position_ids)


@pytest.mark.parametrize(("kind", "reason"), [(MaskIgnored, "in a trial"), (MaskRefused, "logits_to_keep")])
def test_a_mask_that_is_not_honoured_takes_two_passes(kind, reason):
    model = kind(policy().config).eval()
    model.load_state_dict(policy().state_dict())
    scorer = PolicyScorer(model)
    assert_scores(scorer.score(rows()), policy(), rows())
    assert scorer.is_fast is False
    with pytest.raises(ValueError, match=reason):
        PolicyScorer(model, path="fast").score(rows())


def test_an_attention_without_masks_takes_two_passes():
    model = policy()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="flash_attention_2"):
        PolicyScorer(model, path="fast").score(rows())


def test_prompt_tuning_takes_two_passes():
    with tiny.seeded(3):
        model = get_peft_model(policy(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    scorer = PolicyScorer(model)
    scores = scorer.score(rows()[:4])
    assert scorer.is_fast is False
    for found, row in zip(scores, rows(), strict=False):
        ids = [*row.prefix_ids, *row.reference_ids]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, 3:]
        right = torch.softmax(logits.double(), -1)
        expected = [right[place - 1, ids[place]].item() for place in range(len(row.prefix_ids), len(ids))]
        assert_close(found.reference, expected[row.reference_lead :])
