# SPDX-License-Identifier: Apache-2.0
"""What the tests of Darl share: trainers on the tiny policy, and rollouts with given token ids."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from tests.darl.rollouts import CASES, REFERENCES, Case, completion_ids, encoded, token_probabilities
from tests.trainers.helpers import QUICK, record_outputs
from trl_diversity.trainers import DarlConfig, DarlTrainer


def references_dataset(prompts: Sequence[str] = tuple(REFERENCES), conversational: bool = False) -> Dataset:
    rows: list[Any] = [[{"role": "user", "content": text}] if conversational else text for text in prompts]
    return Dataset.from_dict({"prompt": rows, "answer": [REFERENCES[text] for text in prompts]})


def make_trainer(
    tmp_path: Path, model: Any, *, train_dataset: Any = None, trainer: dict[str, Any] | None = None, **settings: Any
) -> DarlTrainer:
    """A trainer on the tiny policy: `trainer` goes to its constructor, all other settings to its configuration."""
    return DarlTrainer(
        model=model,
        args=DarlConfig(str(tmp_path), **{**QUICK, **settings}),
        train_dataset=references_dataset() if train_dataset is None else train_dataset,
        **(trainer or {}),
    )


def serve(trainer: DarlTrainer, ids: dict[str, list[list[int]]]) -> None:
    """Let the policy answer the prompt that holds a key with the given ids, in order, over and over."""
    tokenizer = trainer.processing_class
    served = dict.fromkeys(ids, 0)

    def generate(prompt_ids: list, *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        completions = []
        for sampled in prompt_ids:
            prompt = next(text for text in ids if text in tokenizer.decode(sampled))
            completions.append(list(ids[prompt][served[prompt] % len(ids[prompt])]))
            served[prompt] += 1
        return completions, None

    trainer._generate_single_turn = generate


def serve_cases(trainer: DarlTrainer, cases: dict[str, list[Case]] = CASES) -> None:
    """Let the policy answer with completions that were cut by hand."""
    tokenizer = trainer.processing_class
    serve(trainer, {prompt: [completion_ids(case, tokenizer) for case in group] for prompt, group in cases.items()})


def serve_texts(trainer: DarlTrainer, texts: dict[str, list[str]]) -> None:
    """Let the policy answer with texts."""
    serve_cases(trainer, {prompt: [Case([text], [], []) for text in group] for prompt, group in texts.items()})


ANSWERED = {prompt: ["<answer>7</answer>", "<answer>Rome</answer>"] * 2 for prompt in REFERENCES}


def rewards_of_one_step(trainer: DarlTrainer) -> list[float]:
    """Darl's column of the first reward step."""
    outputs = record_outputs(trainer)
    trainer.train()
    return outputs[0]["rewards_per_func"][:, -1].tolist()


def reference_likelihood(policy: Any, tokenizer: Any, prompt_ids: list[int], before: str, reference: str) -> float:
    """Mean probability of a reference in the answer of a completion that begins with `before`."""
    prefix = [*prompt_ids, *encoded([before], tokenizer)]
    return statistics.fmean(token_probabilities(policy, prefix, encoded([reference], tokenizer)))
