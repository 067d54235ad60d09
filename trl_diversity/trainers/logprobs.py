# SPDX-License-Identifier: Apache-2.0
"""The policy's own likelihood of the completions it sampled."""

from typing import Any

import torch
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import pad


def mean_token_logprobs(
    trainer: GRPOTrainer, prompt_ids: list[list[int]], completion_ids: list[list[int]]
) -> list[float]:
    """
    Mean log-probability of the tokens of each completion under the policy that sampled it, at its temperature.

    One forward pass, in eval mode and without gradients; the model's mode is restored. Every rank makes the same
    number of forward calls.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            Trainer that holds the policy.
        prompt_ids (`list[list[int]]` of length `n_local`):
            Token ids of the prompts, without padding.
        completion_ids (`list[list[int]]` of length `n_local`):
            Token ids of the completions, without padding.

    Returns:
        `list[float]` of length `n_local`: nats per token, at most 0.
    """
    device, pad_token_id = trainer.accelerator.device, trainer._tokenizer.pad_token_id
    prompts = [torch.tensor(ids, device=device) for ids in prompt_ids]
    completions = [torch.tensor(ids, device=device) for ids in completion_ids]
    prompt_mask = pad([torch.ones_like(ids) for ids in prompts], padding_value=0, padding_side="left")
    completion_mask = pad([torch.ones_like(ids) for ids in completions], padding_value=0, padding_side="right")
    input_ids = torch.cat(
        [
            pad(prompts, padding_value=pad_token_id, padding_side="left"),
            pad(completions, padding_value=pad_token_id, padding_side="right"),
        ],
        dim=1,
    )  # (n_local, prompt length + completion length)
    model: Any = trainer.model
    checkpointing: Any = trainer.args.gradient_checkpointing_kwargs
    was_training = model.training
    model.eval()
    try:
        with (
            torch.no_grad(),
            disable_gradient_checkpointing(model, checkpointing),
        ):
            logps, _, _ = trainer._get_per_token_logps_and_entropies(
                model,
                input_ids,
                torch.cat([prompt_mask, completion_mask], dim=1),
                completion_mask.size(1),
                batch_size=trainer.args.per_device_train_batch_size,
            )  # (n_local, completion length)
    finally:
        model.train(was_training)
    sums = (logps * completion_mask).sum(dim=1)
    return (sums / completion_mask.sum(dim=1).clamp(min=1)).tolist()
