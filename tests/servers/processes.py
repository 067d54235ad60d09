# SPDX-License-Identifier: Apache-2.0
"""Runs `trl-diversity serve-classifier` as a user would, and tells which processes are left of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml


_REPOSITORY = Path(__file__).resolve().parents[2]
_STOP_SECONDS = 60


class ClassifierCommand:
    """
    The command, started, with one server that is ready.

    Args:
        model (`str`):
            What it serves.
        directory (`Path`):
            Folder for its output and its servers' logs.
        start_seconds (`float`):
            Time to be ready in.
        port (`int`, *optional*, defaults to 18200):
            Of the server.

    Attributes:
        settings (`dict`):
            The printed lines of YAML, read.
    """

    def __init__(self, model: str, directory: Path, start_seconds: float, port: int = 18200) -> None:
        self.port = port
        self._output = directory / "output.txt"
        command = [sys.executable, "-m", "trl_diversity.cli", "serve-classifier", model, "--gpus", "1"]
        command += ["--port", str(port), "--log_directory", str(directory / "logs")]
        command += ["--start_timeout", str(start_seconds)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(_REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.settings = self._wait_for_settings(start_seconds)

    def __enter__(self) -> "ClassifierCommand":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return self.settings["partition_server_urls"][0]

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the command as a signal does; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the command did not end in {_STOP_SECONDS} s:\n{self.output}") from None

    def process_group(self) -> list[int]:
        """Process numbers of the command and all its descendants."""
        return [self.process.pid, *_descendants(self.process.pid)]

    def _wait_for_settings(self, seconds: float) -> dict[str, list[str]]:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            lines = [line for line in self.output.splitlines() if line.startswith("partition_")]
            if len(lines) == 2:
                return yaml.safe_load("\n".join(lines))
            time.sleep(0.5)
        self.stop()
        raise AssertionError(f"the command is not ready after {seconds} s or has ended:\n{self.output}")


def _descendants(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = [child for child, parent in parents.items() if parent == pid]
    return found + [grandchild for child in found for grandchild in _descendants(child)]


def leftovers(pids: list[int], seconds: float = 10) -> list[int]:
    """Those of some processes that still run after a while."""
    end = time.monotonic() + seconds
    running = pids
    while running and time.monotonic() < end:
        time.sleep(0.2)
        running = [pid for pid in running if _is_running(pid)]
    return running


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
