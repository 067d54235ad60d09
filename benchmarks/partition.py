# SPDX-License-Identifier: Apache-2.0
"""Partitions: by cross-encoders, by a decoder that shares first texts, and by the default model."""

import itertools
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.models import between, counted, groups_of, minilm_classifier, qwen3_classifier
from benchmarks.timing import FLOOR, PEER, PRODUCT, Row, time_row
from trl_diversity.diversity.clustering import closure_labels
from trl_diversity.diversity.groups import CompletionGroup
from trl_diversity.diversity.measures import PartitionDiversity
from trl_diversity.equivalence import CrossEncoderEquivalence, load_equivalence_model
from trl_diversity.equivalence.cpu_threads import SingleCoreThreads


SHORT, MIXED, LONG = (8, 24), (8, 120), (120, 240)
FLOOR_BATCH_TOKENS = 512


class KnownClusters:
    """An equivalence model that does all the work of another one and judges by the first word."""

    threshold = 0.5

    def __init__(self, inner: Any):
        self.inner = inner
        self.shares_first_text = getattr(inner, "shares_first_text", False)
        self.asked: list[tuple[str, str]] = []

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        self.inner.score_pairs(pairs)
        self.asked += pairs
        return [float(first.split()[0] == second.split()[0]) for first, second in pairs]


def plain_partition(cross_encoder: Any, groups: list[CompletionGroup]) -> list[list[int]]:
    """Every pair of a group by itself, then the closure: what a loop without any thought would do."""
    labels = []
    for group in groups:
        same = []
        for first, second in itertools.combinations(range(len(group.completions)), 2):
            pair = (group.completions[first], group.completions[second])
            cross_encoder.predict([pair], apply_softmax=True, show_progress_bar=False)
            if pair[0].split()[0] == pair[1].split()[0]:
                same.append((first, second))
        labels.append(closure_labels(len(group.completions), same))
    return labels


def packed_forward(model: Any, lengths: list[int]) -> Callable[[], Any]:
    """As many tokens as pairs of these lengths have, in rows of one length without padding, one core each."""
    length = max(1, round(statistics.mean(lengths)))
    rows = max(1, round(sum(lengths) / length))
    per_batch = max(1, FLOOR_BATCH_TOKENS // length)
    batches = [torch.randint(5, 1000, (min(per_batch, rows - start), length)) for start in range(0, rows, per_batch)]
    threads = SingleCoreThreads()

    @torch.inference_mode()
    def forward(ids: torch.Tensor) -> None:
        model(input_ids=ids)

    return partial(threads.map, forward, batches)


def partition_row(topic: str, case: str, cross_encoder: Any, groups: list[CompletionGroup], rounds: int) -> Row:
    """Time one kind of groups, and make sure that both ways find the same partitions."""
    model = KnownClusters(CrossEncoderEquivalence(cross_encoder, 0.5))
    measure = PartitionDiversity(model)
    found = [diversity.labels for diversity in measure(groups)]
    if found != plain_partition(cross_encoder, groups):
        raise AssertionError(f"{case}: the partition differs from the plain loop's")
    asked, model.asked = model.asked, []
    pairs = sum(len(group.completions) * (len(group.completions) - 1) // 2 for group in groups)
    ways = {
        PRODUCT: lambda: measure(groups),
        PEER: lambda: plain_partition(cross_encoder, groups),
        FLOOR: packed_forward(cross_encoder.model, [len(f"{one} {two}".split()) + 3 for one, two in asked]),
    }
    row = time_row(topic, case, ways, rounds, pairs=pairs, pairs_asked=len(asked))
    row.figures["pairs_per_second"] = round(len(asked) / row.seconds[PRODUCT], 1)
    return row


def cross_encoder_rows(rounds: int, quick: bool) -> Iterator[Row]:
    """MiniLM's shape: sizes and lengths of all-different groups, then numbers of clusters."""
    cross_encoder = minilm_classifier()
    topic = "cross-encoder partition"
    cases = [(8, "short", SHORT, 8), (8, "mixed", MIXED, 8), (8, "long", LONG, 2), (16, "short", SHORT, 4)]
    cases += [(16, "mixed", MIXED, 2), (16, "long", LONG, 1)]
    for size, name, lengths, count in cases[:2] if quick else cases:
        groups = groups_of(1 if quick else count, size, between(*lengths), size)
        case = f"{counted(len(groups), 'group')} of {size}, {name} texts, all differ"
        yield partition_row(topic, case, cross_encoder, groups, rounds)
    for clusters in (1,) if quick else (1, 2, 4):
        groups = groups_of(1 if quick else 8, 8, between(*MIXED), clusters)
        case = f"{counted(len(groups), 'group')} of 8, mixed texts, {counted(clusters, 'cluster')}"
        yield partition_row(topic, case, cross_encoder, groups, rounds)


def decoder_rows(rounds: int, quick: bool) -> Iterator[Row]:
    """Qwen3's architecture: the first text read once for its partners, against whole pairs in batches and alone."""
    cross_encoder = qwen3_classifier()
    groups = groups_of(1 if quick else 4, 8, between(*MIXED), 8)
    whole = PartitionDiversity(KnownClusters(CrossEncoderEquivalence(cross_encoder, 0.5, batch_size=8)))
    pairs = [pair for group in groups for pair in itertools.combinations(group.completions, 2)]
    shared = CrossEncoderEquivalence(cross_encoder, 0.5)
    plain = CrossEncoderEquivalence(cross_encoder, 0.5, batch_size=1).score_pairs(pairs)
    difference = max(abs(one - two) for one, two in zip(shared.score_pairs(pairs), plain, strict=True))
    measure = PartitionDiversity(KnownClusters(shared))
    peers = {
        "one pair a call": lambda: plain_partition(cross_encoder, groups),
        "whole pairs in batches of 8": lambda: whole(groups),
    }
    for name, peer in peers.items():
        case = f"{counted(len(groups), 'group')} of 8, mixed texts, all differ, against {name}"
        ways = {PRODUCT: lambda: measure(groups), PEER: peer}
        yield time_row("decoder partition", case, ways, rounds, largest_score_difference=difference)


def default_rows(rounds: int, quick: bool) -> Iterator[Row]:
    """The default model, n encodings a group, against the cross-encoder's pairs."""
    count = 1 if quick else 8
    # The default model remembers the texts that it has read: each call gets new ones
    fresh = (groups_of(count, 8, between(*MIXED), 8, seed) for seed in itertools.count())
    default = PartitionDiversity(KnownClusters(load_equivalence_model("default", device="cpu")))
    cross_encoder = PartitionDiversity(KnownClusters(CrossEncoderEquivalence(minilm_classifier(), 0.5)))
    ways = {PRODUCT: lambda: default(next(fresh)), PEER: lambda: cross_encoder(next(fresh))}
    case = f"{counted(count, 'group')} of 8, mixed texts, all differ, against the cross-encoder here"
    yield time_row("default model", case, ways, rounds)
