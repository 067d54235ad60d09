# SPDX-License-Identifier: Apache-2.0
"""Teach the base policy the form of an answer, on questions of its own: one sentence, then answer tags."""

import random
import shutil
from pathlib import Path
from typing import Any

from demo.darl.questions import messages, read_questions
from demo.models import CACHE, base_policy


POLICY = "darl-policy"  # folder in the cache; the recipes name it as `.cache/demo/darl-policy`
LEARNING_RATE = 5e-5
BATCH_SIZE = 8
EPOCHS = 2
SEED = 0


def warm_policy(cache: Path = CACHE, max_steps: int = -1) -> Path:
    """
    The folder of the warmed-up policy. The first call trains it with TRL's `SFTTrainer`, all weights.

    Args:
        cache (`pathlib.Path`, *optional*, defaults to `.cache/demo`):
            Where the folder lies.
        max_steps (`int`, *optional*, defaults to -1):
            Stop after so many optimizer steps. -1 trains `EPOCHS` epochs, about a minute on two cores.

    Returns:
        `pathlib.Path`: a folder that `AutoModelForCausalLM.from_pretrained` loads.
    """
    target = cache / (POLICY if max_steps < 0 else f"{POLICY}-{max_steps}-steps")
    if target.exists():
        return target
    print("Warming up the policy, once")
    partial = target.with_name(target.name + ".partial")  # an interrupted run leaves no half-trained policy
    shutil.rmtree(partial, ignore_errors=True)
    _train(base_policy(cache), partial, max_steps)
    return partial.rename(target)


def training_rows() -> list[dict[str, Any]]:
    """Rows of `prompt` and `completion`, in random order."""
    rows = [
        {
            "prompt": messages(row["prompt"]),
            "completion": [
                {"role": "assistant", "content": f"{row['reasoning']} <answer>{row['answer']}</answer>"},
            ],
        }
        for row in read_questions("warm_up")
    ]
    random.Random(SEED).shuffle(rows)
    return rows


def _train(base: Path, target: Path, max_steps: int) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(
        output_dir=str(target),
        learning_rate=LEARNING_RATE,
        num_train_epochs=EPOCHS,
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
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    print(warm_policy())
