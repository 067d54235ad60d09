# SPDX-License-Identifier: Apache-2.0
"""What the training commands share: their arguments, and the way from a trainer to a saved and published model."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trl.scripts.utils import ScriptArguments


logger = logging.getLogger(__name__)


@dataclass
class TrainingScriptArguments(ScriptArguments):
    r"""
    Arguments of a training command, besides those of its trainer and of the model.

    Args:
        dataset_name (`str`):
            Name of a data set on the Hub, a `.jsonl`, `.json` or `.parquet` file, a pattern of such files
            (`data/train-*.parquet`), or a directory.
        dataset_config (`str`, *optional*):
            Configuration of a data set on the Hub.
        dataset_train_split (`str`, *optional*, defaults to `"train"`):
            Split to train on, or a part of it (`train[:1000]`).
        dataset_test_split (`str`, *optional*, defaults to `"test"`):
            Split to evaluate on, read only if `eval_strategy` asks for evaluation.
        dataset_streaming (`bool`, *optional*, defaults to `False`):
            Read rows while training instead of before. Needs `max_steps`.
        eval_dataset_name (`str`, *optional*):
            Where the test split is, if not in `dataset_name`.
        prompt_column (`str`, *optional*, defaults to `"prompt"`):
            Column that holds the prompts, which are texts or lists of messages.
        system_prompt (`str`, *optional*):
            System message put before every prompt that has none. Plain prompts become user messages.
        max_prompt_tokens (`int`, *optional*):
            Prompts with more tokens, the chat template's included, are left out of the data, never cut.
        reward_model_dtype (`str`, *optional*):
            Data type of reward models: `"float32"`, `"bfloat16"`, `"float16"` or `"auto"` (the checkpoint's). That of
            the policy (`dtype`) by default.
        reward_model_device (`str`, *optional*):
            Where each process puts its reward models, such as `"cpu"` or `"cuda:7"`, unmoved and unsharded by the
            trainer. By default the trainer's own device.
        reward_funcs (`list[str]`, *optional*):
            Quality rewards: names of TRL's functions (`accuracy_reward`, `reasoning_accuracy_reward`,
            `think_format_reward`, `get_soft_overlong_punishment`), dotted paths, and names or paths of reward models.
            `reward_weights` has their weights.
        watch_reward_hacking (`bool`, *optional*, defaults to `False`):
            Log the `watch/*` metrics of [`RewardHackingWatch`] each generation.
        ignore_bias_buffers (`bool`, *optional*, defaults to `False`):
            Keep boolean buffers out of what DDP synchronises.
    """

    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": "Data set on the Hub, a .jsonl, .json or .parquet file, a pattern of such files, or a directory."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    dataset_train_split: str = field(
        default="train", metadata={"help": "Split to train on, or a part of it: `train[:1000]`."}
    )
    dataset_test_split: str = field(
        default="test", metadata={"help": "Split to evaluate on, if `eval_strategy` asks for evaluation."}
    )
    dataset_streaming: bool = field(
        default=False, metadata={"help": "Read rows while training instead of before. Needs `max_steps`."}
    )
    eval_dataset_name: str | None = field(
        default=None, metadata={"help": "Where the test split is, if not in `dataset_name`."}
    )
    prompt_column: str = field(
        default="prompt", metadata={"help": "Column that holds the prompts, which are texts or lists of messages."}
    )
    system_prompt: str | None = field(
        default=None,
        metadata={"help": "System message put before every prompt that has none. Plain prompts become user messages."},
    )
    max_prompt_tokens: int | None = field(
        default=None,
        metadata={"help": "Prompts with more tokens, the chat template's included, are left out of the data."},
    )
    reward_model_dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = field(
        default=None, metadata={"help": "Data type of reward models. Default: that of the policy, `dtype`."}
    )
    reward_model_device: str | None = field(
        default=None,
        metadata={
            "help": "Where each process puts its reward models: `cpu`, `cuda:7`. Default: the trainer's device."
        },
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Quality rewards: `accuracy_reward`, `reasoning_accuracy_reward`, `think_format_reward`, "
            "`get_soft_overlong_punishment`, dotted paths, and names or paths of reward models. Weights: "
            "`reward_weights`."
        },
    )
    watch_reward_hacking: bool = field(
        default=False, metadata={"help": "Log `watch/*`: lengths, text after the answer, languages, each generation."}
    )


def run_training(
    trainer_class: type,
    script_args: TrainingScriptArguments,
    training_args: Any,
    model_args: Any,
    needs_rewards: bool = True,
) -> None:
    """
    Build a trainer from what a command was given, train, save and push.

    Args:
        trainer_class (`type`):
            A subclass of [`~trl.GRPOTrainer`].
        script_args ([`TrainingScriptArguments`]):
            Data and rewards.
        training_args ([`~trl.GRPOConfig`]):
            Arguments of the trainer.
        model_args ([`~trl.ModelConfig`]):
            The policy.
        needs_rewards (`bool`, *optional*, defaults to `True`):
            Whether a run without reward functions is refused here.
    """
    trainer = build_trainer(trainer_class, script_args, training_args, model_args, needs_rewards)
    train_and_save(trainer, script_args, training_args)


def build_trainer(
    trainer_class: type,
    script_args: TrainingScriptArguments,
    training_args: Any,
    model_args: Any,
    needs_rewards: bool = True,
) -> Any:
    """
    Build a trainer from what a command was given; the arguments are those of [`run_training`].

    Returns:
        `trainer_class`: with data, rewards and policy loaded.
    """
    from trl import get_peft_config, get_quantization_config

    from trl_diversity.scripts.reward_functions import resolve_reward_functions
    from trl_diversity.scripts.training_data import load_splits

    set_up(script_args, training_args, model_args)
    find_checkpoint(training_args)  # one that is missing is said before anything is loaded
    with training_args.main_process_first(desc="loading the data"):
        train_dataset, eval_dataset = load_splits(script_args, with_eval=training_args.eval_strategy != "no")
        train_dataset, eval_dataset = fit_prompts(
            (train_dataset, eval_dataset), script_args, training_args, model_args
        )
    reward_funcs = None
    if needs_rewards or script_args.reward_funcs:
        reward_funcs = resolve_reward_functions(
            script_args.reward_funcs,
            training_args.reward_weights,
            max_completion_length=training_args.max_completion_length,
            dtype=script_args.reward_model_dtype or model_args.dtype,
            device=script_args.reward_model_device,
            chat_template_kwargs=training_args.chat_template_kwargs,
            trust_remote_code=training_args.trust_remote_code,
        )
    with hub_contacted_later(training_args):
        trainer = trainer_class(
            model=model_args.model_name_or_path,
            reward_funcs=reward_funcs,
            args=training_args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            quantization_config=get_quantization_config(model_args),
            peft_config=get_peft_config(model_args),
        )
    if script_args.watch_reward_hacking:
        from trl_diversity.trainers.hacking_watch import RewardHackingWatch

        trainer.add_callback(RewardHackingWatch(trainer))
    return trainer


def fit_prompts(
    datasets: Sequence[Any], script_args: TrainingScriptArguments, training_args: Any, model_args: Any
) -> list[Any]:
    """
    Leave out prompts above `max_prompt_tokens`, and refuse those that vLLM in this process could not take.

    Args:
        datasets (`Sequence`):
            Data sets with a column `prompt`, or `None`.

    Raises:
        `ValueError`: naming the row that is too long.
    """
    limit = None
    if training_args.use_vllm and training_args.vllm_mode == "colocate" and training_args.vllm_max_model_length:
        limit = training_args.vllm_max_model_length - training_args.max_completion_length
    if script_args.max_prompt_tokens is None and limit is None:
        return list(datasets)
    from transformers import AutoTokenizer

    from trl_diversity.data.prompt_lengths import drop_long_prompts, refuse_long_prompts

    tokenizer = AutoTokenizer.from_pretrained(
        model_args.model_name_or_path,
        revision=model_args.model_revision,
        trust_remote_code=training_args.trust_remote_code,
    )
    template_kwargs = training_args.chat_template_kwargs
    why = (
        f"`vllm_max_model_length={training_args.vllm_max_model_length}` and "
        f"`max_completion_length={training_args.max_completion_length}`"
    )
    fitted = []
    for dataset in datasets:
        if dataset is not None and script_args.max_prompt_tokens is not None:
            dataset = drop_long_prompts(dataset, tokenizer, script_args.max_prompt_tokens, template_kwargs)
        if dataset is not None and limit is not None:
            dataset = refuse_long_prompts(dataset, tokenizer, limit, why, template_kwargs)
        fitted.append(dataset)
    return fitted


def set_up(script_args: TrainingScriptArguments, training_args: Any, model_args: Any) -> None:
    """
    Check what can be checked before anything is loaded, and complete `training_args` with what `model_args` hold.

    Raises:
        `ValueError`: if there is no model, or one process would train on several GPUs.
    """
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("trl_diversity").setLevel(logging.INFO if training_args.process_index == 0 else logging.WARNING)
    logger.info(
        "%d process(es), %s, this one on %s.",
        training_args.world_size,
        training_args.distributed_state.distributed_type,
        training_args.device,
    )
    if not model_args.model_name_or_path:
        raise ValueError("`model_name_or_path` is missing: give the name or path of the model to train.")
    if training_args.n_gpu > 1:
        raise ValueError(
            f"one process sees {training_args.n_gpu} GPUs. Start one process for each with `accelerate launch -m`, or "
            "show it one with CUDA_VISIBLE_DEVICES."
        )
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        "trust_remote_code": training_args.trust_remote_code,
        **(training_args.model_init_kwargs or {}),
    }


def find_checkpoint(training_args: Any) -> str | None:
    """
    The checkpoint that a run is resumed from.

    Returns:
        `str` or `None`: a directory, which for `resume_from_checkpoint: true` is the last one in `output_dir`.

    Raises:
        `FileNotFoundError`: if it is not there.
    """
    from transformers.trainer_utils import get_last_checkpoint

    value = str(training_args.resume_from_checkpoint or "false")
    if value.lower() in ("false", "no", "none"):
        return None
    if value.lower() in ("true", "yes"):
        found = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
        if found is None:
            raise FileNotFoundError(
                f"`resume_from_checkpoint: true`, but {training_args.output_dir!r} holds no checkpoint. Leave it out "
                "to start anew, or name the directory of a checkpoint."
            )
        return found
    if not os.path.isfile(os.path.join(value, "trainer_state.json")):
        raise FileNotFoundError(f"`resume_from_checkpoint: {value}` is no checkpoint: it has no trainer_state.json.")
    return value


@contextmanager
def hub_contacted_later(training_args: Any) -> Iterator[None]:
    """A trainer built in this context does not contact the Hub, which would fail the run if that cannot be reached."""
    push_to_hub = training_args.push_to_hub
    training_args.push_to_hub = False
    try:
        yield
    finally:
        training_args.push_to_hub = push_to_hub


def train_and_save(trainer: Any, script_args: TrainingScriptArguments, training_args: Any) -> None:
    """
    Train, save the model and its card, push them if asked, and end what runs beside the trainer.

    Whatever the Hub does, the model is trained and saved; an error of the Hub is reported after that.

    Raises:
        `SystemExit`: with status 1, if the model could not be pushed.
    """
    push_to_hub = training_args.push_to_hub
    pushes_checkpoints = push_to_hub and training_args.hub_strategy != "end"
    training_args.push_to_hub = pushes_checkpoints and _hub_repository_is_ready(trainer)
    if script_args.ignore_bias_buffers:
        _ignore_boolean_buffers(trainer.model)
    trainer.train(resume_from_checkpoint=find_checkpoint(training_args))

    training_args.push_to_hub = False  # saving would push at once
    trainer.save_model(training_args.output_dir)
    dataset_name = _dataset_for_card(script_args)
    trainer.create_model_card(model_name=_model_name(training_args), dataset_name=dataset_name)
    trainer.accelerator.print(f"Model saved to {training_args.output_dir}.")

    training_args.push_to_hub = push_to_hub
    error = _push(trainer, dataset_name) if push_to_hub else None
    trainer.accelerator.wait_for_everyone()
    if hasattr(trainer, "end"):  # transformers 5.18
        trainer.end()
    if error is not None:
        raise SystemExit(
            f"The model was not pushed to the Hub: {type(error).__name__}: {error}\n"
            f"It is complete in {training_args.output_dir}, from where it can be pushed with `hf upload`."
        )


def _ignore_boolean_buffers(model: Any) -> None:
    """DDP cannot broadcast boolean buffers (huggingface/transformers#22482): name those it leaves alone."""
    import torch

    model._ddp_params_and_buffers_to_ignore = [
        name for name, buffer in model.named_buffers() if buffer.dtype == torch.bool
    ]


def _hub_repository_is_ready(trainer: Any) -> bool:
    """Create the repository that checkpoints are pushed to. Without it, training goes on."""
    try:
        trainer.init_hf_repo()
    except Exception as error:  # whatever it is, it costs no training; pushing in the end reports it again
        logger.error("The Hub cannot be used now (%s). It is tried again when the model is saved.", error)
        return False
    return True


def _push(trainer: Any, dataset_name: str | None) -> Exception | None:
    try:
        trainer.push_to_hub(dataset_name=dataset_name)
    except Exception as error:  # the model is on disk: report it once everything else is done
        return error
    trainer.accelerator.print(f"Model pushed to https://huggingface.co/{trainer.hub_model_id}.")
    return None


def _dataset_for_card(script_args: TrainingScriptArguments) -> str | None:
    from trl_diversity.scripts.training_data import is_local

    return None if is_local(str(script_args.dataset_name)) else script_args.dataset_name


def _model_name(training_args: Any) -> str:
    return (training_args.hub_model_id or Path(training_args.output_dir).absolute().name).split("/")[-1]
