# SPDX-License-Identifier: Apache-2.0
"""Saving and pushing without a token and without a local path, for any of TRL's trainers."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from transformers.trainer import PREFIX_CHECKPOINT_DIR
from trl.trainer.utils import get_config_model_id

from trl_diversity.trainers.saving import (
    CleanWhenPickled,
    is_local_path,
    scrub_saved_model,
    scrub_trainer_state,
    tidy_model_card,
)


if TYPE_CHECKING:
    from trl.trainer.base_trainer import _BaseTrainer as Trainer
else:
    Trainer = object


class CleanSaving(Trainer):
    """Put before a trainer of TRL among the bases of a class: what that saves holds no token and no local path."""

    model: Any

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            adapters = getattr(self.model, "peft_config", {})
            scrub_saved_model(output_dir or str(self.args.output_dir), self.args, adapters)

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            scrub_trainer_state(os.path.join(self._get_output_dir(trial), folder))

    def save_state(self):
        """Save the trainer state as `Trainer` does, without the path of the best checkpoint."""
        super().save_state()
        if self.is_world_process_zero():
            scrub_trainer_state(str(self.args.output_dir))

    def _push_from_checkpoint(self, checkpoint_folder):
        if self.args.should_save:
            scrub_trainer_state(checkpoint_folder)
        args: Any = self.args
        self.args = cast(Any, CleanWhenPickled(args))  # it saves the arguments once more, right before the upload
        try:
            super()._push_from_checkpoint(checkpoint_folder)
        finally:
            self.args = args

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):  # type: ignore[override]
        """Create the model card as TRL does, without local paths."""
        if dataset_name is not None and is_local_path(dataset_name):
            dataset_name = None  # the Hub refuses a path, and it would tell about this machine
        model_name = model_name or Path(str(self.args.output_dir)).name
        super().create_model_card(model_name=model_name, dataset_name=dataset_name, tags=tags)
        if self.is_world_process_zero():
            card = os.path.join(str(self.args.output_dir), "README.md")
            tidy_model_card(card, model_name, base=get_config_model_id(self.model.config))
            self._describe_on_card(Path(card))

    def _describe_on_card(self, card: Path) -> None:
        """Add to a card what a trainer has to say."""
