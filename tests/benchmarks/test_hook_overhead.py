# SPDX-License-Identifier: Apache-2.0
"""Darling's reward step costs little beside TRL's own and beside the diversity measure."""

from pathlib import Path

import pytest

from benchmarks.hook import bytes_of_hook, make_trainer, seconds_of_hook
from trl_diversity import DarlingTrainer


pytestmark = pytest.mark.benchmark


@pytest.fixture
def trainer(tmp_path: Path) -> DarlingTrainer:
    return make_trainer(str(tmp_path))


def test_time_of_the_hook(trainer: DarlingTrainer) -> None:
    outside, inside = seconds_of_hook(trainer, 64)
    print(f"\n64 completions: {1000 * outside:.2f} ms in the hook, {1000 * inside:.2f} ms in TRL's own step")
    assert outside < 0.005


def test_memory_of_the_hook(trainer: DarlingTrainer) -> None:
    peak, kept = bytes_of_hook(trainer, 1000)
    print(f"\n1000 completions: {peak / 1e6:.3f} MB at the peak, {kept / 1e6:.4f} MB kept per step")
    assert peak < 1e6
    assert kept < 1e4
