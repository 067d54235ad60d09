# SPDX-License-Identifier: Apache-2.0
"""One run of the demo: measure, train by a recipe, measure again, write everything down."""

import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo.darl.evaluate import evaluate, summary
from demo.darl.plots import CURVES, draw_curves
from demo.darl.questions import QUESTIONS, read_questions
from demo.experiment import RECIPES, write_rows
from demo.progress import show_progress


THRESHOLDS = {"DAD": "darl-dad.yaml", "SAD": "darl-sad.yaml"}
EVALUATION_SEED = 4321
SAMPLES_PER_QUESTION = 8
METRICS_FILE = "metrics.json"


@dataclass
class RunSettings:
    """What differs between the runs."""

    threshold: str  # "DAD", dynamic, or "SAD", static
    output: Path
    policy: Path
    seed: int = 0
    questions: str = "held_out"  # a file of demo/darl/questions
    samples_per_question: int = SAMPLES_PER_QUESTION
    question_count: int | None = None  # the first so many of them; all by default
    overrides: list[str] = field(default_factory=list)  # further command line options of the recipe's command


def run(settings: RunSettings, before: dict[str, float] | None = None) -> dict[str, Any]:
    """
    Train by one recipe and write adapter, model card, metrics, completions and curves.

    Args:
        settings ([`RunSettings`]):
            Recipe, folders and sizes.
        before (`dict[str, float]`, *optional*):
            Measurements of the untrained policy, if another run has made them already: they are the same for all.

    Returns:
        `dict[str, Any]`: what `metrics.json` holds, among it `before`, `after`, `curve` and `seconds`.
    """
    trainer = build_trainer(settings)
    settings.output.mkdir(parents=True, exist_ok=True)
    clock = [time.monotonic()]
    if before is None:
        before = measure(trainer, settings, "before")
    clock.append(time.monotonic())
    trainer.train()
    clock.append(time.monotonic())
    after = measure(trainer, settings, "after")
    clock.append(time.monotonic())
    metrics: dict[str, Any] = {
        "threshold": settings.threshold,
        "seed": settings.seed,
        "questions": settings.questions,
        "fingerprint": fingerprint(settings.threshold),
        "before": before,
        "after": after,
        "curve": training_curve(trainer.state.log_history),
        "seconds": {"training": clock[2] - clock[1], "evaluation": clock[1] - clock[0] + clock[3] - clock[2]},
    }
    trainer.save_model()
    trainer.create_model_card(model_name=f"smollm2-135m-darl-{settings.threshold.lower()}-demo")
    draw_curves({settings.threshold: metrics["curve"]}, settings.output / "curves.png")
    # Written last: whoever finds it knows that the run is complete.
    (settings.output / METRICS_FILE).write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    return metrics


def build_trainer(settings: RunSettings) -> Any:
    """A [`DarlTrainer`] from the recipe of `settings.threshold`, read by the parser of `trl-diversity darl`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import get_peft_config

    from trl_diversity import DarlTrainer
    from trl_diversity.scripts.darl import make_parser
    from trl_diversity.scripts.training_data import load_splits

    script_args, args, model_args = make_parser().parse_args_and_config(
        [
            *("--config", str(RECIPES / THRESHOLDS[settings.threshold])),
            *("--output_dir", str(settings.output)),
            *("--seed", str(settings.seed)),
            *settings.overrides,
        ]
    )
    trainer = DarlTrainer(
        model=AutoModelForCausalLM.from_pretrained(settings.policy),
        args=args,
        train_dataset=load_splits(script_args, with_eval=False)[0],
        processing_class=AutoTokenizer.from_pretrained(settings.policy),
        peft_config=get_peft_config(model_args),
    )
    show_progress(trainer, lambda: latest_likelihood(trainer.state.log_history))
    return trainer


def latest_likelihood(log_history: list[dict[str, float]]) -> str:
    """The last step's likelihood of the references, for the progress bar."""
    if not log_history or "darl/malformed_fraction" not in log_history[-1]:
        return ""
    latest = log_history[-1]
    return f"r(y*) {latest.get('darl/reference_prob', 0.0):.2f}, malformed {latest['darl/malformed_fraction']:.0%}"


def measure(trainer: Any, settings: RunSettings, when: str) -> dict[str, float]:
    """Sample the trainer's model as in training, measure, write the completions, and return the means."""
    rows = evaluate(
        trainer.accelerator.unwrap_model(trainer.model),
        trainer.processing_class,
        read_questions(settings.questions)[: settings.question_count],
        settings.samples_per_question,
        EVALUATION_SEED,
        temperature=trainer.args.temperature,
        max_new_tokens=trainer.args.max_completion_length,
    )
    write_rows(settings.output / f"completions_{when}.jsonl", rows)
    return summary(rows)


def training_curve(log_history: list[dict[str, float]]) -> list[dict[str, float]]:
    """What the trainer logged at every step; a step whose completions are all malformed has no likelihoods."""
    return [
        {"step": log["step"], **{key: log[logged] for key, (logged, _) in CURVES.items() if logged in log}}
        for log in log_history
        if "darl/malformed_fraction" in log
    ]


def fingerprint(threshold: str) -> str:
    """SHA-256 of what a run depends on besides its seed and the code: its recipe, the questions and the warm-up."""
    digest = hashlib.sha256()
    files = [
        RECIPES / THRESHOLDS[threshold],
        *sorted(QUESTIONS.glob("*.jsonl")),
        Path(__file__).with_name("warm_up.py"),
    ]
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
