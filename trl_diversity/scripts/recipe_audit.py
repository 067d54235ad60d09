# SPDX-License-Identifier: Apache-2.0
"""What a recipe would do that the papers' runs did not, and what of it cannot work."""

from dataclasses import dataclass
from typing import Any, Literal

from trl_diversity.scripts.recipe_geometry import BatchGeometry
from trl_diversity.scripts.recipe_parsing import Recipe


# Part of the papers' runs and different from TRL's defaults (verl's, on which their released code runs).
PAPER_SETTINGS: dict[str, Any] = {
    "lr_scheduler_type": "constant",
    "weight_decay": 0.01,
    "delta": 3.0,
    "use_bias_correction_kl": False,
    "vllm_importance_sampling_correction": False,
}
_WHY = {
    "lr_scheduler_type": "TRL's default decays to 0 over the run",
    "weight_decay": "TRL's default is 0",
    "delta": "the dual clip of verl; without it a negative advantage with a large ratio has no bound",
    "use_bias_correction_kl": "TRL's default multiplies the KL term by the ratio and changes its gradient",
    "vllm_importance_sampling_correction": "TRL's default drops whole sequences that vLLM and the trainer disagree on",
}


@dataclass(frozen=True)
class Finding:
    """
    One result of an audit.

    Attributes:
        level (`str`):
            `"ok"`, `"warning"` (runs, and is not what the papers did or not what you may think) or `"error"` (cannot
            work).
        subject (`str`):
            The key or thing it is about.
        message (`str`):
            What was found, and what to change.
    """

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str


def audit(recipe: Recipe, geometry: BatchGeometry) -> list[Finding]:
    """
    Compare a recipe with the papers' runs, and its header's servers with its keys.

    Args:
        recipe ([`Recipe`]):
            As [`parse_recipe`] returns it.
        geometry ([`BatchGeometry`]):
            Its sizes.

    Returns:
        `list[Finding]`: every setting that is audited, in a fixed order, the good ones included.
    """
    return [
        *(_paper_setting(recipe.training_args, name) for name in PAPER_SETTINGS),
        _memory_share(recipe),
        *_lengths(recipe, geometry),
        *_steps(recipe, geometry),
        *_servers(recipe),
        *_quality(recipe),
    ]


def _paper_setting(args: Any, name: str) -> Finding:
    value, paper = getattr(args, name), PAPER_SETTINGS[name]
    value = getattr(value, "value", value)
    if value == paper:
        return Finding("ok", name, f"{value}, as in the paper's runs")
    return Finding("warning", name, f"{value}; the paper's runs had {paper} ({_WHY[name]})")


def _memory_share(recipe: Recipe) -> Finding:
    args, subject = recipe.training_args, "gpu memory share"
    if not args.use_vllm:
        return Finding("ok", subject, "transformers generates, nothing is reserved")
    if args.vllm_mode == "colocate":
        value = args.vllm_gpu_memory_utilization
        if "vllm_gpu_memory_utilization" in recipe.written:
            return Finding("ok", subject, f"{value} by `vllm_gpu_memory_utilization`, on the training GPUs (colocate)")
        return Finding("warning", subject, f"{value}, TRL's default: set `vllm_gpu_memory_utilization` (colocate)")
    if "vllm_gpu_memory_utilization" in recipe.written:
        return Finding(
            "error",
            subject,
            "`vllm_gpu_memory_utilization` has no effect with `vllm_mode: server`: give --gpu_memory_utilization to "
            "`trl vllm-serve`, and remove the key",
        )
    shares = [command.option("gpu_memory_utilization") for command in recipe.serving("policy")]
    if not shares or None in shares:
        return Finding(
            "warning", subject, "not set: add --gpu_memory_utilization to the header's `trl vllm-serve` command"
        )
    return Finding("ok", subject, f"{', '.join(map(str, shares))} on the command line of the policy server")


def _lengths(recipe: Recipe, geometry: BatchGeometry) -> list[Finding]:
    findings = []
    subject, args = "sequence length", recipe.training_args
    if geometry.max_prompt_tokens is None:
        findings.append(Finding("warning", subject, "no `max_prompt_tokens`: prompts of any length are trained on"))
    longest = geometry.max_sequence_tokens or int(args.max_completion_length) + 1
    limits = [(command.option("max_model_len"), "--max_model_len of the header's policy server")
              for command in recipe.serving("policy") if args.use_vllm and args.vllm_mode == "server"]  # fmt: skip
    if args.use_vllm and args.vllm_mode == "colocate":
        limits.append((args.vllm_max_model_length, "`vllm_max_model_length`"))
    for limit, name in limits:
        if limit is not None and longest > int(limit):
            findings.append(
                Finding(
                    "error",
                    subject,
                    f"prompt and completion may have {longest} tokens, {name} is {limit}: raise it, or lower "
                    "`max_prompt_tokens` or `max_completion_length`",
                )
            )
        elif limit is not None:
            findings.append(Finding("ok", subject, f"at most {longest} tokens, {name} is {limit}"))
    return findings


def _steps(recipe: Recipe, geometry: BatchGeometry) -> list[Finding]:
    findings = []
    prompts, steps = geometry.prompts_per_optimizer_step, geometry.optimizer_steps_per_generation
    if not isinstance(prompts, int):
        findings.append(Finding("warning", "optimizer step", f"it cuts groups: {prompts} prompts in a step"))
    if not isinstance(steps, int):
        findings.append(Finding("warning", "optimizer step", f"{steps} steps a generation batch is no whole number"))
    if steps > 1:
        findings.append(Finding("ok", "on-policy", f"{steps} steps a generation: the later ones are off-policy"))
    return findings


def _servers(recipe: Recipe) -> list[Finding]:
    findings = []
    args, model = recipe.training_args, recipe.model_args.model_name_or_path
    if args.use_vllm and args.vllm_mode == "server":
        policy = recipe.serving("policy")
        if not policy:
            findings.append(Finding("warning", "policy server", "the header has no `trl vllm-serve` command"))
        for command in policy:
            if (served := command.option("model")) != model:
                message = f"the header's server has {served!r}, `model_name_or_path` is {model!r}"
                findings.append(Finding("error", "policy server", message))
    if getattr(args, "partition_server_urls", None):
        classifiers = recipe.serving("classifier")
        if not classifiers:
            findings.append(Finding("warning", "classifier", "the header has no `trl-diversity serve-classifier`"))
        for command in classifiers:
            if args.partition_model and command.words[2:3] != (args.partition_model,):
                message = f"the header serves {command.words[2]!r}, `partition_model` is {args.partition_model!r}"
                findings.append(Finding("error", "classifier", message))
    return findings


def _quality(recipe: Recipe) -> list[Finding]:
    args, rewards = recipe.training_args, recipe.script_args.reward_funcs or []
    models = [name for name in rewards if "/" in name]
    multiplies = getattr(args, "combine", None) == "multiply" and args.diversity_measure != "none"
    if multiplies and models and args.quality_shift == "none":
        kept = "accepted by `allow_negative_quality`" if args.allow_negative_quality else "refused at the first step"
        message = f"reward models score mostly below 0, which pays duplicates; {kept}. `auto` lifts such groups"
        return [Finding("warning", "quality_shift", message)]
    return []
