# SPDX-License-Identifier: Apache-2.0
"""Steps of `DarlingTrainer` on a policy that is whole or sharded over two ranks, with and without checkpointing."""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from tests.trainers.helpers import fix_completions, make_trainer, prompts_dataset


TEXTS = {"p0": ["cat", "cat", "a dog", "xyz"], "p1": ["one", "two words", "one", "three whole words"]}
LEARNING_RATE = 0.5
# The measure that reads the policy itself, and the one that reads text alone.
MEASURES = ("unlikeliness", "ngram")


def shard(model: Any) -> None:
    """FSDP2 by hand: accelerate gives DDP on a CPU whatever it is configured for."""
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def run(
    policy: str, directory: Path, measure: str, n_ranks: int, sharded: bool, checkpointing: bool
) -> dict[str, Any]:
    """Two steps of plain gradient descent around the trainer's own reward step and loss."""
    trainer = make_trainer(
        directory,
        policy,
        train_dataset=prompts_dataset(2),
        diversity_measure=measure,
        per_device_train_batch_size=8 // n_ranks,
        gradient_checkpointing=checkpointing,
    )
    wrapper = type(trainer.model).__name__
    if sharded:
        shard(trainer.model)
        trainer.model_wrapped = trainer.model
        assert isinstance(trainer.model, FSDPModule)
        assert all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
        wrapper = type(trainer.model).__name__
    rank, size = trainer.accelerator.process_index, 8 // n_ranks
    texts = TEXTS if n_ranks == 1 else {f"p{rank}": TEXTS[f"p{rank}"]}
    fix_completions(trainer, texts)
    batch = [row for row in trainer.train_dataset for _ in range(4)][rank * size : (rank + 1) * size]
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    advantages = []
    for _ in range(2):
        inputs = trainer._generate_and_score_completions(batch)
        advantages.append(inputs["advantages"].clone())
        trainer.compute_loss(trainer.model, inputs).backward()
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(LEARNING_RATE * parameter.grad)
        trainer.model.zero_grad()
        trainer._step += 1
    weights = [p.full_tensor() if isinstance(p, DTensor) else p for p in trainer.model.parameters()]
    return {
        "wrapper": wrapper,
        "advantages": torch.stack(advantages),  # (2, size)
        "weights": torch.cat([weight.detach().flatten() for weight in weights]),
    }
