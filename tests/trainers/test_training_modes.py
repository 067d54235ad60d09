# SPDX-License-Identifier: Apache-2.0
"""The ways in which TRL trains and evaluates: groups, metrics and weights in each of them."""

import math

import pytest
import torch
from datasets import Dataset, IterableDataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.tiny import seeded
from tests.trainers.helpers import (
    ExactText,
    FixedDiversity,
    fix_completions,
    logged,
    make_trainer,
    prompts_dataset,
    record_outputs,
    weights,
)


def constant(completions, **kwargs):
    return [0.5] * len(completions)


def with_eval(eval_dataset=None, **extra):
    return {"eval_dataset": prompts_dataset(2) if eval_dataset is None else eval_dataset} | extra


def test_evaluation_has_groups_of_its_own_size(tmp_path, causal_lm_path):
    """FC-006: groups of 2 in evaluation and of 4 in training, in one run."""
    measure = FixedDiversity(0.5)
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        constant,
        trainer_settings=with_eval(),
        diversity=measure,
        max_steps=2,
        num_generations_eval=2,
        per_device_eval_batch_size=2,
        eval_strategy="steps",
        eval_steps=1,
    )
    trainer.train()
    assert [len(group.completions) for group in measure.groups] == [4, 2, 2, 4, 2, 2]
    assert logged(trainer, "eval_reward") == [0.25, 0.25]
    assert logged(trainer, "reward") == [0.25, 0.25]
    assert logged(trainer, "eval_diversity/mean") == [0.5, 0.5]


@pytest.mark.parametrize("settings", [{"scale_rewards": "none"}, {"scale_rewards": "group"}, {"combine": "add"}])
def test_evaluation_with_one_completion_gives_the_quality(tmp_path, causal_lm_path, settings):
    """FC-007: finite, and neither NaN nor always 0."""
    model = ExactText()
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        constant,
        trainer_settings=with_eval(),
        diversity=model,
        num_generations_eval=1,
        per_device_eval_batch_size=2,
        **settings,
    )
    metrics = trainer.evaluate()
    assert metrics["eval_reward"] == metrics["eval_rewards/darling/mean"] == metrics["eval_quality/mean"] == 0.5
    assert all(math.isfinite(value) for value in metrics.values())
    assert not any(key.startswith("eval_diversity/") for key in metrics)
    assert model.pairs == []


def test_an_evaluation_batch_that_cuts_groups_is_told(tmp_path, causal_lm_path):
    """TRL checks the batch only where an evaluation strategy is set."""
    trainer = make_trainer(
        tmp_path, causal_lm_path, constant, trainer_settings=with_eval(), per_device_eval_batch_size=3
    )
    with pytest.raises(ValueError, match="3 completions.*groups of 4"):
        trainer.evaluate()


def test_several_evaluation_sets(tmp_path, causal_lm_path):
    sets = {"easy": prompts_dataset(1), "hard": prompts_dataset(3)}
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        lambda prompts, **kwargs: [float(prompt[1:]) for prompt in prompts],
        trainer_settings=with_eval(sets),
        diversity=FixedDiversity(0.5),
        per_device_eval_batch_size=4,
        eval_strategy="steps",
        eval_steps=1,
    )
    trainer.train()
    # TRL names the loss by its set; its other metrics stand beside that loss in the same entry.
    easy, hard = (next(entry for entry in trainer.state.log_history if f"eval_{name}_loss" in entry) for name in sets)
    assert (easy["eval_reward"], easy["eval_quality/mean"]) == (0.0, 0.0)
    assert (hard["eval_reward"], hard["eval_quality/mean"]) == (pytest.approx(0.5), pytest.approx(1.0))  # p0, p1, p2


def test_iterable_data_sets(tmp_path, causal_lm_path):
    def rows():
        yield from ({"prompt": f"p{index}"} for index in range(4))

    measure = FixedDiversity()
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        train_dataset=IterableDataset.from_generator(rows),
        trainer_settings=with_eval(IterableDataset.from_generator(rows)),
        diversity=measure,
        max_steps=2,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=4,
    )
    trainer.train()
    trainer.evaluate()
    assert [len(group.completions) for group in measure.groups] == [4] * 8
    assert len({group.prompt for group in measure.groups[4:]}) == 4


@pytest.mark.parametrize(
    ("settings", "generations"),
    [
        ({"num_iterations": 2}, [1, 3]),
        ({"steps_per_generation": 2}, [1, 3]),
        ({"steps_per_generation": 2, "num_iterations": 2}, [1]),
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 2}, [1, 2, 3, 4]),
        ({"gradient_accumulation_steps": 2}, [1, 2, 3, 4]),
    ],
)
def test_metrics_appear_where_completions_were_generated(tmp_path, causal_lm_path, settings, generations):
    trainer = make_trainer(tmp_path, causal_lm_path, max_steps=4, **settings)
    outputs = record_outputs(trainer)
    trainer.train()
    assert len(outputs) == len(generations)
    for key in ("diversity/mean", "quality/mean", "reward", "diversity/pairs_scored"):
        steps = [entry["step"] for entry in trainer.state.log_history if key in entry]
        assert steps == generations, key


def test_an_evaluation_between_two_uses_of_a_generation_changes_nothing(tmp_path, causal_lm_path):
    results = []
    for evaluated in ({}, {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 1}):
        trainer = make_trainer(
            tmp_path,
            causal_lm_path,
            trainer_settings=with_eval(),
            max_steps=2,
            steps_per_generation=2,
            per_device_eval_batch_size=2,
            **evaluated,
        )
        trainer.train()
        results.append((weights(trainer), logged(trainer, "diversity/mean"), logged(trainer, "reward")))
    (plain, *plain_logs), (evaluated_weights, *evaluated_logs) = results
    assert plain_logs == evaluated_logs and len(plain_logs[0]) == 1
    assert all(torch.equal(value, evaluated_weights[name]) for name, value in plain.items())


@pytest.mark.parametrize("form", ["full", "lora"])
def test_every_trainable_parameter_moves(tmp_path, causal_lm_path, form):
    extra = {"peft_config": LoraConfig(r=2, target_modules="all-linear")} if form == "lora" else {}
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        trainer_settings=extra,
        diversity=FixedDiversity([1.0, 0.0, 0.5, 0.25]),
        max_steps=3,
        per_device_train_batch_size=8,
        beta=0.01,
    )
    before = weights(trainer)
    trainer.train()
    trainable = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert trainable
    for name, value in weights(trainer).items():
        assert torch.equal(value, before[name]) == (name not in trainable), name
    assert logged(trainer, "kl")[0] == pytest.approx(0, abs=1e-6)
    assert logged(trainer, "kl")[2] > 1e-4


@pytest.mark.parametrize("measure", ["none", "unlikeliness"])
def test_the_reference_of_a_pretrained_adapter_is_that_adapter(tmp_path, causal_lm_path, measure):
    """FC-062: the KL is 0 before the first update, and the adapter in use stays the trained one."""
    with seeded(3):
        policy = get_peft_model(AutoModelForCausalLM.from_pretrained(causal_lm_path), LoraConfig(r=2))
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    trainer = make_trainer(tmp_path, policy, beta=0.04, diversity_measure=measure, max_steps=2)
    before = weights(trainer)
    trainer.train()
    assert logged(trainer, "kl")[0] == pytest.approx(0, abs=1e-7)
    assert logged(trainer, "kl")[1] > 1e-6
    assert trainer.model.active_adapter == "default"
    moved = {name for name, value in weights(trainer).items() if not torch.equal(value, before[name])}
    assert moved and all(".default." in name for name in moved)


def test_two_trainers_side_by_side_do_not_mix(tmp_path, causal_lm_path):
    """What guards the reward functions belongs to one trainer and one step."""
    texts = {"p0": ["a", "A", "b", "c"]}
    trainers = []
    for name in ("one", "other"):
        trainer = make_trainer(
            tmp_path / name, causal_lm_path, constant, train_dataset=Dataset.from_dict({"prompt": ["p0"]})
        )
        fix_completions(trainer, texts)
        trainers.append(trainer)
    for trainer in (*trainers, *trainers):
        trainer.train()
        assert logged(trainer, "diversity/clusters_per_group")[-1] == 3.0
        assert len(trainer.reward_funcs) == 2 and trainer.reward_funcs[0] is constant
