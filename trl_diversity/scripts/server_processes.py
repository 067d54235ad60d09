# SPDX-License-Identifier: Apache-2.0
"""Starts vLLM servers as child processes, waits until they answer, and leaves none of them behind."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


_POLL_SECONDS = 0.5
_STOP_SECONDS = 20.0  # for an orderly end, before a server is killed
_SHOWN_LINES = 15
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ServerPlan:
    """
    One server to start.

    Attributes:
        model (`str`):
            Hub name or directory.
        port (`int`):
            Where it listens.
        host (`str`):
            Address that it listens on.
        options (`tuple[str, ...]`):
            Further arguments of vLLM's server.
        environment (`dict[str, str]`):
            Variables to set; an empty value unsets one.
        python (`str`):
            Interpreter that has vLLM.
    """

    model: str
    port: int
    host: str = "127.0.0.1"
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    python: str = sys.executable

    @property
    def url(self) -> str:
        """How this machine reaches it."""
        return f"http://{'127.0.0.1' if self.host in ('0.0.0.0', '::', '') else self.host}:{self.port}"

    @property
    def command(self) -> list[str]:
        """The command line of vLLM's server."""
        return [
            self.python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            f"--model={self.model}",
            f"--host={self.host}",
            f"--port={self.port}",
            *self.options,
        ]


class ServerProcesses:
    """
    Running servers. Used as a context manager, it ends them all, whatever happens.

    They also end when this process is killed (on Linux).

    Args:
        plans (`Iterable[ServerPlan]`):
            What to start.
        log_directory (`Path`):
            Folder for their output, a file for each port.

    Raises:
        `OSError`: if a port is taken.
    """

    def __init__(self, plans: Iterable[ServerPlan], log_directory: str | Path) -> None:
        self.plans = list(plans)
        self.log_directory = Path(log_directory)
        self.log_directory.mkdir(parents=True, exist_ok=True)
        for plan in self.plans:
            _require_free_port(plan)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for plan in self.plans:
                self._processes.append(self._start(plan))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> "ServerProcesses":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers."""
        return [plan.url for plan in self.plans]

    @property
    def pids(self) -> list[int]:
        """Process numbers of the servers' first processes."""
        return [process.pid for process in self._processes]

    def ended(self) -> list[ServerPlan]:
        """Those that run no longer."""
        return [plan for plan, process in zip(self.plans, self._processes, strict=True) if process.poll() is not None]

    def wait_until_ready(self, real_request: Callable[[str], Any], timeout: float) -> None:
        """
        Wait until every server is healthy and has answered one real request.

        A server may be healthy and fail on its first request, so health alone says too little.

        Args:
            real_request (`Callable`):
                Called with a URL; raises if the answer is not as it should be.
            timeout (`float`):
                Seconds for all of them.

        Raises:
            `RuntimeError`: with the end of its log, if a server ends, fails on the request, or is not ready in time.
        """
        end = time.monotonic() + timeout
        for plan in self.plans:
            while not _is_healthy(plan.url):
                if plan in self.ended():
                    raise RuntimeError(f"the server at {plan.url} ended while it started.{self.log_end(plan)}")
                if time.monotonic() > end:
                    raise RuntimeError(
                        f"the server at {plan.url} is not ready after {timeout:.0f} s.{self.log_end(plan)}"
                    )
                time.sleep(_POLL_SECONDS)
            try:
                real_request(plan.url)
            except Exception as error:
                raise RuntimeError(
                    f"the server at {plan.url} is healthy, but fails on a request: {error}.{self.log_end(plan)}"
                ) from error

    def kill(self, url: str) -> None:
        """Kill one server with all its processes, at once."""
        for plan, process in zip(self.plans, self._processes, strict=True):
            if plan.url == url:
                _signal_group(process, signal.SIGKILL)
                process.wait()

    def stop(self) -> None:
        """End all servers: politely, and after 20 seconds by force."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + _STOP_SECONDS
        try:
            for process in self._processes:
                process.wait(max(end - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            pass
        finally:  # also what a server has left of its group
            for process in self._processes:
                _signal_group(process, signal.SIGKILL)
                process.wait()

    def log_path(self, plan: ServerPlan) -> Path:
        """The file with a server's output."""
        return self.log_directory / f"server_{plan.port}.log"

    def log_end(self, plan: ServerPlan) -> str:
        """The end of a server's output, for a message."""
        path = self.log_path(plan)
        lines = path.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        return f" Its log, {path}, ends with:\n" + "\n".join(f"    {line}" for line in lines)

    def _start(self, plan: ServerPlan) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", **(plan.environment or {})}
        environment = {name: value for name, value in environment.items() if value != ""}
        with self.log_path(plan).open("wb") as log:
            return subprocess.Popen(
                plan.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us, who end them in order
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )


def classify_request(model: str) -> Callable[[str], None]:
    """A real request to a classifier, for [`~ServerProcesses.wait_until_ready`]."""

    def ask(url: str) -> None:
        import httpx

        from trl_diversity.pooling_servers import read_values

        body = {"model": model, "input": ["yes"], "use_activation": False}
        response = httpx.post(f"{url}/classify", json=body, timeout=120)
        if response.status_code != 200:
            raise ValueError(f"HTTP {response.status_code} {response.text[:300]}")
        read_values(response.json(), 1, None, url)

    return ask


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the GPUs for `CUDA_VISIBLE_DEVICES`: those that it lists, else all that the driver shows."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip() and name.strip() != "-1"]
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [str(index) for index, _ in enumerate(line for line in lines if line.startswith("GPU "))]


def cpu_options(threads: int) -> tuple[Sequence[str], dict[str, str]]:
    """Arguments and environment with which vLLM serves small models on a CPU, in the precision of a local model."""
    options = ("--enforce-eager", "--kv-cache-memory-bytes=268435456")
    # The variable is in whole GiB and goes before the argument
    return options, {"VLLM_CPU_KVCACHE_SPACE": "", "OMP_NUM_THREADS": str(max(threads, 1))}


def core_shares(count: int, cores: Sequence[int] | None = None) -> list[dict[str, str]]:
    """
    What keeps several servers on a CPU apart: vLLM by itself binds all of them to the same cores.

    Args:
        count (`int`):
            Number of servers.
        cores (`Sequence[int]`, *optional*):
            Cores to share out. Those of this process by default.

    Returns:
        `list[dict[str, str]]`: variables to set for each server. None for a single server, or where the caller's
        environment says how to bind.
    """
    if count == 1 or "VLLM_CPU_OMP_THREADS_BIND" in os.environ:
        return [{}] * count
    if cores is None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    if len(cores) < count:
        return [{"VLLM_CPU_OMP_THREADS_BIND": "nobind"}] * count
    shares = [cores[index * len(cores) // count : (index + 1) * len(cores) // count] for index in range(count)]
    return [{"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, share))} for share in shares]


def _is_healthy(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _require_free_port(plan: ServerPlan) -> None:
    with socket.socket(socket.AF_INET6 if ":" in plan.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((plan.host, plan.port))
        except OSError as error:
            raise OSError(
                f"port {plan.port} of {plan.host} cannot be used ({error.strerror}): choose another one, or end the "
                "server that has it"
            ) from error


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


_LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """In the child: be told to end when the parent is gone, even if it was killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
