# SPDX-License-Identifier: Apache-2.0
"""Darling on a policy that torch's `fully_shard` spreads over two ranks: the same rewards and steps as a whole one."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.distributed.launch import Launch
from tests.scale.steps import MEASURES, run


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory, causal_lm_path):
    directory = tmp_path_factory.mktemp("sharded")
    with Launch("tests.scale.worker", directory, causal_lm_path) as launch:
        launch.wait(200)
    return [torch.load(directory / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("measure", MEASURES)
def test_sharded_steps_are_those_of_a_whole_policy(two_ranks, tmp_path, causal_lm_path, measure, checkpointing):
    alone = run(causal_lm_path, tmp_path, measure, n_ranks=1, sharded=False, checkpointing=False)
    for rank, results in enumerate(two_ranks):
        steps = results[measure, checkpointing]
        assert steps["wrapper"] == "FSDPLlamaForCausalLM"
        expected = alone["advantages"][:, 4 * rank : 4 * rank + 4]
        torch.testing.assert_close(steps["advantages"], expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(steps["weights"], alone["weights"], rtol=0, atol=1e-5)
    assert alone["advantages"].abs().max() > 0.01
    start = AutoModelForCausalLM.from_pretrained(causal_lm_path, dtype=torch.float32)
    moved = alone["weights"] - torch.cat([parameter.detach().flatten() for parameter in start.parameters()])
    assert moved.abs().max() > 0.005  # far more than the tolerance
