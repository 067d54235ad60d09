# SPDX-License-Identifier: Apache-2.0
"""Defaults of the configuration, and what it refuses before anything is loaded."""

import re
from dataclasses import fields

import pytest
from trl import GRPOConfig

from tests.trainers.helpers import QUICK, make_trainer
from trl_diversity.trainers import DarlingConfig


def config(**settings):
    return DarlingConfig("output", **{**QUICK, **settings})


def test_defaults_are_the_papers():
    args = DarlingConfig("output", use_cpu=True, bf16=False)
    expected = {
        "scale_rewards": "none",
        "loss_type": "dapo",
        "num_generations": 8,
        "temperature": 1.0,
        "learning_rate": 1e-6,
        "beta": 0.001,
        "use_bias_correction_kl": False,
        "vllm_importance_sampling_correction": False,
        "diversity_measure": "partition",
        "clustering": "closure",
        "combine": "multiply",
        "diversity_norm": "linear",
        "diversity_floor": 0.0,
        "quality_shift": "auto",
        "short_answer_rule": False,
        "trust_remote_code": False,
    }
    assert {name: getattr(args, name) for name in expected} == expected


def test_no_other_default_of_trl_is_changed():
    redefined = {"scale_rewards", "loss_type", "num_generations", "temperature", "learning_rate", "beta"}
    redefined |= {"use_bias_correction_kl", "vllm_importance_sampling_correction"}
    ours = {field.name: field for field in fields(DarlingConfig)}
    for field in fields(GRPOConfig):
        if field.name not in redefined:
            assert ours[field.name].default == field.default, field.name


def test_every_field_of_ours_is_documented_twice():
    inherited = {field.name for field in fields(GRPOConfig)}
    own = [field for field in fields(DarlingConfig) if field.name not in inherited]
    assert len(own) >= 18
    for field in own:
        assert f"\n        {field.name} (`" in DarlingConfig.__doc__, field.name
        assert len(field.metadata["help"]) > 15, field.name
        assert "%" not in field.metadata["help"], field.name  # argparse would format it


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"multi_objective_aggregation": "normalize_then_sum"}, "normalize_then_sum.*sum_then_normalize"),
        ({"diversity_measure": "partitions"}, "`diversity_measure` is 'partitions'.*'partition'.*dotted path"),
        ({"clustering": "close"}, "`clustering` is 'close'.*'closure'"),
        ({"combine": "sum"}, "`combine` is 'sum'.*'add'"),
        ({"diversity_norm": "softmax"}, "`diversity_norm` is 'softmax'.*'minmax'"),
        ({"diversity_text": "tail"}, "`diversity_text` is 'tail'.*'last_tokens'"),
        ({"quality_shift": "rank"}, "`quality_shift` is 'rank'.*'group_min'"),
        ({"partition_threshold": 1.5}, "`partition_threshold`.*1.5"),
        ({"diversity_floor": -0.1}, "`diversity_floor`.*-0.1"),
        ({"diversity_floor": float("nan")}, "`diversity_floor`"),
        ({"diversity_measure": "unlikeliness", "beta_rank": 2.0}, "`beta_rank`.*2.0"),
        ({"diversity_measure": "ngram", "ngram_n": 0}, "`ngram_n`.*0"),
        ({"diversity_text": "last_tokens", "diversity_last_tokens": 0}, "`diversity_last_tokens`.*0"),
        ({"combine": "add", "diversity_weight": float("inf")}, "`diversity_weight`.*inf"),
        ({"combine": "add", "diversity_norm": "minmax"}, "`diversity_norm: minmax`.*`combine: add`"),
        ({"combine": "add", "diversity_floor": 0.1}, "`diversity_floor`.*`combine: add`"),
        ({"diversity_weight": 2.0}, "`diversity_weight`.*`combine: multiply`"),
        ({"diversity_measure": "ngram", "diversity_norm": "inverse_size"}, "inverse_size.*clusters"),
        ({"clustering": "pairwise", "diversity_norm": "inverse_size"}, "inverse_size.*clusters"),
        ({"allow_negative_quality": True}, "`allow_negative_quality`.*`quality_shift: none`"),
        ({"diversity_last_tokens": 32}, "`diversity_last_tokens`.*`diversity_text: last_tokens`"),
    ],
)
def test_refused_with_the_name_of_the_option(settings, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        config(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"diversity_measure": "ngram", "partition_model": "m"}, "`partition_model` has no effect.*: ngram"),
        ({"diversity_measure": "ngram", "partition_threshold": 0.5}, "`partition_threshold` has no effect.*: ngram"),
        ({"diversity_measure": "unlikeliness", "clustering": "greedy"}, "`clustering` has no effect.*: unlikeliness"),
        ({"diversity_measure": "ngram", "short_answer_rule": True}, "`short_answer_rule` has no effect.*: ngram"),
        ({"diversity_measure": "ngram", "partition_device": "cpu"}, "`partition_device` has no effect.*: ngram"),
        ({"diversity_measure": "ngram", "partition_dtype": "float32"}, "`partition_dtype` has no effect.*: ngram"),
        ({"ngram_n": 3}, "`ngram_n` has no effect.*: partition"),
        ({"beta_rank": 0.5}, "`beta_rank` has no effect.*: partition"),
        ({"diversity_measure": "none", "partition_model": "m"}, "`partition_model` has no effect.*: none"),
    ],
)
def test_settings_of_another_measure_are_pointed_out(settings, message, caplog):
    """No error: a baseline or an ablation is a recipe with `diversity_measure` changed on the command line."""
    config(**settings)
    assert re.search(message, caplog.text)


def test_the_plain_baseline_is_one_setting_away_from_any_recipe():
    assert config(diversity_measure="none", partition_model="m", combine="add", diversity_floor=0.1).combine == "add"


def test_the_shape_of_generation_batches_is_checked_as_in_trl():
    """FC-005 and FC-006: the evaluation batch holds whole groups of the evaluation's size."""
    evaluated = {"per_device_train_batch_size": 4, "num_generations": 4, "eval_strategy": "steps", "eval_steps": 1}
    with pytest.raises(ValueError, match=r"3 \* 1.*4"):
        config(**evaluated, per_device_eval_batch_size=3)
    assert config(**evaluated, per_device_eval_batch_size=2, num_generations_eval=2).num_generations == 4
    with pytest.raises(ValueError, match="6.*divisible.*4"):
        config(per_device_train_batch_size=6, num_generations=4)


@pytest.mark.parametrize(
    ("settings", "save_steps", "nearest"),
    [
        # One generation serves 4 micro-batches = 4 optimizer steps.
        ({"steps_per_generation": 4}, 6, 8),
        ({"steps_per_generation": 4}, 3, 4),
        ({"steps_per_generation": 4}, 1, 4),
        ({"steps_per_generation": 4}, 9, 8),
        ({"steps_per_generation": 2, "num_iterations": 3}, 4, 6),
        # 3 micro-batches are one and a half optimizer steps of 2: whole again after 3.
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, 4, 3),
        ({"gradient_accumulation_steps": 4, "num_iterations": 2}, 3, 4),
    ],
)
def test_checkpoints_that_cut_a_generation_are_refused(settings, save_steps, nearest):
    shape = {"per_device_train_batch_size": 12, "num_generations": 4, "save_strategy": "steps"} | settings
    with pytest.raises(ValueError, match=f"`save_steps={save_steps}`.*nearest valid value is {nearest}"):
        config(**shape, save_steps=save_steps)
    assert config(**shape, save_steps=nearest).save_steps == nearest
    assert config(**{**shape, "save_strategy": "no"}, save_steps=save_steps)


def test_a_share_of_the_run_is_checked_once_its_length_is_known(tmp_path, causal_lm_path):
    def trained(name, **settings):
        shape = {"steps_per_generation": 2, "save_strategy": "steps", "save_only_model": True}
        trainer = make_trainer(tmp_path / name, causal_lm_path, **shape, **settings)
        trainer.train()
        return trainer

    with pytest.raises(ValueError, match="`save_steps=3`.*nearest valid value is 4"):
        trained("cut", max_steps=6, save_steps=0.5)
    trained("whole", max_steps=4, save_steps=0.5)
    assert (tmp_path / "whole" / "checkpoint-2").is_dir()
    assert not list((tmp_path / "cut").glob("checkpoint-*"))


def test_one_group_may_be_spread_over_micro_batches(tmp_path, causal_lm_path):
    """FC-008: the rule counts accumulation; the group is whole where diversity is measured."""
    seen = []

    class Measure:
        name, needs_logprobs = "sizes", False

        def __call__(self, groups):
            from trl_diversity.diversity import GroupDiversity

            seen.extend(len(group.completions) for group in groups)
            return [GroupDiversity([1.0] * len(group.completions)) for group in groups]

    make_trainer(
        tmp_path,
        causal_lm_path,
        diversity=Measure(),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        num_generations=8,
    ).train()
    assert seen == [8]
