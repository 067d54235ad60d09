# SPDX-License-Identifier: Apache-2.0
"""How the policy is called to score: evaluation mode, temperature 1, its own adapter; and that it learns from it."""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.darl.helpers import make_trainer, serve, serve_cases
from tests.darl.rollouts import CASES, encoded, expected_case
from tests.trainers.helpers import logged, record_outputs, weights


WHOLE = {"per_device_train_batch_size": 16, "shuffle_dataset": False, "learning_rate": 0.02}


def loaded(path: str, **settings: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **settings)


def expected_rewards(model: Any, tokenizer: Any) -> list[float]:
    return [
        expected_case(case, tokenizer(prompt)["input_ids"], model, tokenizer).reward
        for prompt, group in CASES.items()
        for case in group
    ]


def run(trainer: Any) -> tuple[list[dict[str, Any]], list[dict[str, torch.Tensor]]]:
    """Train; what the reward steps gave, and the weights of the policy that each of them saw."""
    serve_cases(trainer)
    outputs, states = record_outputs(trainer), []
    calculate = trainer._calculate_rewards

    def noted(*args: Any) -> torch.Tensor:
        states.append(copy.deepcopy(trainer.model.state_dict()))
        return calculate(*args)

    trainer._calculate_rewards = noted
    trainer.train()
    return outputs, states


LORA = LoraConfig(r=2, init_lora_weights=False, target_modules=["q_proj", "v_proj", "o_proj"])


def policy_with(path: str, state: dict[str, torch.Tensor], adapter: str = "default") -> Any:
    """A policy as transformers and PEFT load it, with given weights: nothing of TRL is on it."""
    model = loaded(path)
    if any("lora_" in name for name in state):
        model = get_peft_model(model, LORA)
        other = "default" if adapter == "ref" else "ref"
        state = {
            name.replace(f".{adapter}.", ".default."): value
            for name, value in state.items()
            if f".{other}." not in name
        }
    model.load_state_dict(state)
    return model.eval()


def watch(trainer: Any) -> list[dict[str, Any]]:
    """How the policy is called while completions are scored."""
    calls: list[dict[str, Any]] = []
    score = trainer.score_rows
    scoring = [False]

    def scored(rows: list) -> list:
        scoring[0] = True
        try:
            return score(rows)
        finally:
            scoring[0] = False

    def called(module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        if scoring[0]:
            modes = {part.training for part in module.modules()}
            calls.append({"modes": modes, "grad": torch.is_grad_enabled(), "ids": kwargs["input_ids"].shape})

    trainer.score_rows = scored
    trainer.model.register_forward_pre_hook(called, with_kwargs=True)
    return calls


@pytest.mark.parametrize("temperature", [0.3, 1.7])
def test_rewards_are_those_at_temperature_one(tmp_path, policy_path, policy, tokenizer, temperature):
    trainer = make_trainer(tmp_path, policy_path, temperature=temperature, **WHOLE)
    outputs, _ = run(trainer)
    rewards = outputs[0]["rewards_per_func"][:, 0].tolist()
    assert rewards == pytest.approx(expected_rewards(policy, tokenizer), abs=1e-5)


@pytest.mark.parametrize("path", ["fast", "two_pass"])
def test_evaluation_mode_without_gradients_and_the_mode_is_restored(tmp_path, policy_path, policy, tokenizer, path):
    """Dropout would show in the rewards; a part of the policy that its user keeps in evaluation mode stays there."""
    model = loaded(policy_path, attention_dropout=0.5)
    trainer = make_trainer(tmp_path, model, score_path=path, **WHOLE)
    calls = watch(trainer)
    frozen = model.model.layers[0].mlp
    modes = []
    score = trainer._score_completions

    def noted(*args: Any) -> Any:
        frozen.eval()
        before = [module.training for module in model.modules()]
        scored = score(*args)
        modes.append((before, [module.training for module in model.modules()]))
        return scored

    trainer._score_completions = noted
    outputs, _ = run(trainer)
    assert calls and all(call["modes"] == {False} and not call["grad"] for call in calls)
    ((before, after),) = modes
    assert before == after and set(before) == {True, False}
    rewards = outputs[0]["rewards_per_func"][:, 0].tolist()
    assert rewards == pytest.approx(expected_rewards(policy, tokenizer), abs=1e-5)


def test_mode_is_restored_after_an_error(tmp_path, policy_path):
    trainer = make_trainer(tmp_path, policy_path, **WHOLE)
    trainer.scorer._logits = lambda batch: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run(trainer)
    assert trainer.model.training


def test_tokens_per_forward_bounds_each_call(tmp_path, policy_path):
    shapes = {}
    for limit in (300, 8192):
        trainer = make_trainer(tmp_path, policy_path, score_tokens_per_forward=limit, **WHOLE)
        calls = watch(trainer)
        run(trainer)
        shapes[limit] = [call["ids"] for call in calls[3:]]  # three trials decide the path
    assert len(shapes[8192]) == 1
    assert len(shapes[300]) > 2
    assert all(rows == 1 or rows * columns <= 300 for rows, columns in shapes[300])


def test_gradient_checkpointing(tmp_path, policy_path, policy, tokenizer):
    after = {}
    for switched_on in (True, False):
        trainer = make_trainer(tmp_path, policy_path, gradient_checkpointing=switched_on, max_steps=2, **WHOLE)
        outputs, _ = run(trainer)
        assert trainer.model.is_gradient_checkpointing == switched_on
        rewards = outputs[0]["rewards_per_func"][:, 0].tolist()
        assert rewards == pytest.approx(expected_rewards(policy, tokenizer), abs=1e-5)
        after[switched_on] = outputs[1]["rewards_per_func"], weights(trainer)
    torch.testing.assert_close(after[True][0], after[False][0], rtol=0, atol=1e-4)
    for name, value in after[True][1].items():
        torch.testing.assert_close(value, after[False][1][name], rtol=0, atol=1e-4)


def test_every_parameter_learns(tmp_path, policy_path):
    trainer = make_trainer(tmp_path, policy_path, max_steps=3, **WHOLE)
    before = weights(trainer)
    outputs, _ = run(trainer)
    assert outputs[0]["advantages"].abs().max() > 0.5
    after = weights(trainer)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert all(value.isfinite().all() for value in after.values())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_lora(tmp_path, policy_path, tokenizer, checkpointing):
    """The adapter, which is not zero, scores; it learns, and the base model stays as it is."""
    trainer = make_trainer(
        tmp_path,
        policy_path,
        trainer={"peft_config": LORA},
        gradient_checkpointing=checkpointing,
        max_steps=2,
        **WHOLE,
    )
    before = weights(trainer)
    outputs, states = run(trainer)
    for output, state in zip(outputs, states, strict=True):
        rewards = output["rewards_per_func"][:, 0].tolist()
        assert rewards == pytest.approx(expected_rewards(policy_with(policy_path, state), tokenizer), abs=1e-5)
    assert rewards != pytest.approx(expected_rewards(loaded(policy_path).eval(), tokenizer), abs=1e-2)
    for name, value in weights(trainer).items():
        assert torch.equal(value, before[name]) != ("lora_" in name), name
    assert trainer.max_length == 511


@pytest.mark.parametrize("path", ["fast", "two_pass"])
def test_pretrained_adapter_with_a_kl_term(tmp_path, policy_path, tokenizer, path):
    """The case FC-062: KL is 0 at step 0, and the trained adapter scores, never the copy that TRL calls `"ref"`."""
    model = get_peft_model(loaded(policy_path), LORA)
    trainer = make_trainer(tmp_path, model, beta=0.04, score_path=path, max_steps=3, **WHOLE)
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    outputs, states = run(trainer)
    assert "ref" in model.peft_config
    assert logged(trainer, "kl")[0] == pytest.approx(0.0, abs=1e-7)
    assert logged(trainer, "kl")[-1] > 1e-4
    for output, state in zip(outputs, states, strict=True):
        rewards = output["rewards_per_func"][:, 0].tolist()
        assert rewards == pytest.approx(expected_rewards(policy_with(policy_path, state), tokenizer), abs=1e-5)
    reference = policy_with(policy_path, states[-1], adapter="ref")
    assert rewards != pytest.approx(expected_rewards(reference, tokenizer), abs=1e-3)
    assert model.active_adapter == "default"
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == trainable


def test_the_reference_adapter_left_active_does_not_score(tmp_path, policy_path, tokenizer):
    """The case FC-062, with `"ref"` left selected by an earlier call."""
    model = get_peft_model(loaded(policy_path), LORA)
    trainer = make_trainer(tmp_path, model, beta=0.04, **WHOLE)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".default." in name:
                parameter.mul_(0.5)
    score = trainer._score_completions

    def after_reference(*args: Any) -> Any:
        model.set_adapter("ref")
        scored = score(*args)
        assert model.active_adapter == "ref"
        model.set_adapter("default")
        return scored

    trainer._score_completions = after_reference
    outputs, states = run(trainer)
    rewards = outputs[0]["rewards_per_func"][:, 0].tolist()
    assert rewards == pytest.approx(expected_rewards(policy_with(policy_path, states[0]), tokenizer), abs=1e-5)
    reference = policy_with(policy_path, states[0], adapter="ref")
    assert rewards != pytest.approx(expected_rewards(reference, tokenizer), abs=1e-3)


def test_a_frozen_scorer_does_not_learn(tmp_path, policy_path):
    trainer = make_trainer(tmp_path, policy_path, scorer_model=policy_path, max_steps=2, **WHOLE)
    outputs, _ = run(trainer)
    torch.testing.assert_close(outputs[0]["rewards_per_func"], outputs[1]["rewards_per_func"])
    scorer = trainer.scorer._scorer.model
    assert not any(parameter.requires_grad for parameter in scorer.parameters())
    initial = loaded(policy_path).state_dict()
    assert all(torch.equal(value, initial[name]) for name, value in scorer.state_dict().items())
    assert any(not torch.equal(value, initial[name]) for name, value in trainer.model.state_dict().items())


def test_reused_generations_are_scored_once(tmp_path, policy_path):
    trainer = make_trainer(
        tmp_path, policy_path, max_steps=8, steps_per_generation=2, num_iterations=2, gradient_accumulation_steps=1
    )
    outputs, _ = run(trainer)
    assert len(outputs) == 2
    assert len(logged(trainer, "darl/malformed_fraction")) == 2


def test_the_policy_of_a_later_generation_is_the_trained_one(tmp_path, policy_path, tokenizer):
    trainer = make_trainer(
        tmp_path,
        policy_path,
        max_steps=4,
        steps_per_generation=4,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=4,
        shuffle_dataset=False,
    )
    outputs, states = run(trainer)
    assert len(outputs) == 2
    at_first, now = (expected_rewards(policy_with(policy_path, state), tokenizer) for state in states)
    assert outputs[1]["rewards_per_func"][:, 0].tolist() == pytest.approx(now, abs=1e-5)
    assert now != pytest.approx(at_first, abs=1e-3)


def test_every_token_that_ends_a_turn_ends_an_answer(tmp_path, policy_path, tokenizer):
    """What generation stops at is the model's to say; the tokenizer names one of these tokens."""
    end = tokenizer.convert_tokens_to_ids("<|user|>")
    model = loaded(policy_path)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, end]
    trainer = make_trainer(tmp_path, model, answer_format="after_think", **WHOLE)
    texts = ["<think>a</think>42", "<think>a</think>Rome"] * 2
    serve(trainer, {prompt: [[*encoded([text], tokenizer), end] for text in texts] for prompt in CASES})
    rows = []
    score = trainer.score_rows
    trainer.score_rows = lambda asked: rows.extend(asked) or score(asked)
    trainer.train()
    assert [row.answer for row in rows] == ["42", "Rome"] * 8
    assert all(end not in row.answer_ids for row in rows)
