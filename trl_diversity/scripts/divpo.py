# SPDX-License-Identifier: Apache-2.0
"""
Train a policy with the baseline DivPO, online in rounds: sample, pair, train with TRL's DPOTrainer.

`trl-diversity divpo --config FILE.yaml [--option VALUE ...]`. A data set of pairs (`chosen`, `rejected`), such as
`trl-diversity build-divpo-pairs` writes, is trained on as it is.
"""

import gc
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from trl_diversity.likelihood.answer_span import END_THINK, THINK
from trl_diversity.scripts.build_divpo_pairs import DivpoSelectionArguments, make_pair
from trl_diversity.scripts.parsing import StrictParser, export_environment
from trl_diversity.scripts.training import TrainingScriptArguments


logger = logging.getLogger(__name__)


@dataclass
class DivpoScriptArguments(TrainingScriptArguments, DivpoSelectionArguments):
    """
    Arguments of `trl-diversity divpo` besides those of [`~trl.DPOConfig`] and [`~trl.ModelConfig`].

    Args:
        rounds (`int`, *optional*, defaults to `10`):
            How often groups are sampled, paired and trained on.
        prompts_per_round (`int`, *optional*, defaults to `32`):
            Prompts that are sampled in a round. All are used before one is used again.
        num_generations (`int`, *optional*, defaults to `8`):
            Completions per prompt.
        sampling_temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of the completions.
        max_completion_length (`int`, *optional*, defaults to `1024`):
            Most tokens of a completion.
        chat_template_kwargs (`dict`, *optional*):
            Further arguments of the chat template, such as `{"enable_thinking": false}`, for sampling, training and a
            reward model's template.
    """

    rounds: int = field(default=10, metadata={"help": "How often groups are sampled, paired and trained on."})
    prompts_per_round: int = field(default=32, metadata={"help": "Prompts that are sampled in a round."})
    num_generations: int = field(default=8, metadata={"help": "Completions per prompt."})
    sampling_temperature: float = field(default=1.0, metadata={"help": "Temperature of the completions."})
    max_completion_length: int = field(default=1024, metadata={"help": "Most tokens of a completion."})
    chat_template_kwargs: dict[str, Any] | None = field(
        default=None, metadata={"help": 'Arguments of the chat template, such as {"enable_thinking": false}.'}
    )

    def __post_init__(self):
        DivpoSelectionArguments.__post_init__(self)
        for name, least in (("rounds", 1), ("prompts_per_round", 1), ("num_generations", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"`{name}` is at least {least}; got {getattr(self, name)}.")


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    from trl import DPOConfig, ModelConfig

    return StrictParser(
        (DivpoScriptArguments, DPOConfig, ModelConfig),
        prog=prog,
        description="Train a policy with DivPO in rounds: sample, pair, train with TRL's DPOTrainer.",
    )


def main(script_args: DivpoScriptArguments, training_args: Any, model_args: Any) -> None:
    """Train a policy as the arguments say, save it and its card."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import get_peft_config

    from trl_diversity.evaluation.generation import as_messages
    from trl_diversity.scripts.training_data import load_splits

    _refuse_options(script_args, training_args, model_args)
    dataset = load_splits(script_args, with_eval=False)[0]
    columns = set(next(iter(dataset)))
    source: Any = {"revision": model_args.model_revision, "trust_remote_code": training_args.trust_remote_code}
    model = AutoModelForCausalLM.from_pretrained(
        model_args.model_name_or_path,
        dtype=model_args.dtype or "float32",
        attn_implementation=model_args.attn_implementation,
        **source,
    )
    if model_args.model_revision not in (None, "main"):  # of the reference, which DPO loads by name
        training_args.model_init_kwargs = {
            "revision": model_args.model_revision,
            **(training_args.model_init_kwargs or {}),
        }
    tokenizer: Any = AutoTokenizer.from_pretrained(model_args.model_name_or_path, **source)
    has_pairs = {"chosen", "rejected"} <= columns
    if not has_pairs and tokenizer.chat_template is not None:
        dataset = dataset.map(lambda row: {"prompt": as_messages(row["prompt"])})  # what is sampled is trained on
    if script_args.max_prompt_tokens is not None:
        from trl_diversity.data.prompt_lengths import drop_long_prompts

        dataset = drop_long_prompts(
            dataset, tokenizer, script_args.max_prompt_tokens, script_args.chat_template_kwargs
        )
    peft_config = get_peft_config(model_args)
    if has_pairs:
        trainer = _train_on(dataset, model, tokenizer, training_args, peft_config)
    else:
        reward_name = _reward_of_rounds(script_args)
        from trl_diversity.scripts.quality import load_quality

        quality = load_quality(
            reward_name,
            script_args.reward_model_device or str(training_args.device),
            script_args.reward_model_dtype or model_args.dtype,
            training_args.trust_remote_code,
            script_args.chat_template_kwargs,
        )
        prompts = [row["prompt"] for row in dataset]
        _require_room(prompts, tokenizer, script_args, training_args)
        trainer = train_rounds(model, tokenizer, prompts, quality, script_args, training_args, peft_config)
    trainer.save_model(training_args.output_dir)
    trainer.create_model_card(model_name=Path(training_args.output_dir).name)
    print(f"Model saved to {training_args.output_dir}.")


def _refuse_options(script_args: DivpoScriptArguments, training_args: Any, model_args: Any) -> None:
    """
    Refuse what is not read here.

    Raises:
        `SystemExit`: naming the option.
    """
    options = {
        "watch_reward_hacking": script_args.watch_reward_hacking,
        "load_in_4bit": model_args.load_in_4bit,
        "load_in_8bit": model_args.load_in_8bit,
        "resume_from_checkpoint": training_args.resume_from_checkpoint,
    }
    for name, value in options.items():
        if value:
            raise SystemExit(f"trl-diversity divpo: `{name}` has no effect here: leave it out.")


def _require_room(
    prompts: Sequence[Any], tokenizer: Any, script_args: DivpoScriptArguments, training_args: Any
) -> None:
    """Make sure that DPO reads whole answers: it cuts what is longer than `max_length`."""
    from trl_diversity.data.prompt_lengths import prompt_token_counts

    counts = prompt_token_counts(prompts, tokenizer, script_args.chat_template_kwargs)
    needed = max(counts) + script_args.max_completion_length + 1  # and its end
    if training_args.max_length is not None and training_args.max_length < needed:
        raise SystemExit(
            f"trl-diversity divpo: `max_length` is {training_args.max_length}, so that DPO would cut answers: the "
            f"longest prompt and `max_completion_length` come to {needed} tokens."
        )


def _reward_of_rounds(script_args: DivpoScriptArguments) -> str:
    """Name of the one quality reward, if rounds can be run here."""
    if script_args.reward_funcs is None or len(script_args.reward_funcs) != 1:
        raise SystemExit("trl-diversity divpo: name one quality reward in `reward_funcs`.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SystemExit(
            "trl-diversity divpo: rounds are sampled by one process. On several, build pairs with `trl-diversity "
            "build-divpo-pairs` and train on them: name their file as `dataset_name`."
        )
    return script_args.reward_funcs[0]


def train_rounds(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    quality: Callable[[Sequence[Any], Sequence[str]], list[float]],
    script_args: DivpoScriptArguments,
    training_args: Any,
    peft_config: Any = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    prepare: Callable[[Any], None] | None = None,
) -> Any:
    """
    Sample groups, pair them and train on the pairs, `rounds` times. The reference is always the policy of the start.

    The optimizer begins anew in every round. What happened is written to `<output_dir>/rounds.jsonl`.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The policy, without adapters.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        prompts (`Sequence`):
            Conversations, or texts for a tokenizer without a chat template: groups are sampled with the template, and
            DPO trains on texts without.
        quality (`Callable`):
            Rewards of prompts and completions.
        script_args ([`DivpoScriptArguments`]):
            Rounds, sampling and selection.
        training_args ([`~trl.DPOConfig`]):
            Of every round; `num_train_epochs` is over the pairs of a round.
        peft_config ([`~peft.PeftConfig`], *optional*):
            To train an adapter.
        on_round (`Callable[[dict], None]`, *optional*):
            Called with what is written of every round.
        prepare (`Callable[[DPOTrainer], None]`, *optional*):
            Called with every round's trainer before it trains, to change its callbacks.

    Returns:
        [`~trl.DPOTrainer`]: the last round's trainer, with the trained policy.

    Raises:
        `ValueError`: if no round gave a pair.
    """
    from datasets import Dataset

    output = Path(training_args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    model.to(training_args.device)  # the first round samples before a trainer moves it
    measure = script_args.measure(trust_remote_code=training_args.trust_remote_code)
    order, adapter, trainer = _prompt_order(prompts, script_args, training_args.seed), None, None
    for number in range(script_args.rounds):
        batch = [prompts[next(order)] for _ in range(script_args.prompts_per_round)]
        pairs, report = _sample_pairs(
            trainer.model if trainer is not None else model,
            tokenizer,
            batch,
            quality,
            measure,
            script_args,
            training_args.seed + number,
        )
        report = _record(output / "rounds.jsonl", number + 1, report)
        if on_round is not None:
            on_round(report)
        if pairs:
            if trainer is not None and peft_config is not None:
                model, adapter = _taken_off(trainer.model)
            trainer = None  # its optimizer and reference are not needed beside those of the next
            gc.collect()
            trainer = _train_on(
                Dataset.from_list(pairs), model, tokenizer, training_args, peft_config, adapter, prepare
            )
            model = trainer.model if peft_config is None else model
    if trainer is None:
        raise ValueError(
            f"no round gave a pair. The last one, as {output / 'rounds.jsonl'} has it of all: {report}. Groups give "
            "none if all completions have the same quality, if no good one came to its end within "
            "`max_completion_length`, or if the chat template rewrites answers, as those of reasoning models do."
        )
    return trainer


def _record(path: Path, number: int, report: dict[str, Any]) -> dict[str, Any]:
    """Write down a round; the first one begins the file."""
    report = {"round": number, **report}
    with open(path, "w" if number == 1 else "a", encoding="utf-8") as file:
        file.write(json.dumps(report) + "\n")
    logger.info("DivPO %s", report)
    return report


def _prompt_order(prompts: Sequence[Any], script_args: DivpoScriptArguments, seed: int) -> Any:
    """Indices of prompts without end: all in random order, then all again in another."""
    draw = random.Random(seed)
    while True:
        yield from draw.sample(range(len(prompts)), len(prompts))


def _sample_pairs(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    quality: Callable[..., list[float]],
    measure: Any,
    script_args: DivpoScriptArguments,
    seed: int,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from trl_diversity.diversity.groups import CompletionGroup, prompt_text
    from trl_diversity.evaluation.generation import TransformersGenerator
    from trl_diversity.evaluation.sampling import Sampling

    sampling = Sampling(
        num_generations=script_args.num_generations,
        temperature=script_args.sampling_temperature,
        max_tokens=script_args.max_completion_length,
        seed=seed,
    )
    template = script_args.chat_template_kwargs
    drawn = TransformersGenerator(model, tokenizer, chat_template_kwargs=template).draw(prompts, sampling)
    texts = [[one.text for one in group] for group in drawn]
    rewards = [quality([prompt] * len(group), group) for prompt, group in zip(prompts, texts, strict=True)]
    groups = [CompletionGroup(prompt_text(prompt), group) for prompt, group in zip(prompts, texts, strict=True)]
    diversities = measure(groups)
    pairs, counts, rewritten = [], Counter[str](), 0
    for prompt, group, group_quality, found in zip(prompts, drawn, rewards, diversities, strict=True):
        kept = [place for place, one in enumerate(group) if keeps_text(tokenizer, prompt, one.text, template)]
        rewritten += len(group) - len(kept)
        pair, reason = make_pair(
            {"prompt": prompt, "completions": [group[place].text for place in kept]},
            [group_quality[place] for place in kept],
            [found.scores[place] for place in kept],
            script_args.selection(),
            [group[place].finished for place in kept],
        )
        counts["pairs" if reason is None else reason if kept else "rewritten by the chat template"] += 1
        if pair is not None:
            pairs.append({name: pair[name] for name in ("prompt", "chosen", "rejected")})
            if template:
                pairs[-1]["chat_template_kwargs"] = template  # which TRL reads from the row
    report: dict[str, Any] = {"groups": len(groups), **counts}
    report["rewritten_completions"] = rewritten
    report["unfinished_completions"] = sum(not one.finished for group in drawn for one in group)
    report["quality"] = fmean(value for group in rewards for value in group)
    report["diversity"] = fmean(score for found in diversities for score in found.scores)
    if all(found.labels is not None for found in diversities):
        report["clusters"] = fmean(len(set(found.labels or [])) for found in diversities)
    return pairs, report


def keeps_text(tokenizer: Any, prompt: Any, text: str, chat_template_kwargs: dict[str, Any] | None = None) -> bool:
    """
    Whether DPO would train on a completion as it was sampled, white space around it aside.

    Chat templates of reasoning models leave out the reasoning of an answer, or add an empty one.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The policy's.
        prompt (`str` or `list[dict]`):
            A text is trained on as it is.
        text (`str`):
            The completion, with the think block that the prompt opens.
        chat_template_kwargs (`dict`, *optional*):
            Further arguments of the template.
    """
    if isinstance(prompt, str):
        return True
    options: dict[str, Any] = {"tokenize": False, **(chat_template_kwargs or {})}
    before = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, **options)
    whole = tokenizer.apply_chat_template([*prompt, {"role": "assistant", "content": text}], **options)
    opened = before[before.rfind(THINK) :] if before.rfind(THINK) > before.rfind(END_THINK) else ""
    sampled = text.removeprefix(opened).strip()
    return whole.startswith(before) and whole[len(before) :].lstrip().startswith(sampled)


def _train_on(
    pairs: Any,
    model: Any,
    tokenizer: Any,
    training_args: Any,
    peft_config: Any,
    adapter: Any = None,
    prepare: Any = None,
) -> Any:
    """A trainer that has trained on pairs, from the adapter of the round before."""
    from trl import DPOTrainer

    from trl_diversity.trainers.clean_saving import CleanSaving

    class CleanDPOTrainer(CleanSaving, DPOTrainer):
        """Saves no token and no local path."""

    trainer = CleanDPOTrainer(
        model=model,
        args=training_args,
        train_dataset=pairs,
        processing_class=tokenizer,
        peft_config=peft_config,
    )
    if adapter is not None:
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(trainer.model, adapter)
    if prepare is not None:
        prepare(trainer)
    trainer.train()
    return trainer


def _taken_off(model: Any) -> tuple[Any, Any]:
    """The policy of the start, and the adapter that was on it."""
    from peft import get_peft_model_state_dict

    adapter = {name: value.detach().clone() for name, value in get_peft_model_state_dict(model).items()}
    return model.unload(), adapter


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and train."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.divpo")
