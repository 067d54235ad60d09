# SPDX-License-Identifier: Apache-2.0
"""A partition by a server against the released client: one request per pair, all pairs of a group at a time."""

import asyncio
import itertools
import random
import statistics
import time

import httpx
import pytest

from tests import tiny
from trl_diversity.diversity import CompletionGroup, PartitionDiversity
from trl_diversity.diversity.clustering import closure_labels
from trl_diversity.equivalence import ServerEquivalence


pytestmark = pytest.mark.slow

GROUPS, COMPLETIONS, RUNS = 8, 8, 3


def make_groups(seed):
    """Texts of 5 to 60 words, no two alike."""
    generator = random.Random(seed)

    def text(index):
        return f"{index} " + " ".join(generator.choices(tiny.BERT_WORDS, k=generator.randint(5, 60)))

    return [CompletionGroup(f"p{group}", [text(index) for index in range(COMPLETIONS)]) for group in range(GROUPS)]


def released_way(url, model, groups, threshold):
    """Labels, and the number of requests. Connections are pooled, which favours it."""

    async def judge_group(client, group):
        pairs = list(itertools.combinations(range(COMPLETIONS), 2))

        async def judge(pair):
            first, second = (group.completions[index] for index in pair)
            body = {"model": model, "text_1": [first], "text_2": [second]}
            response = await client.post(f"{url}/score", json=body)
            return response.json()["data"][0]["score"] > threshold

        judgements = await asyncio.gather(*map(judge, pairs))
        return closure_labels(COMPLETIONS, [pair for pair, same in zip(pairs, judgements, strict=True) if same])

    async def run():
        limits = httpx.Limits(keepalive_expiry=4)  # the server hangs up on a connection that is idle for 5 s
        async with httpx.AsyncClient(timeout=120, trust_env=False, limits=limits) as client:
            return [await judge_group(client, group) for group in groups]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("case", "threshold", "least_ratio"), [("all differ", 1.0, 1.0), ("one cluster", 0.0, 3.0)], ids=lambda value: None
)
def test_throughput_against_one_request_per_pair(command, case, threshold, least_ratio):
    model = ServerEquivalence(command.url, threshold=threshold)
    measure = PartitionDiversity(model)
    ratios, seconds, counts = [], [], []
    for run in range(RUNS):
        groups = make_groups(run)
        started = time.perf_counter()
        theirs = released_way(command.url, command.settings["partition_model"], groups, threshold)
        middle = time.perf_counter()
        ours = [result.labels for result in measure(groups)]
        ended = time.perf_counter()
        assert ours == theirs
        ratios.append((middle - started) / (ended - middle))
        seconds.append((middle - started, ended - middle))
        counts.append(measure.pop_statistics())
    pairs, requests = counts[0]["server_pairs"], counts[0]["server_requests"]
    print(
        f"\n{case}: one request per pair {statistics.median(first for first, _ in seconds):.2f} s (224 requests), "
        f"ours {statistics.median(second for _, second in seconds):.2f} s ({pairs} pairs in {requests} requests), "
        f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )
    assert pairs == (224 if case == "all differ" else 8 * 7) and requests < 30
    assert statistics.median(ratios) >= least_ratio
