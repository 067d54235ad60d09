# SPDX-License-Identifier: Apache-2.0
"""Partitions by running vLLM servers, against one concurrent request for every pair."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks.models import between, counted, groups_of
from benchmarks.partition import MIXED, KnownClusters
from benchmarks.timing import PEER, PRODUCT, Row, time_row
from trl_diversity.diversity.measures import PartitionDiversity
from trl_diversity.equivalence import ServerEquivalence


def server_rows(urls: list[str], rounds: int, quick: bool) -> Iterator[Row]:
    """All servers of the list, and the first alone, for 8, 2 and 1 clusters."""
    for used in [urls] if len(urls) == 1 else [urls[:1], urls]:
        inner = ServerEquivalence(used, threshold=0.5)
        for clusters in (8, 2, 1):
            groups = groups_of(1 if quick else 4, 8, between(*MIXED), clusters)
            model = KnownClusters(inner)
            measure = PartitionDiversity(model)
            pairs = [
                (one, two)
                for group in groups
                for index, one in enumerate(group.completions)
                for two in group.completions[index + 1 :]
            ]

            def one_request_a_pair(pairs: list[tuple[str, str]] = pairs, inner: ServerEquivalence = inner) -> None:
                with ThreadPoolExecutor(28) as pool:
                    list(pool.map(lambda pair: inner.score_pairs([pair]), pairs))

            measure(groups)
            asked, model.asked = len(model.asked), []
            ways = {PRODUCT: lambda measure=measure, groups=groups: measure(groups), PEER: one_request_a_pair}
            case = (
                f"{counted(len(used), 'server')}, {counted(len(groups), 'group')} of 8, mixed texts, "
                f"{counted(clusters, 'cluster')}"
            )
            yield time_row("server partition", case, ways, rounds, pairs=len(pairs), pairs_asked=asked)
