# SPDX-License-Identifier: Apache-2.0
"""Starts a worker module on two gloo ranks, with a timeout and each rank's own output in its own file."""

import os
import signal
import subprocess
import sys
from pathlib import Path


WORLD_SIZE = 2
_REPOSITORY = Path(__file__).resolve().parents[2]


class Launch:
    """
    A worker module that runs on two ranks under torchrun. Used as a context manager, it leaves no process behind.

    Args:
        module (`str`):
            Dotted name of the worker module.
        directory (`Path`):
            Folder for the ranks' output and for what the worker writes; the worker's first argument.
        arguments (`str`):
            Further arguments of the worker.
    """

    def __init__(self, module: str, directory: Path, *arguments: str):
        self.directory = directory
        self._logs = directory / "logs"
        environment = {
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")])),
        }
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={WORLD_SIZE}"]
        command += ["--redirects=3", f"--log-dir={self._logs}", "-m", module, str(directory), *arguments]
        self._agent_log = directory / "agent.log"
        with self._agent_log.open("wb") as log:
            self._agent = subprocess.Popen(
                command, env=environment, cwd=_REPOSITORY, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the agent, which ends its workers; those that outlive it are killed one by one."""
        if self.is_running():
            self._agent.terminate()
            try:
                self._agent.wait(10)
            except subprocess.TimeoutExpired:
                self._agent.kill()
                self._agent.wait()
        for pid_file in self.directory.glob("rank*.pid"):
            try:
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass
            pid_file.unlink()

    def wait(self, timeout: float) -> None:
        """
        Wait until the worker has ended on both ranks.

        Raises:
            `AssertionError`: with every rank's output, if it does not end in time or not with success.
        """
        try:
            code: int | None = self._agent.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            self.stop()
            outcome = f"did not end within {timeout} s" if code is None else f"ended with {code}"
            raise AssertionError(f"The worker {outcome}.\n{self.output()}")

    def is_running(self) -> bool:
        """Whether the worker has not ended yet."""
        return self._agent.poll() is None

    def stderr(self, rank: int) -> str:
        """What one rank alone has written to its standard error so far."""
        return self._read(rank, "stderr.log")

    def output(self) -> str:
        """The end of everything that the agent and the ranks have written, for the message of a failed test."""
        parts = [f"--- torchrun ---\n{self._agent_log.read_text()[-3000:]}"]
        for rank in range(WORLD_SIZE):
            for name in ("stdout.log", "stderr.log"):
                parts.append(f"--- rank {rank} {name} ---\n{self._read(rank, name)[-6000:]}")
        return "\n".join(parts)

    def _read(self, rank: int, name: str) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self._logs.glob(f"**/{rank}/{name}")))
