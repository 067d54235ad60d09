# SPDX-License-Identifier: Apache-2.0
"""A policy sharded over two gloo ranks with torch's `fully_shard`: its scores, and the trainer's steps with it."""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.darl.rollouts import CASES, REFERENCES, completion_ids
from tests.darl.scenarios import SCENARIOS, build_trainer
from trl_diversity.distributed import max_over_ranks
from trl_diversity.likelihood import PolicyScorer, ScoringRow, prepare_completion


LEARNING_RATE = 0.5


def load(policy: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)


def shard(model: Any) -> None:
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def assert_sharded(model: Any) -> None:
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor), f"{name} is no DTensor"
        assert parameter.to_local().numel() < parameter.numel(), f"{name} is whole on this rank"


def scoring_rows(policy: str, prompts: tuple[str, ...]) -> list[ScoringRow]:
    """Rows of the well-formed completions that were cut by hand."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    prepared = [
        prepare_completion(
            tokenizer(prompt)["input_ids"], completion_ids(case, tokenizer), REFERENCES[prompt], tokenizer
        )
        for prompt in prompts
        for case in CASES[prompt]
    ]
    return [completion.row for completion in prepared if completion.row is not None]


def sharded_scores(policy: str, rank: int, path: str) -> dict[str, Any]:
    """Scores of unequally many rows, in evaluation mode and back, on a sharded policy."""
    model = load(policy).train()
    shard(model)
    scorer = PolicyScorer(model, path=path, tokens_per_forward=100, agree_on_max=max_over_ranks)
    rows = scoring_rows(policy, (("p0", "p1", "p3"), ())[rank])
    assert_sharded(model)
    scores = scorer.score(rows)
    return {"scores": [(one.answer, one.reference) for one in scores], "training": model.training}


def training_steps(policy: str, directory: Path, n_ranks: int, is_sharded: bool, n_steps: int = 2) -> dict[str, Any]:
    """
    The trainer's own reward step and loss, with plain gradient descent around them.

    Accelerate gives plain DDP on CPUs whatever it is configured for, so the policy is sharded by hand.
    """
    trainer = build_trainer(SCENARIOS["empty_rank"], directory / f"sharded_{is_sharded}", policy, n_ranks)
    if is_sharded:
        shard(trainer.model)
        trainer.model_wrapped = trainer.model
        score = trainer.score_rows

        def checked(rows: list) -> list:
            assert_sharded(trainer.model)
            return score(rows)

        trainer.score_rows = checked
    trainer.current_gradient_accumulation_steps = 1
    rank, size = trainer.accelerator.process_index, trainer.args.per_device_train_batch_size
    batch = [row for row in trainer.train_dataset for _ in range(4)][rank * size : (rank + 1) * size]
    trainer.model.train()
    for _ in range(n_steps):
        inputs = trainer._generate_and_score_completions(batch)
        trainer.compute_loss(trainer.model, inputs).backward()
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(LEARNING_RATE * parameter.grad)
        trainer.model.zero_grad()  # here, as the trainer does: scoring leaves the outermost parameters whole
        trainer._step += 1
    weights = [p.full_tensor() if isinstance(p, DTensor) else p for p in trainer.model.parameters()]
    return {
        "wrapper": type(trainer.model_wrapped).__name__,
        "calls": trainer.calls,
        "rewards": [step["rewards"] for step in trainer.batches],
        "advantages": [step["advantages"] for step in trainer.batches],
        "weights": torch.cat([weight.detach().flatten() for weight in weights]),
    }
