# SPDX-License-Identifier: Apache-2.0
"""A tiny model of Athene's shape: its reward against one computed by hand, and what must not happen to it."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig

from tests import tiny
from tests.trainers.helpers import FixedDiversity, fix_completions, make_trainer, prompts_dataset, record_outputs
from trl_diversity.rewards.athene import REWARD_TOKEN_ID, AtheneRewardModel
from trl_diversity.rewards.loading import load_named_reward_models, load_reward_model
from trl_diversity.scripts.reward_functions import resolve_reward_functions


LIMIT = 48


@pytest.fixture(scope="module")
def athene_path(tmp_path_factory):
    """Its vocabulary reaches the reward token; otherwise two layers of width 16."""
    tokenizer = tiny.tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=REWARD_TOKEN_ID + 1,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LIMIT,
        initializer_range=0.3,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    with tiny.seeded(5):
        model = AtheneRewardModel(config)
    return tiny._save(tmp_path_factory.mktemp("athene"), model, tokenizer)


def by_hand(path, ids):
    """Slow oracle: no batch, no mask, the layers of the checkpoint called one after another."""
    model = AtheneRewardModel.from_pretrained(path).eval()
    weights = load_file(f"{path}/model.safetensors")
    sequence = torch.tensor([[*ids, REWARD_TOKEN_ID]])
    with torch.no_grad():
        hidden = weights["model.embed_tokens.weight"][sequence]
        positions = torch.arange(sequence.shape[1])[None]
        rotary = model.model.rotary_emb(hidden, positions)
        causal = torch.full((1, 1, sequence.shape[1], sequence.shape[1]), float("-inf")).triu(1)
        for layer in model.model.layers:
            hidden = layer(hidden, attention_mask=causal, position_ids=positions, position_embeddings=rotary)
        last = hidden[0, -1]
        normed = last * torch.rsqrt(last.pow(2).mean() + model.config.rms_norm_eps) * weights["model.norm.weight"]
        return float((normed * weights["v_head.weight"][0]).sum())


def rewards(model, tokenizer, texts, padding_side="right"):
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side=padding_side, add_special_tokens=False)
    inputs.pop("token_type_ids", None)
    with torch.inference_mode():
        return model(**inputs).logits[:, 0].tolist()


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_the_reward_is_the_one_computed_by_hand(athene_path, padding_side):
    model, tokenizer = load_reward_model(athene_path), AutoTokenizer.from_pretrained(athene_path)
    texts = ["a longer conversation", "short", "x", "<|user|>What?<|end|><|assistant|>This.<|end|>"]
    expected = [by_hand(athene_path, tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    assert rewards(model, tokenizer, texts, padding_side) == pytest.approx(expected, abs=1e-4)
    assert len({round(value, 3) for value in expected}) == len(texts)


def test_a_reward_token_that_is_there_is_not_doubled(athene_path):
    model = load_reward_model(athene_path)
    ids = torch.tensor([[10, 11, 12, REWARD_TOKEN_ID], [10, 11, 12, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    first, second = model(input_ids=ids, attention_mask=mask).logits[:, 0].tolist()
    assert first == pytest.approx(second, abs=1e-6)
    assert first == pytest.approx(by_hand(athene_path, [10, 11, 12]), abs=1e-4)


def test_long_conversations_lose_their_beginning_and_never_the_reward_token(athene_path):
    model, tokenizer = load_reward_model(athene_path), AutoTokenizer.from_pretrained(athene_path)
    begin = tokenizer.bos_token
    ids = tokenizer("y" * 60 + "end", add_special_tokens=False)["input_ids"]
    cut, with_begin, short = rewards(model, tokenizer, ["y" * 60 + "end", begin + "y" * 60 + "end", "end"])
    assert cut == pytest.approx(by_hand(athene_path, ids[-(LIMIT - 1) :]), abs=1e-4)
    kept = [tokenizer.bos_token_id, *ids[-(LIMIT - 2) :]]
    assert with_begin == pytest.approx(by_hand(athene_path, kept), abs=1e-4)
    assert short == pytest.approx(rewards(model, tokenizer, ["end"])[0], abs=1e-5)


def test_the_plain_way_raises_instead_of_inventing_a_head(athene_path, tmp_path):
    """Without its head the checkpoint is nothing, and so is a sequence classifier's."""
    from trl_diversity.rewards.loading import _load_strictly

    with pytest.raises(ValueError, match=r"no weights \['score.weight'\], which would be random"):
        _load_strictly(AutoModelForSequenceClassification, athene_path, num_labels=1)
    tiny._save(tmp_path, AtheneRewardModel.from_pretrained(athene_path), tiny.tiny_tokenizer())
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if name != "v_head.weight"},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(ValueError, match="which would be random"):
        load_reward_model(str(tmp_path))


def test_sharded_checkpoints_are_known_by_their_index(athene_path, tmp_path):
    model = AtheneRewardModel.from_pretrained(athene_path)
    model.save_pretrained(tmp_path, max_shard_size="1MB")
    assert "v_head.weight" in json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert isinstance(load_reward_model(str(tmp_path)), AtheneRewardModel)


def test_it_is_reached_by_its_name(athene_path):
    (model,) = resolve_reward_functions([athene_path], max_completion_length=8, dtype="bfloat16")
    assert isinstance(model, AtheneRewardModel) and model.dtype == torch.bfloat16
    assert isinstance(load_named_reward_models([athene_path], {"dtype": "float32"}, False)[0], AtheneRewardModel)


@pytest.mark.parametrize("conversational", [False, True])
def test_in_a_trainer_by_name(tmp_path, causal_lm_path, athene_path, conversational):
    """A name given to the trainer itself, which TRL would load as a sequence classifier with a random head."""
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        athene_path,
        train_dataset=prompts_dataset(1, conversational),
        quality_shift="none",
        allow_negative_quality=True,
        diversity=FixedDiversity(1.0),
    )
    texts = ["Paris", "paris", "Rome", "a longer answer"]
    fix_completions(trainer, {"p0": texts})
    outputs = record_outputs(trainer)
    trainer.train()
    tokenizer = AutoTokenizer.from_pretrained(athene_path)
    end = "<|end|>" if conversational else ""
    begin = "<|user|>p0<|end|><|assistant|>" if conversational else "p0"
    whole = [tokenizer(begin + text + end, add_special_tokens=False)["input_ids"] for text in texts]
    got = outputs[0]["rewards_per_func"][:, 0].tolist()
    assert got == pytest.approx([by_hand(athene_path, ids) for ids in whole], abs=1e-4)
