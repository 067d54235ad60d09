# SPDX-License-Identifier: Apache-2.0
"""Two ranks share a server: no pair is asked twice, and what fails on one while rewards compute is told on both."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from tests.distributed.launch import WORLD_SIZE, Launch
from tests.distributed.servers_worker import GENERATIONS, MESSAGE
from tests.equivalence.pooling_double import serving_model
from tests.loopback import Loopback


pytestmark = pytest.mark.distributed


def test_two_ranks_share_a_server(tmp_path, causal_lm_path, pair_classifier_one_label_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving_model(pair_classifier_one_label_path) as (loopback, _):
        check_that_two_ranks_share(loopback, tmp_path, causal_lm_path)


def check_that_two_ranks_share(loopback: Loopback, directory: Path, policy: str) -> None:
    """Run the worker on two ranks against a server, and look at what the server was asked."""
    with Launch("tests.distributed.servers_worker", directory, policy, loopback.url) as launch:
        launch.wait(timeout=200)
    requests = [asked.body for asked in loopback.asked if asked.path == "/score"]
    records = [json.loads((directory / f"record{rank}.json").read_text()) for rank in range(WORLD_SIZE)]
    asked = Counter(pair for body in requests for pair in zip(body["text_1"], body["text_2"], strict=True))
    known = {pair for pair, count in asked.items() if count == 2 * WORLD_SIZE}  # of the start, on either rank
    counts = [count for pair, count in asked.items() if pair not in known]
    assert len(known) == 3 and set(counts) == {1}
    assert records[0]["scored"] == records[1]["scored"]
    assert sum(records[0]["scored"]) == len(counts) > 2 * math.comb(GENERATIONS, 2)
    assert sum(records[0]["requests"]) == len(requests) - 2 * WORLD_SIZE  # those of the start are not counted
    assert MESSAGE in records[1]["raised"] and records[1]["raised"].startswith("ConnectionError")
    assert records[0]["raised"].startswith("RuntimeError: rank 1 failed with ConnectionError")
