# SPDX-License-Identifier: Apache-2.0
"""With nothing to add, Darling is GRPO: the same advantages and the same weights, bit for bit."""

import pytest
import torch
from peft import LoraConfig
from trl import GRPOTrainer

from tests.trainers.helpers import FixedDiversity, length_reward, make_trainer, record_outputs, text_of, weights
from trl_diversity.trainers import DarlingTrainer


# What the two configurations have as different defaults.
SAME = {
    "scale_rewards": "group",
    "beta": 0.04,
    "use_bias_correction_kl": False,
    "vllm_importance_sampling_correction": False,
    "max_steps": 3,  # two a pass over the prompts: into a second one
    "per_device_train_batch_size": 8,
}


def signed_reward(completions, **kwargs):
    """Between -1 and 1, and None for some completions."""
    values = [(sum(map(ord, text_of(completion))) % 21) / 10 - 1 for completion in completions]
    return [None if value == 0.5 else value for value in values]


def run(trainer_class, tmp_path, model, reward_funcs, lora=False, **settings):
    extra = {"peft_config": LoraConfig(r=2, init_lora_weights="gaussian")} if lora else {}
    trainer = make_trainer(
        tmp_path, model, reward_funcs, trainer_class=trainer_class, trainer_settings=extra, **{**SAME, **settings}
    )
    before = weights(trainer)
    outputs = record_outputs(trainer)
    trainer.train()
    return outputs, before, weights(trainer)


def assert_equal_runs(grpo, darling):
    grpo_outputs, _, grpo_weights = grpo
    darling_outputs, darling_before, darling_weights = darling
    assert len(grpo_outputs) == len(darling_outputs) == 3
    for one, other in zip(grpo_outputs, darling_outputs, strict=True):
        assert one["completions"] == other["completions"]
        assert one["advantages"].abs().sum() > 0
        assert torch.equal(one["advantages"], other["advantages"])
    assert grpo_weights.keys() == darling_weights.keys()
    assert any(not torch.equal(darling_before[name], after) for name, after in darling_weights.items())
    for name, after in grpo_weights.items():
        assert torch.equal(after, darling_weights[name]), name


# With the default quality_shift a negative quality would be lifted, which moves the last bit of the advantages.
DIVERSITY_ONE = {"diversity": FixedDiversity(1.0), "quality_shift": "none", "allow_negative_quality": True}
NO_MEASURE = {"diversity_measure": "none"}
ONE_FUNCTION: dict = {"reward_funcs": length_reward}
TWO_FUNCTIONS = {"reward_funcs": [length_reward, signed_reward], "reward_weights": [0.3, 1.7]}


@pytest.mark.parametrize(
    ("settings", "rewards"),
    [
        pytest.param(DIVERSITY_ONE, ONE_FUNCTION, id="diversity-1"),
        pytest.param(DIVERSITY_ONE, TWO_FUNCTIONS, id="diversity-1-two-functions"),
        pytest.param(NO_MEASURE, TWO_FUNCTIONS, id="no-measure-two-functions"),
    ],
)
def test_equals_grpo(tmp_path, causal_lm_path, settings, rewards):
    grpo = run(GRPOTrainer, tmp_path / "grpo", causal_lm_path, **rewards)
    darling = run(DarlingTrainer, tmp_path / "darling", causal_lm_path, **rewards, **settings)
    assert_equal_runs(grpo, darling)


@pytest.mark.parametrize("settings", [DIVERSITY_ONE, NO_MEASURE], ids=["diversity-1", "no-measure"])
def test_equals_grpo_with_lora_and_accumulation(tmp_path, causal_lm_path, settings):
    run_shape = {"lora": True, "scale_rewards": "none", "gradient_accumulation_steps": 2}
    grpo = run(GRPOTrainer, tmp_path / "grpo", causal_lm_path, length_reward, **run_shape)
    darling = run(DarlingTrainer, tmp_path / "darling", causal_lm_path, length_reward, **run_shape, **settings)
    assert any("lora_" in name for name in darling[2])
    assert_equal_runs(grpo, darling)


def test_a_measure_that_is_not_one_changes_the_weights(tmp_path, causal_lm_path):
    """The tests above can fail: a diversity of 0.5 for half of a group gives other weights."""
    grpo = run(GRPOTrainer, tmp_path / "grpo", causal_lm_path, length_reward)
    halves = FixedDiversity([1.0, 0.5, 1.0, 0.5])
    darling = run(DarlingTrainer, tmp_path / "darling", causal_lm_path, length_reward, diversity=halves)
    assert not torch.equal(grpo[0][0]["advantages"], darling[0][0]["advantages"])
    assert any(not torch.equal(after, darling[2][name]) for name, after in grpo[2].items())
