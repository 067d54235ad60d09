# SPDX-License-Identifier: Apache-2.0
"""What both trainers share beside the reward: sampled token ids, the order of prompts, what the card says."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from trl import GRPOTrainer

from trl_diversity.rewards.conversation import point_out_padding
from trl_diversity.rewards.loading import load_named_reward_models
from trl_diversity.trainers.clean_saving import CleanSaving
from trl_diversity.trainers.model_card import describe_run
from trl_diversity.trainers.saving import CheckpointCallback


logger = logging.getLogger(__name__)


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


class RewardColumnTrainer(CleanSaving, GRPOTrainer):
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
        self._point_out_plain_prompts()
        for name, tokenizer in zip(self.reward_func_names, self.reward_processing_classes, strict=True):
            if tokenizer is not None and self.accelerator.is_main_process:
                point_out_padding(tokenizer, name)

    def _point_out_plain_prompts(self) -> None:
        """TRL gives a text to the policy as it is: a chat model would go on with the question."""
        dataset: Any = self.train_dataset
        first = next(iter(dataset), None)
        is_main = self.accelerator.is_main_process
        if is_main and first and isinstance(first.get("prompt"), str) and self._tokenizer.chat_template is not None:
            logger.warning(
                "The prompts are texts, and the policy reads them without its chat template. For a model that was "
                'tuned on conversations make each a list of messages: [{"role": "user", "content": ...}].'
            )

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

    def _describe_on_card(self, card: Path) -> None:
        describe_run(self, card)


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
