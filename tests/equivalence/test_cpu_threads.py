# SPDX-License-Identifier: Apache-2.0
"""Threads of one core each."""

import threading

import pytest
import torch

from trl_diversity.equivalence.cpu_threads import SingleCoreThreads


@pytest.fixture(autouse=True)
def two_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_are_in_order_and_items_run_side_by_side():
    both_there = threading.Barrier(2, timeout=30)

    def square(item):
        both_there.wait()
        return item, item**2, torch.get_num_threads()

    assert SingleCoreThreads().map(square, [3, 1]) == [(3, 9, 1), (1, 1, 1)]
    assert torch.get_num_threads() == 2


def test_other_threads_keep_torch_s_number():
    threads = SingleCoreThreads()
    threads.map(abs, [1, 2])
    numbers = []
    other = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert numbers == [2]


def test_a_changed_number_of_threads_is_followed():
    threads = SingleCoreThreads()
    threads.map(abs, [1, 2])
    torch.set_num_threads(3)
    all_there = threading.Barrier(3, timeout=30)
    threads.map(lambda item: all_there.wait(), [1, 2, 3])
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("num_threads", "items"), [(1, [1, 2]), (2, [1]), (2, [])])
def test_where_one_thread_is_enough_none_is_started(num_threads, items):
    torch.set_num_threads(num_threads)
    me = threading.current_thread()
    assert SingleCoreThreads().map(lambda item: threading.current_thread() is me, items) == [True] * len(items)


def test_an_error_in_a_thread_arrives():
    def fail(item):
        raise RuntimeError(f"item {item}")

    with pytest.raises(RuntimeError, match="item 1"):
        SingleCoreThreads().map(fail, [1, 2])
