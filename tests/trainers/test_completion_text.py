# SPDX-License-Identifier: Apache-2.0
"""Which text of a completion is compared, whatever form the data set and the policy give it."""

import pytest

from tests import tiny
from tests.trainers.helpers import (
    ExactText,
    FixedDiversity,
    fix_completions,
    fix_messages,
    length_reward,
    make_trainer,
    prompts_dataset,
    record_outputs,
)


MESSAGES = {
    # FC-027, FC-028: no text at all, as None, as a missing key, and as a call whose record was emptied
    "none": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}],
    "missing": [{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "ok"}, {"role": "assistant"}],
    "tool output": [{"role": "assistant", "content": "156"}, {"role": "tool", "content": "999"}],
    # FC-030: all text parts of a message
    "plan A": [
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Plan A"}, {"type": "image"}, {"type": "text", "text": "done"}],
        }
    ],
    "plan B": [
        {"role": "assistant", "content": [{"type": "text", "text": "Plan B"}, {"type": "text", "text": "done"}]}
    ],
    "final": [
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "name": "f", "content": "156"},
        {"role": "assistant", "content": "156"},
    ],
}


def test_messages_without_or_with_several_texts(tmp_path, causal_lm_path):
    judge = ExactText()
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        lambda completions, **kwargs: [1.0] * len(completions),
        train_dataset=prompts_dataset(4, conversational=True),
        diversity=judge,
        num_generations=6,
        per_device_train_batch_size=6,
    )
    fix_messages(trainer, list(MESSAGES.values()))
    outputs = record_outputs(trainer)
    trainer.train()
    got = dict(zip(MESSAGES, outputs[0]["rewards_per_func"][:, -1].tolist(), strict=True))
    # Nothing and nothing are one cluster with diversity 0; "156" is said twice; the two plans differ.
    assert got == pytest.approx(
        {"none": 0, "missing": 0, "tool output": 0.8, "plan A": 1.0, "plan B": 1.0, "final": 0.8}
    )
    texts = {text for pair in judge.pairs for text in pair}
    assert not any("None" in text or "999" in text or "ok" in text for text in texts)
    assert any(text.startswith("Plan A") and text.endswith("done") for text in texts)


def test_plain_and_conversational_prompts_give_the_same_numbers(tmp_path, causal_lm_path):
    """FC-025."""
    logs = []
    for conversational in (False, True):
        judge = ExactText()
        trainer = make_trainer(
            tmp_path,
            causal_lm_path,
            length_reward,
            train_dataset=prompts_dataset(1, conversational),
            diversity=judge,
            diversity_text="after_think",
        )
        fix_completions(trainer, {"p0": ["<think>a</think>4", "<think>b</think>4", "Four", "5"]})
        outputs = record_outputs(trainer)
        trainer.train()
        kept = ("reward", "quality", "diversity", "rewards")
        logs.append(
            {
                key: value
                for key, value in trainer.state.log_history[0].items()
                if key.startswith(kept) and key != "diversity/seconds"
            }
            | {"advantages": outputs[0]["advantages"].tolist(), "prompts": judge.prompts, "pairs": judge.pairs}
        )
    assert logs[0] == logs[1]
    assert logs[0]["diversity/clusters_per_group"] == 3.0 and set(logs[0]["prompts"]) == {"p0"}


@pytest.mark.parametrize("part", ["answer", "after_think"])
def test_tags_that_decoding_would_drop_are_refused(tmp_path, causal_lm_path, part):
    """FC-034: as special tokens, the tags are gone from the text before anything can look for them."""
    tags = {"answer": ["<answer>", "</answer>"], "after_think": ["<think>", "</think>"]}[part]
    tokenizer = tiny.tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": tags})
    settings = {"trainer_settings": {"processing_class": tokenizer}}
    with pytest.raises(ValueError, match=f"`diversity_text: {part}`.*{tags[0]}.*special"):
        make_trainer(tmp_path, causal_lm_path, diversity_text=part, **settings)
    make_trainer(tmp_path, causal_lm_path, diversity_text="full", **settings)
    usual = {"trainer_settings": {"processing_class": tiny.tiny_tokenizer(words=tags)}}
    make_trainer(tmp_path, causal_lm_path, diversity_text=part, **usual)


def thinking_tokenizer(parses=False):
    """A tokenizer whose chat template opens the think block, and that may take reasoning out of completions."""
    template = tiny.CHAT_TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}")
    tokenizer = tiny.tiny_tokenizer(chat_template=template)
    if parses:
        tokenizer.response_template = {
            "defaults": {"role": "assistant"},
            "start_anchor": "<|assistant|>",
            "fields": {
                "reasoning_content": {"open": "<think>", "close_pattern": "</think>\\s*", "content": "text"},
                "content": {"close_pattern": "<\\|end\\|>", "content": "text"},
            },
        }
    return tokenizer


@pytest.mark.parametrize("parses", [False, True])
@pytest.mark.parametrize("part", ["after_think", "answer"])
def test_a_think_block_that_the_prompt_opened(tmp_path, causal_lm_path, part, parses):
    """FC-036: its end is in the completion alone; reasoning that differs is not an answer that differs."""
    texts = [
        "one\n</think>\n<answer>4</answer>",
        "two\n</think>\n<answer>4</answer>",
        "</think><answer>5</answer>",
        "on",
    ]
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        lambda completions, **kwargs: [1.0] * len(completions),
        train_dataset=prompts_dataset(1, conversational=True),
        trainer_settings={"processing_class": thinking_tokenizer(parses)},
        diversity_text=part,
    )
    fix_completions(trainer, {"p0": texts})
    outputs = record_outputs(trainer)
    trainer.train()
    # The same answer twice, another one, and a thought that never ends: no text to compare.
    assert outputs[0]["rewards_per_func"][:, -1].tolist() == pytest.approx([2 / 3, 2 / 3, 1.0, 0.0])


def test_an_answer_that_the_prompt_opened(tmp_path, causal_lm_path):
    """The completion alone has no `<answer>`: without the prompt's end, no completion would have an answer."""
    template = tiny.CHAT_TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><answer>{% endif %}")
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        lambda completions, **kwargs: [1.0] * len(completions),
        train_dataset=prompts_dataset(1, conversational=True),
        trainer_settings={"processing_class": tiny.tiny_tokenizer(chat_template=template)},
        diversity_text="answer",
    )
    fix_completions(trainer, {"p0": ["4</answer>", "4</answer> and more", "5</answer>", "</answer>"]})
    outputs = record_outputs(trainer)
    trainer.train()
    assert outputs[0]["rewards_per_func"][:, -1].tolist() == pytest.approx([2 / 3, 2 / 3, 1.0, 0.0])


@pytest.mark.parametrize("part", ["full", "after_think", "answer"])
def test_an_answer_without_a_think_block(tmp_path, causal_lm_path, part):
    """FC-037: a model that does not think is compared like any other."""
    texts = ["<answer>olleh</answer>", "<answer>OLLEH</answer>", "<answer>hello</answer>", "<answer>hi</answer>"]
    trainer = make_trainer(tmp_path, causal_lm_path, length_reward, diversity_text=part, diversity=FixedDiversity())
    fix_completions(trainer, {f"p{index}": texts for index in range(4)})
    trainer.train()
    expected = ["olleh", "OLLEH", "hello", "hi"] if part == "answer" else texts
    assert trainer.diversity.groups[0].completions == expected
