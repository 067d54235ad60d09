# SPDX-License-Identifier: Apache-2.0
"""Teach the base policy short answers, some far more frequent than others: the repetitive policy to start from."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

from demo.models import CACHE, base_policy


POLICY = "policy"  # folder in the cache; the recipes name it as `.cache/demo/policy`
PROMPTS = Path(__file__).parent / "prompts"
SYSTEM_PROMPT = "Answer in a few words."
# How often the first, second, ... answer of a prompt is shown. This skew makes the policy repeat itself.
ANSWER_COUNTS = (5, 2, 1, 1)
LEARNING_RATE = 1e-4
BATCH_SIZE = 8
SEED = 0


def read_rows(name: str) -> list[dict[str, Any]]:
    """The rows of `demo/prompts/<name>.jsonl`: each has `prompt`, those of `warm_up` also `answers`."""
    with open(PROMPTS / f"{name}.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def messages(prompt: str) -> list[dict[str, str]]:
    """A prompt as the policy reads it: the system message and the question."""
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": prompt}]


def warm_policy(cache: Path = CACHE, max_steps: int = -1) -> Path:
    """
    The folder of the warmed-up policy. The first call trains it with TRL's `SFTTrainer`, all weights, one epoch.

    Args:
        cache (`pathlib.Path`, *optional*, defaults to `.cache/demo`):
            Where the folder lies.
        max_steps (`int`, *optional*, defaults to -1):
            Stop after so many optimizer steps. -1 trains the whole epoch, about a minute on two cores.

    Returns:
        `pathlib.Path`: a folder that `AutoModelForCausalLM.from_pretrained` loads.
    """
    target = cache / (POLICY if max_steps < 0 else f"{POLICY}-{max_steps}-steps")
    if target.exists():
        return target
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    _train(base_policy(cache), partial, max_steps)
    return partial.rename(target)


def training_rows() -> list[dict[str, Any]]:
    """Rows of `prompt` and `completion`, each answer as often as `ANSWER_COUNTS` says, in random order."""
    rows = [
        {"prompt": messages(row["prompt"]), "completion": [{"role": "assistant", "content": answer}]}
        for row in read_rows("warm_up")
        for answer, count in zip(row["answers"], ANSWER_COUNTS, strict=False)
        for _ in range(count)
    ]
    random.Random(SEED).shuffle(rows)
    return rows


def _train(base: Path, target: Path, max_steps: int) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from demo.progress import show_progress

    config = SFTConfig(
        output_dir=str(target),
        learning_rate=LEARNING_RATE,
        num_train_epochs=1,
        max_steps=max_steps,
        per_device_train_batch_size=BATCH_SIZE,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        seed=SEED,
    )
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(base),
        args=config,
        train_dataset=Dataset.from_list(training_rows()),
        processing_class=AutoTokenizer.from_pretrained(base),
    )
    show_progress(trainer)
    print("Warming up the policy, once: short answers, some much more frequent than others ...", flush=True)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    print(warm_policy())
