# SPDX-License-Identifier: Apache-2.0
"""One run of the demo: sample, train by a recipe, sample again, write everything down."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo.evaluate import GROUP_SIZE, Sample, measure, sample
from demo.plots import draw_curves
from demo.progress import show_progress
from demo.rewards import relevance
from demo.warm_up import read_rows
from trl_diversity import CompletionGroup


RECIPES = Path(__file__).parents[1] / "recipes" / "smollm2-135m"
METHODS = {"Darling": "darling.yaml", "GRPO": "grpo.yaml"}
EVALUATION_SEED = 1234
GROUPS_PER_PROMPT = 3
METRICS_FILE = "metrics.json"


@dataclass
class RunSettings:
    """What differs between the runs of one recipe."""

    method: str
    output: Path
    policy: Path
    seed: int = 0
    prompts: str = "held_out"  # a file of demo/prompts
    groups_per_prompt: int = GROUPS_PER_PROMPT
    prompt_count: int | None = None  # the first so many of them; all by default
    overrides: list[str] = field(default_factory=list)  # further command line options of the recipe's command


class MeasuredReward:
    """The quality reward, which also measures every group that training samples: both methods are measured alike."""

    __name__ = "relevance"

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def __call__(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        groups = [
            CompletionGroup(
                prompts[start][-1]["content"],
                [completion[-1]["content"] for completion in completions[start : start + GROUP_SIZE]],
            )
            for start in range(0, len(completions), GROUP_SIZE)
        ]
        self.samples.append(measure(groups))
        return relevance(prompts, completions, **columns)

    def latest(self) -> str:
        """Quality and clusters of the last step, in words."""
        if not self.samples:
            return ""
        means = self.samples[-1].summary()
        return f"quality {means['quality']:.2f}, clusters {means['clusters']:.1f} of {GROUP_SIZE}"


def run(settings: RunSettings, before: dict[str, float] | None = None) -> dict[str, Any]:
    """
    Train by the recipe of one method and write adapter, model card, metrics, completions and curves.

    Args:
        settings ([`RunSettings`]):
            Method, folders and sizes.
        before (`dict[str, float]`, *optional*):
            Measurements of the untrained policy, if another run has made them already: they are the same for all.

    Returns:
        `dict[str, Any]`: what `metrics.json` holds, among it `before`, `after`, `curve` and `seconds`.
    """
    reward = MeasuredReward()
    trainer = build_trainer(settings, reward)
    settings.output.mkdir(parents=True, exist_ok=True)
    clock = [time.monotonic()]
    if before is None:
        print("Sampling answers before training ...", flush=True)
        untrained = evaluate(trainer, settings)
        write_rows(settings.output / "completions_before.jsonl", untrained.rows())
        before = untrained.summary()
    clock.append(time.monotonic())
    print(f"Training with {settings.method} ...", flush=True)
    trainer.train()
    clock.append(time.monotonic())
    print("Sampling answers after training ...", flush=True)
    trained = evaluate(trainer, settings)
    clock.append(time.monotonic())
    write_rows(settings.output / "completions_after.jsonl", trained.rows())
    metrics = {
        "method": settings.method,
        "seed": settings.seed,
        "prompts": settings.prompts,
        "before": before,
        "after": trained.summary(),
        "curve": [{"step": step, **drawn.summary()} for step, drawn in enumerate(reward.samples, start=1)],
        "seconds": {"training": clock[2] - clock[1], "evaluation": clock[1] - clock[0] + clock[3] - clock[2]},
    }
    save(trainer, settings, reward.samples, metrics)
    return metrics


def save(trainer: Any, settings: RunSettings, samples: list[Sample], metrics: dict[str, Any]) -> None:
    """Write adapter, model card, the completions of training, curves, and last the metrics."""
    trainer.save_model()
    trainer.create_model_card(model_name=f"smollm2-135m-{settings.method.lower()}-demo")
    rows = [{"step": step, **row} for step, drawn in enumerate(samples, start=1) for row in drawn.rows()]
    write_rows(settings.output / "completions_training.jsonl", rows)
    draw_curves({settings.method: metrics}, settings.output / "curves.png")
    # Last: whoever finds this file knows that the run is complete.
    (settings.output / METRICS_FILE).write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")


def build_trainer(settings: RunSettings, reward: MeasuredReward) -> Any:
    """A [`DarlingTrainer`] from the recipe of `settings.method`, read by the parser of `trl-diversity darling`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import get_peft_config

    from trl_diversity import DarlingTrainer
    from trl_diversity.scripts.darling import make_parser
    from trl_diversity.scripts.training_data import load_splits

    script_args, args, model_args = make_parser().parse_args_and_config(
        [
            *("--config", str(RECIPES / METHODS[settings.method])),
            *("--output_dir", str(settings.output)),
            *("--seed", str(settings.seed)),
            *settings.overrides,
        ]
    )
    trainer = DarlingTrainer(
        model=AutoModelForCausalLM.from_pretrained(settings.policy),
        reward_funcs=reward,
        args=args,
        train_dataset=load_splits(script_args, with_eval=False)[0],
        processing_class=AutoTokenizer.from_pretrained(settings.policy),
        peft_config=get_peft_config(model_args),
    )
    show_progress(trainer, reward.latest)
    return trainer


def evaluate(trainer: Any, settings: RunSettings) -> Sample:
    """Sample the trainer's model on the evaluation prompts, at the training temperature and length, and measure."""
    groups = sample(
        trainer.accelerator.unwrap_model(trainer.model),
        trainer.processing_class,
        [row["prompt"] for row in read_rows(settings.prompts)][: settings.prompt_count],
        settings.groups_per_prompt,
        EVALUATION_SEED,
        temperature=trainer.args.temperature,
        max_new_tokens=trainer.args.max_completion_length,
    )
    return measure(groups)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
