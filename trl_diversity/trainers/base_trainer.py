# SPDX-License-Identifier: Apache-2.0
"""What both trainers share beside the reward: sampled token ids, the order of prompts, saving without secrets."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import Sampler
from transformers.trainer import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.trainer.utils import get_config_model_id

from trl_diversity.rewards.loading import load_named_reward_models
from trl_diversity.trainers.model_card import describe_run
from trl_diversity.trainers.saving import (
    CheckpointCallback,
    CleanWhenPickled,
    is_local_path,
    scrub_saved_model,
    scrub_trainer_state,
    tidy_model_card,
)


def refuse_options(purpose: str, **options: Any) -> None:
    """
    Refuse what the likelihood of completions is not known with.

    Raises:
        `ValueError`: naming the first option that is used.
    """
    for name, value in options.items():
        if value:
            raise ValueError(
                f"{purpose} needs the likelihood of completions, which is not supported together with `{name}`."
            )


class RewardColumnTrainer(GRPOTrainer):
    """
    A `GRPOTrainer` that knows the token ids it sampled, and saves no token and no local path.

    A subclass appends its column to the rewards and fills it in `_calculate_rewards`.
    """

    model: Any

    def __init__(self, *args, **kwargs):
        self._sampled_ids: tuple[list[list[int]], list[list[int]]] = ([], [])
        for name in ("reward_funcs", "reward_processing_classes"):
            if isinstance(kwargs.get(name), list):
                kwargs[name] = list(kwargs[name])  # the user's own: TRL fills in and appends
        if (training_args := kwargs.get("args")) is not None:
            kwargs["reward_funcs"] = load_named_reward_models(
                kwargs.get("reward_funcs"), training_args.model_init_kwargs, training_args.trust_remote_code
            )
        super().__init__(*args, **kwargs)
        self.add_callback(CheckpointCallback())

    def _generate(self, prompts: list):
        output = super()._generate(prompts)
        self._sampled_ids = output[0], output[1]  # prompt ids and completion ids, which the reward step is not given
        return output

    def _get_train_sampler(self, dataset=None):
        return _OrderOfEpoch(super()._get_train_sampler(dataset), self)

    def _refuse_unknown_tokens(self, purpose: str, tools: Any, environment_factory: Any) -> None:
        """Likelihoods are computed from prompt and completion ids alone: refuse by name what needs more."""
        columns = getattr(self.train_dataset, "column_names", None) or []
        refuse_options(
            purpose,
            tools=tools,
            rollout_func=self.rollout_func,
            environment_factory=environment_factory,
            images=self._is_vlm or "image" in columns or "images" in columns,
        )

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
            describe_run(self, Path(card))


class _OrderOfEpoch(Sampler):
    """
    TRL's sampler with the order of the epoch that the run is in.

    TRL draws a new order each time, and a resumed run would begin again with the order of the first epoch.
    """

    def __init__(self, sampler: Any, trainer: GRPOTrainer):
        self.sampler, self.trainer = sampler, trainer  # a `RepeatSampler`

    def __iter__(self) -> Iterator[int]:
        if self.sampler.shuffle:
            generator = self.sampler.generator.manual_seed(self.sampler.seed)
            for _ in range(int(self.trainer.state.epoch or 0)):
                torch.randperm(self.sampler.num_samples, generator=generator)
        return iter(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)
