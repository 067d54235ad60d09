# SPDX-License-Identifier: Apache-2.0
"""What a trainer saves holds no token, no password and no path of the machine it ran on."""

import copy
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from trl import GRPOConfig, GRPOTrainer

from trl_diversity.trainers.darling_config import check_save_steps


_SECRET_NAME = re.compile(r"token$|password|secret|api_key", re.IGNORECASE)


def is_local_path(value: str) -> bool:
    """Whether a string names a place on this machine: an absolute path, or a file or folder that exists."""
    return os.path.isabs(value) or (os.sep in value and os.path.exists(value)) or os.path.isdir(value)


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


def scrub_saved_model(directory: str | os.PathLike, args: TrainingArguments) -> None:
    """
    Rewrite what `Trainer._save` wrote: arguments without secrets, adapter and card without the base model's path.

    Args:
        directory (`str`):
            Folder of the saved model.
        args ([`~transformers.TrainingArguments`]):
            Arguments of the run.
    """
    folder = Path(directory)
    torch.save(scrubbed_arguments(args), folder / TRAINING_ARGS_NAME)
    for config_path in folder.rglob("adapter_config.json"):
        config = json.loads(config_path.read_text())
        base = config.get("base_model_name_or_path")
        if base and is_local_path(base):
            # Null rather than the folder's name, which would read like the name of a model on the Hub
            config["base_model_name_or_path"] = None
            config_path.write_text(json.dumps(config, indent=2, sort_keys=True))
            _remove_path_from_card(config_path.with_name("README.md"), base)


def scrub_trainer_state(directory: str | os.PathLike) -> None:
    """Shorten the path of the best checkpoint in a saved trainer state to the folder's name."""
    path = Path(directory) / TRAINER_STATE_NAME
    if not path.exists():
        return
    state = json.loads(path.read_text())
    best = state.get("best_model_checkpoint")
    if best and os.path.isabs(best):
        state["best_model_checkpoint"] = Path(best).name
        path.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")


def tidy_model_card(path: str | os.PathLike, model_name: str | None) -> None:
    """Say "a local checkpoint" where TRL's card, which omits a local base model, would link to a model named None."""
    card = Path(path)
    text = card.read_text()
    text = text.replace("[None](https://huggingface.co/None)", "a local checkpoint")
    text = text.replace('model="None"', f'model="{model_name}"')
    card.write_text(text)


class CheckpointCallback(TrainerCallback):
    """Refuses checkpoints that cut a generation, and finds the best checkpoint, saved without its path, on resume."""

    def on_train_begin(  # type: ignore[override]
        self, args: GRPOConfig, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        check_save_steps(args, state.save_steps)  # a share of the run was turned into steps by now
        if state.best_model_checkpoint is None and state.best_global_step:
            candidate = os.path.join(str(args.output_dir), f"checkpoint-{state.best_global_step}")
            if os.path.isdir(candidate):
                state.best_model_checkpoint = candidate


class CleanSavingTrainer(GRPOTrainer):
    """A `GRPOTrainer` that saves no token and no local path, and says so where its card would name one."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(CheckpointCallback())

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            scrub_saved_model(output_dir or str(self.args.output_dir), self.args)

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            scrub_trainer_state(os.path.join(str(self.args.output_dir), f"checkpoint-{self.state.global_step}"))

    def _push_from_checkpoint(self, checkpoint_folder):
        if self.args.should_save:
            scrub_trainer_state(checkpoint_folder)
        super()._push_from_checkpoint(checkpoint_folder)

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):  # type: ignore[override]
        """Create the model card as TRL does, without local paths."""
        if dataset_name is not None and is_local_path(dataset_name):
            dataset_name = None  # the Hub refuses a path, and it would tell about this machine
        super().create_model_card(model_name=model_name, dataset_name=dataset_name, tags=tags)
        if self.is_world_process_zero():
            tidy_model_card(os.path.join(str(self.args.output_dir), "README.md"), model_name)


def _is_secret(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, str) and _SECRET_NAME.search(name) is not None


def _remove_path_from_card(card: Path, base: str) -> None:
    if card.exists():
        lines = card.read_text().splitlines(keepends=True)
        card.write_text("".join(line for line in lines if base not in line))
