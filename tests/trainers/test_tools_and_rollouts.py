# SPDX-License-Identifier: Apache-2.0
"""Tools, environments and rollouts of the user's own: what of an episode is compared and what is rewarded."""

from importlib import resources

import pytest
import transformers
from packaging.version import Version
from transformers import AutoTokenizer

from tests import tiny
from tests.trainers.helpers import (
    FixedDiversity,
    logged,
    make_trainer,
    prompts_dataset,
    record_outputs,
)


CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 12, "b": 13}}\n</tool_call>'
ANSWERS = ["156", "It is 156", "156", "none"]
# 156 is said twice by four: (4 - 2) / 3
DIVERSITY = [2 / 3, 1.0, 2 / 3, 1.0]


def multiply(a: int, b: int) -> int:
    """
    Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.

    Returns:
        Their product.
    """
    return a * b


@pytest.fixture(scope="module")
def tool_policy(tmp_path_factory):
    """A policy with room for the description of a tool, of which each byte is a token."""
    return tiny.save_tiny_causal_lm(tmp_path_factory.mktemp("tool_policy"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def tool_tokenizer(tool_policy):
    """Its tokenizer with a chat template that knows tools."""
    if Version(transformers.__version__) < Version("5.13"):
        pytest.importorskip("jmespath", reason="older transformers parse tool calls with jmespath")
    tokenizer = AutoTokenizer.from_pretrained(tool_policy)
    tokenizer.chat_template = resources.files("trl").joinpath("chat_templates/qwen3.jinja").read_text()
    return tokenizer


@pytest.fixture(autouse=True)
def silence_experimental(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def call_then_answer(trainer):
    """Every completion calls the tool and answers once it has seen the result."""
    tokenizer, answered = trainer.processing_class, []

    def generate(prompt_ids, *args, **kwargs):
        texts = []
        for ids in prompt_ids:
            has_result = "<tool_response>" in tokenizer.decode(ids)
            texts.append(ANSWERS[len(answered) % 4] if has_result else CALL)
            answered.extend([1] * has_result)
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] for text in texts]
        return ids, None

    trainer._generate_single_turn = generate


def test_tools_are_accepted_and_the_last_turn_is_compared(tmp_path, tool_policy, tool_tokenizer):
    """FC-027: neither the call nor the output of a tool is what the model says."""
    measure = FixedDiversity()
    seen = []

    def reward(completions, **kwargs):
        seen.extend(completions)
        return [1.0] * len(completions)

    trainer = make_trainer(
        tmp_path,
        tool_policy,
        reward,
        train_dataset=prompts_dataset(4, conversational=True),
        trainer_settings={"tools": [multiply], "processing_class": tool_tokenizer},
        diversity=measure,
        max_completion_length=400,
    )
    call_then_answer(trainer)
    trainer.train()
    assert [message["role"] for message in seen[0]] == ["assistant", "tool", "assistant"]
    assert seen[0][1]["content"] == "156"
    assert measure.groups[0].completions == ANSWERS
    assert logged(trainer, "tools/call_frequency") == [1.0]


class Counter:
    """An environment that owns its reward: the number of calls of its tool."""

    def reset(self, **kwargs) -> None:
        self.calls = 0

    def multiply(self, a: int, b: int) -> int:
        """
        Multiply two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        self.calls += 1
        return a * b

    def get_reward(self) -> float:
        return float(self.calls)


class AsyncCounter(Counter):
    async def get_reward(self) -> float:
        return float(self.calls)


@pytest.mark.parametrize("environment", [Counter, AsyncCounter])
def test_the_reward_of_an_environment_counts_as_quality(tmp_path, tool_policy, tool_tokenizer, environment):
    processing_classes = [None]

    def half(completions, **kwargs):
        return [0.5] * len(completions)

    for _ in range(2):  # the lists of the user can be used again
        trainer = make_trainer(
            tmp_path,
            tool_policy,
            [half],
            train_dataset=prompts_dataset(4, conversational=True),
            trainer_settings={
                "environment_factory": environment,
                "processing_class": tool_tokenizer,
                "reward_processing_classes": processing_classes,
            },
            reward_weights=[3.0],
            max_completion_length=400,
        )
        assert processing_classes == [None]
    call_then_answer(trainer)
    outputs = record_outputs(trainer)
    trainer.train()
    assert trainer.reward_func_names == ["half", environment.__name__, "darling"]
    assert trainer.quality_weights.tolist() == [3.0, 1.0]
    columns = outputs[0]["rewards_per_func"]
    assert columns[:, :2].tolist() == [[0.5, 1.0]] * 4
    assert columns[:, 2].tolist() == pytest.approx([2.5 * value for value in DIVERSITY])


def test_an_environment_alone_is_enough(tmp_path, tool_policy, tool_tokenizer):
    trainer = make_trainer(
        tmp_path,
        tool_policy,
        None,
        train_dataset=prompts_dataset(4, conversational=True),
        trainer_settings={"environment_factory": Counter, "processing_class": tool_tokenizer},
        max_completion_length=400,
    )
    call_then_answer(trainer)
    outputs = record_outputs(trainer)
    trainer.train()
    assert outputs[0]["rewards_per_func"][:, -1].tolist() == pytest.approx(DIVERSITY)


def rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    texts = [ANSWERS[row % 4] for row in range(len(prompts))]
    return {
        "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts],
        "logprobs": [[-1.0] * (len(tokenizer(text)["input_ids"]) + 1) for text in texts],
        "score": [float(row) for row in range(len(prompts))],
    }


def test_a_rollout_function_is_accepted(tmp_path, causal_lm_path):
    def scored(score, **kwargs):
        return score

    trainer = make_trainer(tmp_path, causal_lm_path, scored, trainer_settings={"rollout_func": rollout})
    outputs = record_outputs(trainer)
    trainer.train()
    expected = [row * value for row, value in enumerate(DIVERSITY)]
    assert outputs[0]["rewards_per_func"][:, -1].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["tools", "rollout_func", "environment_factory", "images"])
def test_unlikeliness_refuses_what_its_likelihood_does_not_know(tmp_path, causal_lm_path, tool_tokenizer, name):
    given = {"tools": [multiply], "rollout_func": rollout, "environment_factory": Counter}
    extra = {"processing_class": tool_tokenizer} | ({name: given[name]} if name in given else {})
    columns = {"image": [None] * 4} if name == "images" else {}
    with pytest.raises(ValueError, match=f"'unlikeliness'.*likelihood.*`{name}`"):
        make_trainer(
            tmp_path,
            causal_lm_path,
            train_dataset=prompts_dataset(4, conversational=True, **columns),
            trainer_settings=extra,
            diversity_measure="unlikeliness",
        )
