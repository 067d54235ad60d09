# SPDX-License-Identifier: Apache-2.0
"""What a trainer saves holds no token, no password and no path of the machine it ran on."""

import copy
import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import torch
from huggingface_hub import ModelCard
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from trl import GRPOConfig

from trl_diversity.trainers.config_checks import check_save_steps, generation_period


logger = logging.getLogger(__name__)

_SECRET_NAME = re.compile(r"token$|password|secret|api_key", re.IGNORECASE)


def is_local_path(value: str) -> bool:
    """Whether a string names a place on this machine: an absolute path, or a file or folder that exists."""
    return os.path.isabs(value) or os.path.exists(value)


def scrubbed(value: Any) -> Any:
    """A value without local paths (their last part is kept) and without user names or passwords in addresses."""
    if isinstance(value, dict):
        return {key: None if _is_secret(key, item) else scrubbed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(scrubbed(item) for item in value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        return value
    if "://" in value:
        parts = urlsplit(value)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return Path(value).name if is_local_path(value) else value


def scrubbed_arguments(args: TrainingArguments) -> TrainingArguments:
    """A copy of training arguments without tokens and local paths; the original stays as it is."""
    clean = copy.copy(args)
    for name, value in vars(args).items():
        if isinstance(value, (str, dict, list, tuple, os.PathLike)):
            # Set past `TrainingArguments.__setattr__`, which may refuse changes after construction
            clean.__dict__[name] = None if _is_secret(name, value) else scrubbed(value)
    return clean


class CleanWhenPickled:
    """Stands for training arguments where they are read, and for their scrubbed copy where they are saved."""

    def __init__(self, args: TrainingArguments):
        self._args = args

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name)

    def __reduce__(self) -> tuple:
        return copy.copy, (scrubbed_arguments(self._args),)


def scrub_saved_model(directory: str | os.PathLike, args: TrainingArguments, adapters: Iterable[str] = ()) -> None:
    """
    Rewrite what `Trainer._save` wrote: arguments without secrets, adapter and card without the base model's path.

    Args:
        directory (`str`):
            Folder of the saved model.
        args ([`~transformers.TrainingArguments`]):
            Arguments of the run.
        adapters (`Iterable[str]`, *optional*):
            Names of the model's adapters. Each may have a folder of its own; other folders are not touched.
    """
    folder = Path(directory)
    torch.save(scrubbed_arguments(args), folder / TRAINING_ARGS_NAME)
    for config_path in (parent / "adapter_config.json" for parent in (folder, *map(folder.joinpath, adapters))):
        if not config_path.exists():
            continue
        config = json.loads(config_path.read_text())
        base = config.get("base_model_name_or_path")
        if base and is_local_path(base):
            # Null rather than the folder's name, which would read like the name of a model on the Hub
            config["base_model_name_or_path"] = None
            config_path.write_text(json.dumps(config, indent=2, sort_keys=True))
            _remove_path_from_card(config_path.with_name("README.md"), base)


def scrub_trainer_state(directory: str | os.PathLike) -> None:
    """Remove the best checkpoint's path from a saved trainer state; its step stays, by which it is found again."""
    path = Path(directory) / TRAINER_STATE_NAME
    if not path.exists():
        return
    state = json.loads(path.read_text())
    if state.get("best_model_checkpoint"):
        # Null rather than the folder's name, which a resumed run would look for in the working directory
        state["best_model_checkpoint"] = None
        path.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")


def tidy_model_card(path: str | os.PathLike, model_name: str, base: str) -> None:
    """Say "a local checkpoint" where TRL's card would link to a model named None, or by a path that is gone by now."""
    card = Path(path)
    text = card.read_text()
    for name in ("None", base) if is_local_path(base) else ("None",):
        text = text.replace(f"[{name}](https://huggingface.co/{name})", "a local checkpoint")
    text = text.replace('model="None"', f'model="{model_name}"')
    card.write_text(text)
    if is_local_path(base):
        _remove_path_from_card(card, base)


class CheckpointCallback(TrainerCallback):
    """
    Refuses checkpoints that cut a generation. On resume, it tells of one all the same, such as the last of a run that
    ended within a generation, and finds the best checkpoint, which was saved without its path.
    """

    def on_train_begin(  # type: ignore[override]
        self, args: GRPOConfig, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        check_save_steps(args, state.save_steps)  # a share of the run was turned into steps by now
        period = generation_period(args)
        if state.global_step % period and state.is_world_process_zero:
            logger.warning(
                f"The checkpoint of step {state.global_step} cuts a generation batch, which spans {period} optimizer "
                "steps: its completions are sampled anew, and the run will differ from one that was not interrupted. "
                f"Checkpoints at multiples of {period} steps resume exactly."
            )
        if state.best_global_step and not os.path.isdir(state.best_model_checkpoint or ""):
            candidate = os.path.join(str(args.output_dir), f"checkpoint-{state.best_global_step}")
            if os.path.isdir(candidate):
                state.best_model_checkpoint = candidate


def _is_secret(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, str) and _SECRET_NAME.search(name) is not None


def _remove_path_from_card(path: Path, base: str) -> None:
    """Remove the base model from a card's header, where YAML may have folded a long path, and from its text."""
    if not path.exists():
        return
    card = ModelCard.load(path)
    card.text = "".join(line for line in card.text.splitlines(keepends=True) if base not in line)
    card.data.base_model = None if card.data.base_model == base else card.data.base_model
    card.data.tags = [tag for tag in card.data.tags or [] if base not in tag]
    card.save(path)
