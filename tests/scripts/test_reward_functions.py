# SPDX-License-Identifier: Apache-2.0
"""Rewards by name: TRL's own, dotted paths, and reward models."""

import pytest
import torch

from tests import tiny
from trl_diversity.rewards.registry import REGISTERED_REWARDS
from trl_diversity.scripts.quality import load_quality
from trl_diversity.scripts.reward_functions import resolve_reward_functions


def resolve(*names, weights=None, **options):
    return resolve_reward_functions(list(names), weights, max_completion_length=100, **options)


def test_registered_names_are_the_functions_of_trl():
    from trl import rewards

    pytest.importorskip("math_verify")
    found = resolve(*REGISTERED_REWARDS)
    assert found[:3] == [rewards.accuracy_reward, rewards.reasoning_accuracy_reward, rewards.think_format_reward]


def test_overlong_punishment_follows_the_allowed_length():
    (punish,) = resolve("get_soft_overlong_punishment")
    assert punish(completion_ids=[[0] * n for n in (10, 80, 90, 100)]) == [0.0, 0.0, -0.5, -1.0]
    (punish,) = resolve_reward_functions(["get_soft_overlong_punishment"], max_completion_length=3)
    assert punish(completion_ids=[[0] * n for n in (1, 2, 3)]) == [0.0, 0.0, -1.0]


def test_mathematical_rewards_without_their_package(monkeypatch):
    monkeypatch.setattr("trl_diversity.rewards.registry.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"trl-diversity\[math\]"):
        resolve("accuracy_reward")
    resolve("think_format_reward")


def test_dotted_paths(working_directory):
    brevity, length = resolve("script_rewards.brevity", "script_rewards.Length")
    assert brevity(["p"], ["abc"]) == [0.25]
    assert length(completion_ids=[[1, 2]]) == [0.25]
    with pytest.raises(ValueError, match="script_rewards.absent"):
        resolve("script_rewards.absent")
    with pytest.raises(ValueError, match="no_such_module.reward"):
        resolve("no_such_module.reward")
    with pytest.raises(ValueError, match="'script_rewards.NUMBER' is of type int"):
        resolve("script_rewards.NUMBER")


def test_names_that_are_none_of_these():
    with pytest.raises(ValueError, match="'acuracy_reward' names no reward.*the nearest is accuracy_reward"):
        resolve("acuracy_reward")
    for name in ("./absent", "/absent/model", "~/absent", "runs/absent/model"):
        with pytest.raises(FileNotFoundError, match="no directory"):
            resolve(name)


def test_nothing_is_loaded_before_all_names_are_known(monkeypatch):
    monkeypatch.setattr(
        "trl_diversity.scripts.reward_functions.load_reward_model", lambda *a, **k: pytest.fail("loaded")
    )
    with pytest.raises(ValueError, match="names no reward"):
        resolve("owner/reward-model", "typo")


def test_hub_names_are_models(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "trl_diversity.scripts.reward_functions.load_reward_model",
        lambda name, **options: calls.append((name, options)),
    )
    resolve("owner/Reward-Model-0.5B", dtype="bfloat16", trust_remote_code=True)
    resolve("owner/other")
    assert calls == [
        ("owner/Reward-Model-0.5B", {"dtype": "bfloat16", "trust_remote_code": True}),
        ("owner/other", {"dtype": None, "trust_remote_code": False}),
    ]


def test_directory_is_a_model_with_its_own_weights(reward_model_path):
    from transformers import AutoModelForSequenceClassification

    (model,) = resolve(reward_model_path, dtype="float32")
    expected = AutoModelForSequenceClassification.from_pretrained(reward_model_path)
    assert model.config.num_labels == 1
    assert torch.equal(model.score.weight, expected.score.weight)
    assert resolve(reward_model_path, dtype="bfloat16")[0].dtype == torch.bfloat16


def test_checkpoint_without_a_reward_head_is_an_error(causal_lm_path):
    with pytest.raises(ValueError, match="is no reward model.*score.weight"):
        resolve(causal_lm_path)


def test_model_with_a_dot_in_its_directory_is_no_dotted_path(working_directory):
    tiny.save_tiny_reward_model("reward.v2")
    assert resolve("reward.v2")[0].config.num_labels == 1


def test_counts():
    with pytest.raises(ValueError, match="`reward_funcs` is empty"):
        resolve()
    with pytest.raises(
        ValueError, match=r"`reward_weights` has 2 values \(\[0.5, 1.0\]\) for the 1 of `reward_funcs`"
    ):
        resolve("think_format_reward", weights=[0.5, 1.0])
    assert len(resolve("think_format_reward", weights=[0.5])) == 1


def test_quality_outside_of_a_trainer_waits_for_asynchronous_functions(working_directory, monkeypatch):
    (working_directory / "waiting_rewards.py").write_text(
        "async def letters(prompts, completions, **kwargs):\n"
        "    return [len(completion[0]['content']) for completion in completions]\n"
    )
    monkeypatch.syspath_prepend(str(working_directory))
    assert load_quality("waiting_rewards.letters")(["p", "q"], ["abc", ""]) == [3.0, 0.0]
