# SPDX-License-Identifier: Apache-2.0
"""Strict loading of reward models, their limit of length, and ZeRO-3's partitioning kept away from them."""

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    RobertaConfig,
    RobertaForSequenceClassification,
)
from transformers.integrations import deepspeed

from tests import tiny
from trl_diversity.rewards.loading import load_named_reward_models, load_reward_model
from trl_diversity.rewards.truncation import keep_the_end
from trl_diversity.zero3 import outside_zero3


def test_a_language_model_is_no_reward_model(causal_lm_path):
    with pytest.raises(ValueError, match="is no reward model: its checkpoint has no weights"):
        load_reward_model(causal_lm_path)
    with pytest.raises(ValueError, match="is no reward model"):
        load_named_reward_models(causal_lm_path, None, False)


def test_functions_and_modules_stay_as_they_are(reward_model_path):
    module = AutoModelForSequenceClassification.from_pretrained(reward_model_path)
    given = [len, module]
    assert load_named_reward_models(given, None, False) == given
    assert load_named_reward_models(None, None, False) is None


def test_long_conversations_are_cut_on_the_left(tmp_path):
    """The reward of a text too long for the model is that of its end, in a batch with a short one."""
    path = tiny.save_tiny_reward_model(tmp_path, max_position_embeddings=16)
    model, tokenizer = load_reward_model(path), AutoTokenizer.from_pretrained(path)
    plain = AutoModelForSequenceClassification.from_pretrained(path)

    def reward(scorer, *texts):
        inputs = tokenizer(list(texts), return_tensors="pt", padding=True, padding_side="right")
        inputs.pop("token_type_ids", None)
        return scorer(**inputs).logits[:, 0].tolist()

    long = "z" * 40 + "the very end..."
    assert reward(model, long, "short") == pytest.approx(
        [reward(plain, long[-16:])[0], reward(plain, "short")[0]], abs=1e-5
    )
    assert reward(model, "short", "longer") == pytest.approx(reward(plain, "short", "longer"), abs=1e-6)


def test_positions_that_are_not_used_do_not_count(tmp_path):
    """RoBERTa with 20 positions of which padding takes two reads 18 tokens; more would be an index error."""
    config = RobertaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=20,
        type_vocab_size=1,
        pad_token_id=1,
        num_labels=1,
    )
    with tiny.seeded(0):
        RobertaForSequenceClassification(config).save_pretrained(tmp_path)
    model = load_reward_model(str(tmp_path))
    ids = torch.arange(2, 42)[None]
    cut = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    plain = RobertaForSequenceClassification.from_pretrained(tmp_path).eval()
    end = ids[:, -18:]
    assert torch.allclose(cut, plain(input_ids=end, attention_mask=torch.ones_like(end)).logits, atol=1e-6)


def test_keep_the_end_row_by_row():
    """Worked example: rows of 5, 3 and 6 tokens, limit 4; 1 stays at the beginning."""
    ids = torch.tensor([[1, 5, 6, 7, 8, 0], [4, 5, 6, 0, 0, 0], [2, 3, 4, 5, 6, 7]])
    mask = (ids != 0).long()
    kept = keep_the_end({"input_ids": ids, "attention_mask": mask}, 4, first_token_id=1)
    assert kept["input_ids"][0].tolist() == [1, 6, 7, 8]
    assert kept["input_ids"][1, :3].tolist() == [4, 5, 6] and kept["attention_mask"][1].tolist() == [1, 1, 1, 0]
    assert kept["input_ids"][2].tolist() == [4, 5, 6, 7]
    same = keep_the_end({"input_ids": ids, "attention_mask": mask}, 6, 1)
    assert torch.equal(same["input_ids"], ids)


class Zero3:
    def is_zero3(self):
        return True


def test_zero3_is_off_while_scoring_models_are_loaded(reward_model_path, monkeypatch):
    """transformers partitions what it loads while this is on, which needs DeepSpeed."""
    config = Zero3()
    seen = []
    original = AutoModelForSequenceClassification.from_pretrained

    def recorded(*args, **kwargs):
        seen.append(deepspeed.is_deepspeed_zero3_enabled())
        return original(*args, **kwargs)

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", recorded)
    deepspeed.set_hf_deepspeed_config(config)
    try:
        assert deepspeed.is_deepspeed_zero3_enabled()
        load_reward_model(reward_model_path)
        with pytest.raises(RuntimeError), outside_zero3():
            raise RuntimeError
        assert deepspeed.is_deepspeed_zero3_enabled()  # on again, also after an error
    finally:
        deepspeed.unset_hf_deepspeed_config()
    assert seen == [False]
    with outside_zero3():
        assert not deepspeed.is_deepspeed_zero3_enabled()
