# SPDX-License-Identifier: Apache-2.0
"""
Serve a pair classifier on every GPU: `trl-diversity serve-classifier MODEL --gpus 8 --port 8000`.

It prints the YAML lines for a training configuration once the servers answer, and ends them on Ctrl-C.
"""

import os
import shlex
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_diversity.scripts.parsing import StrictParser, export_environment
from trl_diversity.scripts.server_processes import (
    ServerPlan,
    ServerProcesses,
    classify_request,
    core_shares,
    cpu_options,
    visible_gpus,
)


_EVERY_INTERFACE = ("0.0.0.0", "::")
_LARGEST_PORT = 65535
_POLL_SECONDS = 1.0


@dataclass
class ServeClassifierArguments:
    """
    Arguments of `trl-diversity serve-classifier`.

    Args:
        model (`str`):
            Hub name or directory of a pair classifier, or a short name of `load_equivalence_model`.
        gpus (`int`, *optional*):
            Number of servers, each on a GPU of its own; without a GPU, on the CPU. All visible GPUs by default, or
            one server on the CPU.
        port (`int`, *optional*, defaults to `8000`):
            Port of the first server; the others have the next ones.
        host (`str`, *optional*, defaults to `"127.0.0.1"`):
            Address to listen on. `0.0.0.0` for training on other machines; the servers ask for no password.
        dtype (`str`, *optional*):
            Data type of the weights. `float32` on CPU; vLLM's choice on GPU.
        max_model_len (`int`, *optional*):
            Tokens of a pair. The model's own maximum by default.
        gpu_memory_utilization (`float`, *optional*):
            Share of a GPU that a server takes. vLLM's default if it has the GPU for itself.
        log_directory (`str`, *optional*):
            Folder for the servers' output, and for the printed lines as `ready.yaml`. A temporary one by default.
        one_label_directory (`str`, *optional*):
            Where a classifier that vLLM cannot serve exactly with two labels is saved with one. `one-label` in
            `log_directory` by default.
        start_timeout (`float`, *optional*, defaults to `900.0`):
            Seconds until all servers must answer.
        python (`str`, *optional*):
            Interpreter that has vLLM. This one by default.
        vllm_args (`str`, *optional*, defaults to `""`):
            Further arguments of vLLM's server, as on a command line.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run.
    """

    model: str = field(metadata={"help": "Pair classifier: Hub name, directory or short name."})
    gpus: int | None = field(
        default=None,
        metadata={"help": "Number of servers, one per GPU; without a GPU, on the CPU. Default: all GPUs."},
    )
    port: int = field(default=8000, metadata={"help": "Port of the first server; the others have the next ones."})
    host: str = field(
        default="127.0.0.1", metadata={"help": "Address to listen on; 0.0.0.0 for training on other machines."}
    )
    dtype: str | None = field(default=None, metadata={"help": "Data type. Default: float32 on CPU, vLLM's on GPU."})
    max_model_len: int | None = field(default=None, metadata={"help": "Tokens of a pair. Default: the model's own."})
    gpu_memory_utilization: float | None = field(
        default=None, metadata={"help": "Share of a GPU that a server takes. Default: vLLM's."}
    )
    log_directory: str | None = field(
        default=None, metadata={"help": "Folder for the servers' output. Default: a temporary one."}
    )
    one_label_directory: str | None = field(
        default=None,
        metadata={"help": "Where a classifier that cannot be served exactly with two labels is saved with one."},
    )
    start_timeout: float = field(default=900.0, metadata={"help": "Seconds until all servers must answer."})
    python: str | None = field(default=None, metadata={"help": "Interpreter that has vLLM. Default: this one."})
    vllm_args: str = field(default="", metadata={"help": "Further arguments of vLLM's server, in one text."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Whether code from the checkpoint may run."})

    def __post_init__(self):
        if self.gpus is not None and self.gpus < 1:
            raise ValueError(f"`gpus` is the number of servers, at least 1; got {self.gpus}.")
        last = self.port + (self.gpus or 1) - 1
        if not 1 <= self.port <= last <= _LARGEST_PORT:
            raise ValueError(f"`port` {self.port} to {last}: ports are from 1 to {_LARGEST_PORT}.")
        if self.gpu_memory_utilization is not None and not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"`gpu_memory_utilization` lies above 0 and up to 1; got {self.gpu_memory_utilization}.")


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        ServeClassifierArguments,
        prog=prog,
        usage="%(prog)s MODEL [--gpus N] [--port PORT] [--option VALUE ...]",
        description="Serve a pair classifier with vLLM, one server per GPU, until Ctrl-C.",
    )


def main(args: ServeClassifierArguments) -> None:
    """
    Start the servers, print the YAML lines that use them, and wait until they are to end.

    Raises:
        `SystemExit`: with status 1 if a server does not start, or all have ended.
    """
    log_directory = Path(args.log_directory or tempfile.mkdtemp(prefix="trl-diversity-servers-"))
    ready = log_directory / "ready.yaml"  # there as long as the servers can be used
    ready.unlink(missing_ok=True)
    served, tokenizer = _model_to_serve(args, log_directory)
    plans = make_plans(args, served, tokenizer, visible_gpus())
    print(f"Starting {len(plans)} server(s) of {args.model}; their logs are in {log_directory}.", flush=True)
    with _ended_by_signals():
        try:
            with ServerProcesses(plans, log_directory) as servers:
                servers.wait_until_ready(classify_request(served), args.start_timeout)
                lines = yaml_lines(args, served, plans)
                ready.write_text(lines + "\n", encoding="utf-8")
                print(lines, flush=True)
                _watch(servers)
        except (RuntimeError, OSError) as error:
            raise SystemExit(f"{error}") from error
        except KeyboardInterrupt:
            pass
        finally:
            ready.unlink(missing_ok=True)
    print("All servers have ended.", flush=True)


def make_plans(
    args: ServeClassifierArguments, served: str, tokenizer: str | None, gpus: Sequence[str]
) -> list[ServerPlan]:
    """
    One server per GPU, or on the CPU where there is none.

    Raises:
        `SystemExit`: if there are fewer GPUs than servers are wanted.
    """
    count = args.gpus or len(gpus) or 1
    if gpus and count > len(gpus):
        raise SystemExit(f"`--gpus {count}`, but this machine shows {len(gpus)} GPU(s): {', '.join(gpus)}.")
    options = ["--runner=pooling", f"--served-model-name={served}"]
    options += [f"--tokenizer={tokenizer}"] * (tokenizer is not None)
    options += ["--trust-remote-code"] * args.trust_remote_code
    for name in ("dtype", "max_model_len", "gpu_memory_utilization"):
        value = getattr(args, name)
        if value is not None:
            options.append(f"--{name.replace('_', '-')}={value}")
    environments = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus]
    if not gpus:
        cpu, environment = cpu_options((os.cpu_count() or 1) // count)
        environments = [{**environment, **share} for share in core_shares(count)]
        options += [*cpu, *(["--dtype=float32"] if args.dtype is None else [])]
    options += shlex.split(args.vllm_args)
    return [
        ServerPlan(
            model=served,
            port=args.port + index,
            host=args.host,
            options=tuple(options),
            environment=environments[index],
            python=args.python or sys.executable,
        )
        for index in range(count)
    ]


def yaml_lines(args: ServeClassifierArguments, served: str, plans: Sequence[ServerPlan]) -> str:
    """The lines of a training configuration that use the servers."""
    host = socket.gethostname() if args.host in _EVERY_INTERFACE else args.host
    urls = ", ".join(f"http://{host}:{plan.port}" for plan in plans)
    from trl_diversity.equivalence.loading import RELEASED_MODELS

    # A short name brings its threshold and limits, unless what is served is a copy of the checkpoint
    is_released = args.model in RELEASED_MODELS and served == RELEASED_MODELS[args.model].name_or_path
    return f"partition_model: {args.model if is_released else served}\npartition_server_urls: [{urls}]"


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line, whose first word may be the model, and serve."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--model", *arguments]
    export_environment(arguments, prog)
    (args,) = make_parser(prog).parse_args_and_config(arguments)
    main(args)


def _model_to_serve(args: ServeClassifierArguments, log_directory: Path) -> tuple[str, str | None]:
    """What the servers load, and where its tokenizer is if that is not there."""
    from transformers import AutoConfig

    from trl_diversity.equivalence.loading import RELEASED_MODELS, checkpoint_kind
    from trl_diversity.equivalence.one_label import needs_one_label, save_with_one_label

    released = RELEASED_MODELS.get(args.model)
    name = released.name_or_path if released else os.path.expanduser(args.model)
    tokenizer = released.options.get("tokenizer_name_or_path") if released else None
    try:
        kind = checkpoint_kind(name)
        if kind != "pair classifier":
            raise ValueError(f"{name!r} is an {kind}: only a pair classifier is served")
        config = AutoConfig.from_pretrained(name, trust_remote_code=args.trust_remote_code)
        if not needs_one_label(config):
            return name, tokenizer
        directory = Path(args.one_label_directory or log_directory / "one-label")
        print(f"{args.model} reads token types: it is saved with one label in {directory}, with the same scores.")
        saved = save_with_one_label(
            name, directory, trust_remote_code=args.trust_remote_code, tokenizer_name_or_path=tokenizer
        )
        return saved, None
    except (OSError, ValueError) as error:
        raise SystemExit(f"{args.model!r} cannot be served: {error}") from error


def _watch(servers: ServerProcesses) -> None:
    """Wait for a signal, and say which servers end before it."""
    said: list[Any] = []
    while True:
        ended = servers.ended()
        for plan in ended:
            if plan not in said:
                said.append(plan)
                print(f"The server at {plan.url} has ended.{servers.log_end(plan)}", file=sys.stderr, flush=True)
        if len(ended) == len(servers.plans):
            raise RuntimeError("all servers have ended")
        time.sleep(_POLL_SECONDS)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end this command as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.serve_classifier")
