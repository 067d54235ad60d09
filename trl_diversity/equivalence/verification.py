# SPDX-License-Identifier: Apache-2.0
"""Verifies mathematical answers in child processes that are killed when they take too long or too much memory."""

import json
import logging
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any


logger = logging.getLogger(__name__)

_WORKER_FILE = Path(__file__).with_name("verification_worker.py")
_START_LIMIT_SECONDS = 120
_GIBIBYTE = 2**30
# A child that parses what a model wrote has no use for them.
_SECRET_MARKS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")


class MathVerifier:
    """
    Runs math-verify on pairs of answers, each within a time and a memory limit.

    An answer such as a tower of powers can keep math-verify busy for ever, where no alarm interrupts it. The children
    are started at the first use, used again, and replaced after one had to be killed. They run a file of this package
    in a fresh interpreter, so that neither the main script nor a GPU is touched, and see no environment variable
    whose name speaks of a token or key. Not for use in several threads at once.

    Args:
        num_workers (`int`, *optional*, defaults to 2):
            Children that work at the same time.
        time_limit_seconds (`float`, *optional*, defaults to 5.0):
            For one verification. A batch takes at most this times the number of hanging verifications over
            `num_workers`.
        memory_limit_gb (`float`, *optional*, defaults to 2.0):
            Address space of one child in GiB. Holds on POSIX systems.

    Raises:
        `ImportError`: if math-verify is not installed.
        `ValueError`: if a number is not positive.
    """

    def __init__(self, num_workers: int = 2, time_limit_seconds: float = 5.0, memory_limit_gb: float = 2.0):
        if find_spec("math_verify") is None:
            raise ImportError(
                "comparing mathematical answers needs the package math-verify: pip install 'trl-diversity[math]'"
            )
        for name, value in {
            "num_workers": num_workers,
            "time_limit_seconds": time_limit_seconds,
            "memory_limit_gb": memory_limit_gb,
        }.items():
            if not value > 0:
                raise ValueError(f"{name} is {value!r}: it must be above 0")
        self.num_workers = num_workers
        self.time_limit_seconds = time_limit_seconds
        self.memory_limit_gb = memory_limit_gb
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(num_workers):
            self._idle.put(_Worker(time_limit_seconds, int(memory_limit_gb * _GIBIBYTE)))

    def verify(self, pairs: Sequence[tuple[str, str]], either_direction: bool = False) -> list[bool | None]:
        """
        Verify pairs of a gold answer and a prediction, each as math-verify reads it (in `$...$` or `\\boxed{}`).

        Args:
            pairs (`Sequence[tuple[str, str]]`):
                Gold and prediction.
            either_direction (`bool`, *optional*, defaults to `False`):
                Whether it is enough that one verifies the other, whichever is gold. math-verify is not symmetric.

        Returns:
            `list[bool | None]`: whether they are equal; None where the verification ran past a limit or raised.
        """
        if not pairs:
            return []
        tasks = [
            {"gold": gold, "prediction": prediction, "either_direction": either_direction}
            for gold, prediction in pairs
        ]
        with ThreadPoolExecutor(min(self.num_workers, len(tasks))) as executor:
            return list(executor.map(self._run, tasks))

    def close(self) -> None:
        """End the children; the next verification starts new ones."""
        for _ in range(self.num_workers):
            worker = self._idle.get()
            worker.stop()
            self._idle.put(worker)

    def _run(self, task: dict[str, Any]) -> bool | None:
        worker = self._idle.get()
        try:
            reply = worker.ask(task)
        finally:
            self._idle.put(worker)
        return reply.get("equal")


class _Worker:
    """One child process, started when it is first asked."""

    def __init__(self, time_limit_seconds: float, memory_limit_bytes: int):
        self.time_limit_seconds = time_limit_seconds
        self.memory_limit_bytes = memory_limit_bytes
        self._process: subprocess.Popen[str] | None = None
        self._end_process: Callable[[], object] = _nothing

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """Reply of the child, or `{"error": ...}` if it died or had to be killed, after which a new one is used."""
        if self._process is not None and self._process.poll() is not None:  # it died while it had nothing to do
            self.stop()
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
        except OSError:  # the child is gone
            line = ""
        else:
            line = _read_line(process, self.time_limit_seconds)
        if line:
            return json.loads(line)
        self.stop()
        logger.debug("a verification was ended at its time or memory limit")
        return {"error": "limit"}

    def stop(self) -> None:
        self._end_process()
        self._process, self._end_process = None, _nothing

    def _start(self) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not any(mark in name.upper() for mark in _SECRET_MARKS)
        }
        command = [
            sys.executable,
            "-P",
            str(_WORKER_FILE),
            str(self.time_limit_seconds),
            str(self.memory_limit_bytes),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
        )
        self._end_process = weakref.finalize(self, _end, self._process)
        if _read_line(self._process, _START_LIMIT_SECONDS).strip() != "ready":
            exit_status = _exit_status(self._process)
            self.stop()
            raise RuntimeError(
                f"the child process that verifies answers did not start (exit status {exit_status}): its own error "
                f"output says why. A memory limit of {self.memory_limit_bytes / _GIBIBYTE} GiB may be too low"
            )


def _nothing() -> None:
    """What there is to do to end a child that was not started."""


def _read_line(process: "subprocess.Popen[str]", limit_seconds: float) -> str:
    """One line of the child's output, empty if there is none within the limit: then the child has been killed."""
    assert process.stdout is not None
    killed = threading.Event()

    def kill() -> None:
        killed.set()
        process.kill()

    timer = threading.Timer(limit_seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        line = process.stdout.readline()
    finally:
        timer.cancel()
        timer.join()  # from here on it kills nothing
    return "" if killed.is_set() else line


def _exit_status(process: "subprocess.Popen[str]") -> int | None:
    try:
        return process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return None


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # what was still to be written has no reader
                pass
