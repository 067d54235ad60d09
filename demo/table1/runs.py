# SPDX-License-Identifier: Apache-2.0
"""One run of the table: train an arm with a seed, sample the held-out prompts, write everything down."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from demo.evaluate import sample
from demo.experiment import RECIPES, MeasuredReward, RunSettings, write_rows
from demo.progress import show_progress
from demo.rewards import relevance
from demo.table1.arms import EVALUATION_SEED, GROUP_SIZE, GROUPS_PER_PROMPT, Arm
from demo.table1.measure import measure, per_prompt
from demo.warm_up import PROMPTS


RESULT_FILE = "result.json"
HELD_OUT = Path(__file__).parent / "prompts.jsonl"
MAX_NEW_TOKENS, TEMPERATURE = 12, 0.8  # of the recipes


@dataclass(frozen=True)
class Plan:
    """What all runs have in common."""

    output: Path
    policy: Path
    prompts: Path = HELD_OUT
    prompt_count: int | None = None  # the first so many; all by default
    groups_per_prompt: int = GROUPS_PER_PROMPT
    held_out_model: str | None = None  # equivalence model of the second partition; shared words by default
    overrides: dict[str, list[str]] = field(default_factory=dict)  # further options by recipe

    def fingerprint(self, arm: Arm) -> str:
        """Changes whenever a result would: recipe, options, prompts, sizes, policy."""
        digest = hashlib.sha256()
        sizes = [self.prompt_count, self.groups_per_prompt, self.held_out_model, GROUP_SIZE, EVALUATION_SEED]
        digest.update(json.dumps([asdict(arm), sizes, self.overrides.get(arm.recipe or "")]).encode())
        files = [self.prompts, PROMPTS / "train.jsonl", self.policy / "model.safetensors"]
        for path in files + ([RECIPES / arm.recipe] if arm.recipe else []):
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()[:16]

    def read_prompts(self) -> list[str]:
        """The prompts of the evaluation."""
        rows = [json.loads(line) for line in self.prompts.read_text(encoding="utf-8").splitlines()]
        return [row["prompt"] for row in rows][: self.prompt_count]


def complete_run(arm: Arm, seed: int, plan: Plan) -> dict[str, Any]:
    """
    The result of one run: read if it is complete, else made.

    Raises:
        `ValueError`: if a result was made with another recipe, policy or other prompts.
    """
    folder = plan.output / f"{arm.folder}-seed{seed}"
    fingerprint = plan.fingerprint(arm)
    if (folder / RESULT_FILE).exists():
        result = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
        if result["fingerprint"] != fingerprint:
            raise ValueError(
                f"{folder} holds a run of another recipe or policy, or of other prompts. Choose another --output, or "
                "remove it."
            )
        return result
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    model, tokenizer = _train(arm, seed, plan, folder)
    trained = time.monotonic()
    groups = sample(
        model,
        tokenizer,
        plan.read_prompts(),
        plan.groups_per_prompt,
        EVALUATION_SEED + seed,
        group_size=GROUP_SIZE,
        temperature=TEMPERATURE,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    rows = measure(groups, _held_out_model(plan))
    write_rows(folder / "groups.jsonl", rows)
    result = {
        "arm": arm.name,
        "folder": arm.folder,
        "seed": seed,
        "fingerprint": fingerprint,
        "seconds": {"training": trained - started, "evaluation": time.monotonic() - trained},
        "per_prompt": per_prompt(rows),
    }
    # Last: whoever finds this file knows that the run is complete.
    (folder / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _held_out_model(plan: Plan) -> Any:
    if plan.held_out_model is None:
        return None
    from trl_diversity import load_equivalence_model

    return load_equivalence_model(plan.held_out_model, device="cpu")


def _train(arm: Arm, seed: int, plan: Plan, folder: Path) -> tuple[Any, Any]:
    """The trained policy and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if arm.recipe is None:
        return AutoModelForCausalLM.from_pretrained(plan.policy), AutoTokenizer.from_pretrained(plan.policy)
    options = [*arm.options, *plan.overrides.get(arm.recipe, [])]
    if arm.recipe == "divpo.yaml":
        return _train_divpo(seed, plan, folder, options)
    from demo.experiment import build_trainer

    # The method's name only finds the recipe; what differs from it comes as options.
    method = {"grpo.yaml": "GRPO", "darling.yaml": "Darling"}[arm.recipe]
    reward = MeasuredReward()
    trainer = build_trainer(RunSettings(method, folder, plan.policy, seed=seed, overrides=options), reward)
    trainer.train()
    trainer.save_model()
    curve = [{"step": step, **drawn.summary()} for step, drawn in enumerate(reward.samples, start=1)]
    write_rows(folder / "curve.jsonl", curve)
    return trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class


def _train_divpo(seed: int, plan: Plan, folder: Path, options: list[str]) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import get_peft_config

    from trl_diversity.scripts import divpo
    from trl_diversity.scripts.training_data import load_splits

    arguments = ["--config", str(RECIPES / "divpo.yaml"), "--output_dir", str(folder), "--seed", str(seed), *options]
    script_args, args, model_args = divpo.make_parser().parse_args_and_config(arguments)
    tokenizer = AutoTokenizer.from_pretrained(plan.policy)
    trainer = divpo.train_rounds(
        AutoModelForCausalLM.from_pretrained(plan.policy),
        tokenizer,
        [row["prompt"] for row in load_splits(script_args, with_eval=False)[0]],
        lambda prompts, completions: relevance(list(prompts), list(completions)),
        script_args,
        args,
        get_peft_config(model_args),
        on_round=lambda report: print(f"  DivPO {report}", flush=True),
        prepare=show_progress,
    )
    trainer.save_model()
    return trainer.accelerator.unwrap_model(trainer.model), tokenizer
