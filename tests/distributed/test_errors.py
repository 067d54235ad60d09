# SPDX-License-Identifier: Apache-2.0
"""What fails on one rank is told on every rank, and none waits for another one."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.errors_worker import MESSAGES, SLEEP_SECONDS
from tests.distributed.launch import WORLD_SIZE, Launch


pytestmark = pytest.mark.distributed

# From the failure on rank 1, whose process lives on for SLEEP_SECONDS, to the message on both ranks.
LIMIT_SECONDS = 30
START_SECONDS = 150


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory, causal_lm_path: str, reward_model_path: str) -> Iterator[Launch]:
    """The worker, at the moment when both ranks have told of every failure or one is stuck."""
    directory = tmp_path_factory.mktemp("errors")
    with Launch("tests.distributed.errors_worker", directory, causal_lm_path, reward_model_path) as launch:
        for index, case in enumerate(MESSAGES):
            limit = START_SECONDS if index == 0 else LIMIT_SECONDS
            if not _both_raised(launch, case, limit):
                break
        yield launch


def _both_raised(launch: Launch, case: str, limit: float) -> bool:
    deadline = time.monotonic() + limit
    paths = [launch.directory / f"{case}.raised.{rank}" for rank in range(WORLD_SIZE)]
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline or not launch.is_running():
            return False
        time.sleep(0.1)
    return True


def _time(path: Path) -> float:
    return json.loads(path.read_text())


@pytest.mark.parametrize("case", MESSAGES)
def test_failure_on_one_rank_is_told_on_both(launch: Launch, case: str) -> None:
    directory = launch.directory
    assert launch.is_running(), f"a rank has ended.\n{launch.output()}"
    for rank in range(WORLD_SIZE):
        raised = directory / f"{case}.raised.{rank}"
        assert raised.exists(), f"Rank {rank} has not raised.\n{launch.output()}"
        assert _time(raised) - _time(directory / f"{case}.failed.1") < LIMIT_SECONDS < SLEEP_SECONDS
        assert MESSAGES[case] in launch.stderr(rank)


@pytest.mark.parametrize("case", MESSAGES)
def test_rank_without_failure_names_the_rank_with_it(launch: Launch, case: str) -> None:
    errors = [line for line in launch.stderr(0).splitlines() if MESSAGES[case] in line]
    assert errors and all("rank 1 failed with" in line for line in errors)
    originals = [line for line in launch.stderr(1).splitlines() if MESSAGES[case] in line]
    assert originals and not any("rank 1 failed with" in line for line in originals)
