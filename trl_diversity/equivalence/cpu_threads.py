# SPDX-License-Identifier: Apache-2.0
"""Runs small forward passes side by side on a CPU, each on a core of its own."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch


Item = TypeVar("Item")
Result = TypeVar("Result")


class SingleCoreThreads:
    """
    Threads in which torch uses one core each.

    Within one small forward pass torch's own threads wait for each other after every operation, which costs more than
    they bring; passes that have nothing to do with each other need not wait. The number of threads is torch's
    (`torch.get_num_threads()`) whenever something is run. Torch's number stays what it was everywhere else.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._num_threads = 0

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """
        Results of `function` for all items, in order.

        Raises:
            `Exception`: what `function` raises.
        """
        items = list(items)
        num_threads = torch.get_num_threads()
        if num_threads == 1 or len(items) < 2:
            return [function(item) for item in items]
        if self._executor is None or self._num_threads != num_threads:
            self._start(num_threads)
        assert self._executor is not None
        return list(self._executor.map(function, items))

    def _start(self, num_threads: int) -> None:
        if self._executor is not None:
            self._executor.shutdown()
        self._executor, self._num_threads = ThreadPoolExecutor(num_threads), num_threads
        all_there = threading.Barrier(num_threads)

        def use_one_core(_: int) -> None:
            torch.get_num_threads()  # a thread takes torch's number when it first asks, and would do so later
            torch.set_num_threads(1)
            all_there.wait()

        list(self._executor.map(use_one_core, range(num_threads)))
        # The call sets the number for its own thread, and for all threads to come, which keep theirs.
        torch.set_num_threads(num_threads)
