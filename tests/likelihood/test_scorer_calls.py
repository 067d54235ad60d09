# SPDX-License-Identifier: Apache-2.0
"""Forward calls: through the wrapper, as many on every rank, also with no work and after an error."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.likelihood.scoring import assert_scores, policy, rows, with_lora
from trl_diversity.likelihood.packing import Branches, micro_batches
from trl_diversity.likelihood.scorers import PolicyScorer
from trl_diversity.likelihood.splice import ScoringRow


class Counting(nn.Module):
    """Wraps a model as DDP does, and keeps the shape and the mode of every call."""

    def __init__(self, module, fail_at=None):
        super().__init__()
        self.module = module
        self.shapes = []
        self.modes = []
        self.fail_at = fail_at

    def forward(self, **kwargs):
        self.shapes.append(tuple(kwargs["input_ids"].shape))
        self.modes.append((self.training, self.module.training, torch.is_grad_enabled()))
        if len(self.shapes) == self.fail_at:
            raise RuntimeError("out of memory")
        return self.module(**kwargs)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_the_call_goes_through_the_wrapper(lora):  # FC-054
    model = with_lora(policy()) if lora else policy()
    wrapper = Counting(model).train()
    scorer = PolicyScorer(wrapper, tokens_per_forward=10**6)
    assert_scores(scorer.score(rows()), model, rows())
    assert scorer.is_fast
    assert len(wrapper.shapes) == 3 + 1  # the trial and one batch
    assert set(wrapper.modes) == {(False, False, False)}
    assert wrapper.training and model.training


def test_distributed_data_parallel(tmp_path):  # FC-054
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model = policy()
        assert_scores(PolicyScorer(DistributedDataParallel(model)).score(rows()), model, rows())
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("path", ["fast", "two_pass"])
@pytest.mark.parametrize("own", [0, 1, 3])
def test_a_rank_with_less_work_makes_the_calls_that_others_make(path, own):  # FC-050
    wrapper = Counting(policy())
    asked = []

    def agree_on_max(value):
        asked.append(value)
        return max(value, 5) if len(asked) > (path == "fast") else value

    scorer = PolicyScorer(wrapper, path=path, tokens_per_forward=1, agree_on_max=agree_on_max)
    scores = scorer.score(rows()[:own])
    assert_scores(scores, wrapper.module, rows()[:own])
    real = own if path == "fast" else 2 * own
    trial = 3 if path == "fast" else 0
    assert len(wrapper.shapes) == trial + max(real, 5)
    assert wrapper.shapes[trial + real :] == [(1, 2)] * max(5 - real, 0)
    assert asked[-1] == real


def test_the_number_of_calls_is_agreed_before_the_first_one():
    wrapper = Counting(policy())
    calls_when_asked = []

    def agree_on_max(value):
        calls_when_asked.append(len(wrapper.shapes))
        return value

    PolicyScorer(wrapper, path="two_pass", tokens_per_forward=1, agree_on_max=agree_on_max).score(rows()[:3])
    assert calls_when_asked == [0]


def test_the_path_is_agreed_on():
    scorer = PolicyScorer(policy(), agree_on_max=lambda value: 1)
    scorer.score(rows()[:1])
    assert scorer.is_fast is False


@pytest.mark.parametrize("fail_at", [1, 3])
def test_an_error_is_raised_after_all_calls(fail_at):
    wrapper = Counting(policy(), fail_at=fail_at)
    scorer = PolicyScorer(wrapper, path="two_pass", tokens_per_forward=1, agree_on_max=lambda value: 10)
    with pytest.raises(RuntimeError, match="out of memory"):
        scorer.score(rows()[:3])
    assert len(wrapper.shapes) == 10


def test_a_wrong_row_is_an_error_after_all_calls():
    wrapper = Counting(policy())
    scorer = PolicyScorer(wrapper, path="two_pass", agree_on_max=lambda value: 4)
    with pytest.raises(ValueError, match="no prefix_ids"):
        scorer.score([ScoringRow((), (5,))])
    assert wrapper.shapes == [(1, 2)] * 4


def test_two_ranks_with_unequal_and_empty_work_agree():  # FC-050
    """Two threads as ranks: each waits for the other at every agreement and at every forward call."""
    barrier = threading.Barrier(2, timeout=20)
    box = [0, 0]
    # One row far longer than the others, against none: cut by tokens, that is 1 call against 4 or 0.
    long = ScoringRow(tuple(range(5, 205)), (5, 6), (7,))
    work = [[*rows()[:3], long], []]
    models = [Counting(policy()), Counting(policy())]
    results = {}

    def rank(number):
        def agree_on_max(value):
            box[number] = value
            barrier.wait()
            largest = max(box)
            barrier.wait()
            return largest

        def wait(*_):
            barrier.wait()

        models[number].register_forward_pre_hook(wait)
        scorer = PolicyScorer(models[number], tokens_per_forward=64, agree_on_max=agree_on_max)
        results[number] = [scorer.score(work[number]), scorer.score(work[1 - number])]

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(models[0].shapes) == len(models[1].shapes)
    model = policy()
    for number in (0, 1):
        assert_scores(results[number][0], model, work[number])
        assert_scores(results[number][1], model, work[1 - number])


ROWS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(0, 9)), max_size=20)


@given(sizes=ROWS, budget=st.integers(1, 200))
def test_micro_batches_hold_every_row_once_within_the_budget(sizes, budget):
    branches = [
        Branches(((number, "answer"), (number, "reference")), [5] * prefix, [6] * first, [7] * second)
        for number, (prefix, first, second) in enumerate(sizes)
    ]
    batches = micro_batches(branches, budget)
    assert sorted(row.keys for batch in batches for row in batch) == sorted(row.keys for row in branches)
    for batch in batches:
        padded = sum(max(row.sizes[part] for row in batch) for part in range(3))
        assert len(batch) == 1 or len(batch) * padded <= budget
    longest_first = [len(row) for batch in batches for row in batch]
    assert longest_first == sorted(longest_first, reverse=True)
