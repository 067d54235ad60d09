# SPDX-License-Identifier: Apache-2.0
"""What the constructor takes and refuses: reward functions, scorers, and TRL's options that hide tokens."""

import functools
import inspect
import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tests.darl.helpers import make_trainer, references_dataset, serve_cases
from tests.darl.rollouts import CASES, REFERENCES, expected_case
from tests.darl.taught import save_taught
from tests.trainers.helpers import QUICK, record_outputs
from trl_diversity.likelihood import FrozenScorer, PolicyScorer, RowScores, Scorer
from trl_diversity.trainers import DarlConfig, DarlTrainer


def length(completions: list, **kwargs: Any) -> list[float]:
    return [len(text) / 100 for text in completions]


def one_step(trainer: DarlTrainer) -> torch.Tensor:
    """The rewards of all columns of one step on completions that were cut by hand."""
    serve_cases(trainer)
    outputs = record_outputs(trainer)
    trainer.train()
    return outputs[0]["rewards_per_func"]


WHOLE = {"per_device_train_batch_size": 16, "shuffle_dataset": False}


def expected_rewards(model, tokenizer):
    return [
        expected_case(case, tokenizer(prompt)["input_ids"], model, tokenizer).reward
        for prompt, group in CASES.items()
        for case in group
    ]


def test_signature_is_that_of_grpo_and_a_scorer():
    ours, theirs = (inspect.signature(trainer.__init__).parameters for trainer in (DarlTrainer, GRPOTrainer))
    assert list(ours) == [*theirs, "scorer"]
    assert ours["scorer"].kind is inspect.Parameter.KEYWORD_ONLY
    assert all(ours[name].default == theirs[name].default for name in theirs if name not in ("model", "self"))


def test_default_arguments(policy_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    on_this_machine = functools.partialmethod(DarlConfig.__init__, use_cpu=True, bf16=False)
    monkeypatch.setattr(DarlConfig, "__init__", on_this_machine)
    trainer = DarlTrainer(policy_path, train_dataset=references_dataset())
    assert isinstance(trainer.args, DarlConfig)
    assert trainer.args.output_dir.endswith("-Darl")
    assert trainer.reward_func_names == ["darl"]


def test_arguments_of_another_class(tmp_path, policy_path):
    args = GRPOConfig(str(tmp_path), **QUICK)
    with pytest.raises(TypeError, match="`args` is a `DarlConfig`, got GRPOConfig"):
        DarlTrainer(policy_path, args=args, train_dataset=references_dataset())


# Reward functions (the case FC-019)


@pytest.mark.parametrize("reward_funcs", [None, []])
def test_no_other_reward_function(tmp_path, policy_path, policy, tokenizer, caplog, reward_funcs):
    given = [] if reward_funcs is None else reward_funcs
    with caplog.at_level(logging.WARNING):
        trainer = make_trainer(tmp_path, policy_path, trainer={"reward_funcs": reward_funcs}, max_steps=3, **WHOLE)
        rewards = one_step(trainer)
    assert trainer.reward_func_names == ["darl"]
    assert rewards.shape == (16, 1)
    assert rewards[:, 0].tolist() == pytest.approx(expected_rewards(policy, tokenizer), abs=1e-5)
    assert given == []
    assert not [record for record in caplog.records if "reward" in record.getMessage().lower()]


@pytest.mark.parametrize("alone", [True, False])
def test_other_reward_functions(tmp_path, policy_path, policy, tokenizer, alone):
    given: Any = length if alone else [length]
    trainer = make_trainer(tmp_path, policy_path, trainer={"reward_funcs": given}, **WHOLE)
    rewards = one_step(trainer)
    assert trainer.reward_func_names == ["length", "darl"]
    texts = [case.text for group in CASES.values() for case in group]
    expected = [a + b for a, b in zip(expected_rewards(policy, tokenizer), length(texts), strict=True)]
    assert rewards[:, 1].tolist() == pytest.approx(expected, abs=1e-5)
    assert given is length or given == [length]  # the user's list is left as it is


def test_a_reward_model_beside_the_likelihood(tmp_path, policy_path, reward_model_path):
    rewards = {}
    for weight in (0.0, 2.0):
        trainer = make_trainer(
            tmp_path, policy_path, trainer={"reward_funcs": reward_model_path}, reward_weights=[weight], **WHOLE
        )
        rewards[weight] = one_step(trainer)
    assert rewards[2.0][:, 0].std() > 0
    torch.testing.assert_close(rewards[2.0][:, 1], rewards[0.0][:, 1] + 2 * rewards[2.0][:, 0], rtol=0, atol=1e-5)


def test_weights_without_reward_functions_are_refused(tmp_path, policy_path):
    with pytest.raises(ValueError, match=re.escape("`reward_weights` is [0.5], but there are no `reward_funcs`")):
        make_trainer(tmp_path, policy_path, reward_weights=[0.5])


def test_weights_that_do_not_match_are_refused(tmp_path, policy_path):
    with pytest.raises(ValueError, match="reward weights"):
        make_trainer(tmp_path, policy_path, trainer={"reward_funcs": [length]}, reward_weights=[0.5, 1.0])


@pytest.mark.parametrize("column", ["answer", "reference_prob", "answer_prob", "malformed"])
def test_columns_of_the_table_are_ours(tmp_path, policy_path, column):
    def nosy(completions: list, log_extra: Any, **kwargs: Any) -> list[float]:
        log_extra(column, ["mine"] * len(completions))
        return [0.0] * len(completions)

    trainer = make_trainer(tmp_path, policy_path, trainer={"reward_funcs": nosy})
    serve_cases(trainer)
    with pytest.raises(ValueError, match=f"The column '{column}' of the completions table is Darl's"):
        trainer.train()


def test_other_columns_of_the_table_are_the_users(tmp_path, policy_path):
    def nosy(completions: list, log_extra: Any, **kwargs: Any) -> list[float]:
        log_extra("mine", list(range(len(completions))))
        return [0.0] * len(completions)

    trainer = make_trainer(tmp_path, policy_path, trainer={"reward_funcs": nosy})
    one_step(trainer)
    assert list(trainer._logs["extra"]["mine"]) == [0, 1, 2, 3]
    assert len(trainer._logs["extra"]["answer"]) == 4


def test_reward_functions_are_given_the_reference(tmp_path, policy_path):
    seen = []

    def looks(completions: list, answer: list, **kwargs: Any) -> list[float]:
        seen.extend(answer)
        return [0.0] * len(completions)

    one_step(make_trainer(tmp_path, policy_path, trainer={"reward_funcs": looks}, **WHOLE))
    assert seen == ["42"] * 4 + ["Paris"] * 4 + ["7"] * 4 + ["東京"] * 4


# What hides tokens


def tool(x: int) -> int:
    """
    Add one.

    Args:
        x: A number.
    """
    return x + 1


def rollout(prompts: list, trainer: Any) -> dict[str, list]:
    return {"prompt_ids": [], "completion_ids": [], "logprobs": []}


class Environment:
    def reset(self, **kwargs: Any) -> None:
        return None

    def get_reward(self) -> float:
        return 1.0


@pytest.mark.parametrize(
    "option",
    [{"tools": [tool]}, {"rollout_func": rollout}, {"environment_factory": Environment}],
    ids=lambda o: [*o][0],
)
def test_options_without_known_tokens_are_refused(tmp_path, policy_path, option):
    message = f"DarlTrainer needs the likelihood of completions, which is not supported together with `{[*option][0]}`"
    with pytest.raises(ValueError, match=re.escape(message)):
        make_trainer(tmp_path, policy_path, trainer=option)


@pytest.mark.parametrize("column", ["image", "images"])
def test_images_are_refused(tmp_path, policy_path, column):
    data = Dataset.from_dict({"prompt": ["p0"] * 4, "answer": ["42"] * 4, column: [None] * 4})
    with pytest.raises(ValueError, match="not supported together with `images`"):
        make_trainer(tmp_path, policy_path, train_dataset=data)


# Scorers


@pytest.fixture(scope="module")
def other_path(tmp_path_factory):
    """Another model, whose tokenizer has other tokens."""
    return save_taught(tmp_path_factory.mktemp("other"), words=("<think>", "</answer>", "ari"), seed=5)


@pytest.fixture(scope="module")
def other(other_path):
    model = AutoModelForCausalLM.from_pretrained(other_path, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(other_path)


@pytest.mark.parametrize("how", ["argument", "configuration"])
def test_another_model_scores(tmp_path, policy_path, tokenizer, other_path, other, how):
    model, own_tokenizer = other
    if how == "argument":
        scorer = FrozenScorer(model, own_tokenizer, tokenizer)
        trainer = make_trainer(tmp_path, policy_path, trainer={"scorer": scorer}, debias=True, **WHOLE)
    else:
        trainer = make_trainer(tmp_path, policy_path, scorer_model=other_path, debias=True, **WHOLE)
    rewards = one_step(trainer)
    expected = []
    for prompt, group in CASES.items():
        opened = own_tokenizer(prompt + "<answer>")["input_ids"]
        for case in group:
            baseline = likelihood_of(model, own_tokenizer, opened, REFERENCES[prompt])
            expected.append(expected_by(model, own_tokenizer, prompt, case, baseline))
    assert rewards[:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert not trainer.scorer._scorer.model.training


def likelihood_of(model, tokenizer, prefix, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        table = model(torch.tensor([[*prefix, *ids]])).logits[0].softmax(-1)
    return sum(table[len(prefix) - 1 + place, index].item() for place, index in enumerate(ids)) / len(ids)


def expected_by(model, tokenizer, prompt, case, baseline):
    """The oracle with a tokenizer that spells white space before an answer as a token of its own."""
    if case.malformed:
        return 0.1 * case.format_score
    text = prompt + "".join(case.before) + " " * ("".join(case.answer)[0] == " ")
    prefix = tokenizer(text)["input_ids"]
    reference, answer = (likelihood_of(model, tokenizer, prefix, text) for text in (REFERENCES[prompt], case.parsed))
    bonus = reference - answer if 0 < reference - answer <= reference / 8 else 0.0
    return 0.9 * (min(max(reference - baseline, 0.0), 1.0) + 0.01 * bonus) + 0.1 * case.format_score


def test_the_policys_tokenizer_of_another_model(tmp_path, policy_path, tokenizer):
    """Another policy with the same tokenizer: a `PolicyScorer` keeps the model that it was given."""
    teacher = AutoModelForCausalLM.from_pretrained(policy_path, dtype=torch.float32).eval()
    with torch.no_grad():
        teacher.lm_head.weight.mul_(0.5)
    scorer = PolicyScorer(teacher, tokens_per_forward=100)
    trainer = make_trainer(tmp_path, policy_path, trainer={"scorer": scorer}, **WHOLE)
    rewards = one_step(trainer)
    assert scorer.model is teacher
    assert rewards[:, 0].tolist() == pytest.approx(expected_rewards(teacher, tokenizer), abs=1e-5)


def test_a_scorer_of_the_policy_is_given_the_wrapped_model(tmp_path, policy_path, policy, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(policy_path, dtype=torch.float32)
    scorer = PolicyScorer(model, path="two_pass")
    trainer = make_trainer(tmp_path, model, trainer={"scorer": scorer}, **WHOLE)
    rewards = one_step(trainer)
    assert scorer.model is trainer.model_wrapped
    assert rewards[:, 0].tolist() == pytest.approx(expected_rewards(policy, tokenizer), abs=1e-5)


def test_a_frozen_model_has_its_own_room(tmp_path, policy_path, other_path):
    model = AutoModelForCausalLM.from_pretrained(other_path, dtype=torch.float32)
    model.config.max_position_embeddings = 40
    model.save_pretrained(tmp_path / "short")
    AutoTokenizer.from_pretrained(other_path).save_pretrained(tmp_path / "short")
    trainer = make_trainer(tmp_path, policy_path, scorer_model=str(tmp_path / "short"), **WHOLE)
    one_step(trainer)
    reasons = list(trainer._logs["extra"]["malformed"])
    long = [len(case.text) > 200 for group in CASES.values() for case in group]
    assert [reason == "too_long" for reason in reasons] == long


class ConstantScorer:
    """A scorer of one's own."""

    def score(self, rows: Any) -> list[RowScores]:
        return [RowScores((0.25,), (0.5,)) for _ in rows]


def test_a_scorer_of_ones_own(tmp_path, policy_path):
    assert isinstance(ConstantScorer(), Scorer)
    rewards = one_step(make_trainer(tmp_path, policy_path, trainer={"scorer": ConstantScorer()}, gamma=2.0, **WHOLE))
    cases = [case for group in CASES.values() for case in group]
    expected = [0.1 * c.format_score + (0.0 if c.malformed else 0.9 * (0.5 + 0.01 * 0.25)) for c in cases]
    assert rewards[:, 0].tolist() == pytest.approx(expected)


def test_a_scorer_that_calls_rows_malformed(tmp_path, policy_path):
    class Refusing(ConstantScorer):
        def score(self, rows):
            return [
                RowScores(malformed="too_long") if row.reference == "7" else RowScores((0.5,), (0.5,)) for row in rows
            ]

    trainer = make_trainer(tmp_path, policy_path, trainer={"scorer": Refusing()}, debias=True, **WHOLE)
    rewards = one_step(trainer)[:, 0].tolist()
    cases = [case for group in CASES.values() for case in group]
    assert rewards == pytest.approx([0.1 * case.format_score for case in cases])  # 0.5 less the baseline 0.5
    assert list(trainer._logs["extra"]["malformed"])[8] == "too_long"
    assert sorted(trainer.darl_state.baseline.values()) == [0.0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (lambda rows: [RowScores((0.5,), (0.5,))] * (len(rows) - 1), "Broken gave 10 scores for 11 rows"),
        (lambda rows: [RowScores((0.5,), (0.5,))] * (len(rows) + 1), "Broken gave 12 scores for 11 rows"),
        (lambda rows: [RowScores((0.5,), (-0.7,))] * len(rows), r"probabilities must lie in \[0, 1\]"),
    ],
)
def test_a_scorer_that_breaks_its_contract(tmp_path, policy_path, scores, message):
    class Broken:
        def score(self, rows):
            return scores(rows)

    trainer = make_trainer(tmp_path, policy_path, trainer={"scorer": Broken()}, **WHOLE)
    with pytest.raises(ValueError, match=message):
        one_step(trainer)


@pytest.mark.parametrize("scorer", [SimpleNamespace(score=1), "gpt2", object(), ConstantScorer, 0])
def test_what_is_no_scorer_is_refused(tmp_path, policy_path, scorer):
    with pytest.raises(TypeError, match="accepted is an object with a method `score`"):
        make_trainer(tmp_path, policy_path, trainer={"scorer": scorer})


@pytest.mark.parametrize(
    "settings",
    [{"scorer_model": "x"}, {"score_path": "fast"}, {"score_tokens_per_forward": 10}],
    ids=lambda s: [*s][0],
)
def test_a_scorer_and_settings_of_one_are_refused(tmp_path, policy_path, settings):
    with pytest.raises(ValueError, match=f"Both `scorer` and `{[*settings][0]}` are given"):
        make_trainer(tmp_path, policy_path, trainer={"scorer": ConstantScorer()}, **settings)
