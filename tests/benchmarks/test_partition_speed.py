# SPDX-License-Identifier: Apache-2.0
"""How much faster a partition is than a plain loop that sends every pair through the same classifier by itself."""

import itertools
import math
import os
import random
import statistics
import time

import pytest
import torch

from benchmarks import models
from trl_diversity.diversity.groups import CompletionGroup
from trl_diversity.diversity.measures import PartitionDiversity
from trl_diversity.equivalence import CrossEncoderEquivalence


GROUPS, COMPLETIONS, SHORTEST, LONGEST = 8, 8, 8, 120
REPEATS = 5


@pytest.fixture(scope="module")
def minilm_classifier():
    return models.minilm_classifier()


def groups_of(lengths):
    """Groups of random texts, their lengths in tokens drawn by `lengths(generator)`."""
    numbers = random.Random(0)
    return [
        CompletionGroup(
            prompt="",
            completions=[
                " ".join(f"w{numbers.randrange(30000)}" for _ in range(lengths(numbers))) for _ in range(COMPLETIONS)
            ],
        )
        for _ in range(GROUPS)
    ]


def mostly_short(numbers):
    """Log-uniform, as completions are: many short ones, few long ones."""
    return round(math.exp(numbers.uniform(math.log(SHORTEST), math.log(LONGEST))))


def uniform(numbers):
    return numbers.randint(SHORTEST, LONGEST)


@pytest.fixture(autouse=True)
def all_cores():
    """Other tests use one thread; a training process on a CPU uses all cores, and so do both sides here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    yield
    torch.set_num_threads(threads)


def plain_loop(cross_encoder, groups, threshold):
    """Every pair by itself, then the closure of the judgements: scores and labels of every group."""
    results = []
    for group in groups:
        labels = list(range(len(group.completions)))
        scores = {}
        for first, second in itertools.combinations(range(len(group.completions)), 2):
            pair = (group.completions[first], group.completions[second])
            (probabilities,) = cross_encoder.predict([pair], apply_softmax=True, show_progress_bar=False)
            scores[pair] = float(probabilities[1])
            if scores[pair] > threshold:
                merged, kept = labels[second], labels[first]
                labels = [kept if label == merged else label for label in labels]
        order = list(dict.fromkeys(labels))
        results.append((scores, [order.index(label) for label in labels]))
    return results


def compare(cross_encoder, groups, threshold):
    """Median of loop time over partition time in paired runs, and what either found."""
    equivalence = CrossEncoderEquivalence(cross_encoder, threshold)
    measure = PartitionDiversity(equivalence)
    plain_loop(cross_encoder, groups[:1], threshold)
    measure(groups[:1])
    ratios, seconds = [], []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        expected = plain_loop(cross_encoder, groups, threshold)
        between = time.perf_counter()
        found = measure(groups)
        end = time.perf_counter()
        ratios.append((between - begin) / (end - between))
        seconds.append((between - begin, end - between))
    loop_seconds, partition_seconds = (statistics.median(column) for column in zip(*seconds, strict=True))
    print(
        f"\nplain loop {loop_seconds:.2f} s, partition {partition_seconds:.2f} s, median of paired ratios "
        f"{statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})"
    )
    assert [diversity.labels for diversity in found] == [labels for _, labels in expected]
    return statistics.median(ratios), equivalence, measure, expected


# The gain is what small passes lose, and the part of the last layer that nobody reads.
@pytest.mark.benchmark
@pytest.mark.parametrize("lengths", [mostly_short, uniform])
def test_all_pairs_are_judged_faster_than_one_by_one(minilm_classifier, lengths):
    ratio, equivalence, measure, expected = compare(minilm_classifier, groups_of(lengths), threshold=1.0)
    assert measure.pop_statistics()["pairs_scored"] == (REPEATS * GROUPS + 1) * 28
    by_pair = {pair: score for scores, _ in expected for pair, score in scores.items()}
    assert equivalence.score_pairs(list(by_pair)) == pytest.approx(list(by_pair.values()), abs=1e-5)
    assert ratio >= 1.6


@pytest.mark.benchmark
def test_groups_of_one_cluster_are_found_5_times_as_fast(minilm_classifier):
    ratio, _, measure, _ = compare(minilm_classifier, groups_of(mostly_short), threshold=0.0)
    assert measure.pop_statistics()["pairs_scored"] == (REPEATS * GROUPS + 1) * 7
    assert ratio >= 5


@pytest.mark.benchmark
def test_mixed_groups_give_the_partition_of_the_plain_loop(minilm_classifier):
    groups = groups_of(mostly_short)
    pairs = [pair for group in groups for pair in itertools.combinations(group.completions, 2)]
    scores = sorted(CrossEncoderEquivalence(minilm_classifier, 0.5).score_pairs(pairs))
    threshold = scores[int(0.9 * len(scores))]
    expected = plain_loop(minilm_classifier, groups, threshold)
    found = PartitionDiversity(CrossEncoderEquivalence(minilm_classifier, threshold))(groups)
    assert [diversity.labels for diversity in found] == [labels for _, labels in expected]
    assert any(1 < len(set(diversity.labels or [])) < COMPLETIONS for diversity in found)
