# SPDX-License-Identifier: Apache-2.0
"""What the command starts, prints and leaves. A small program stands for vLLM; a real one is in tests/servers."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests import tiny
from tests.equivalence.test_server import mixed_pairs
from tests.servers.processes import leftovers
from trl_diversity.equivalence import CrossEncoderEquivalence
from trl_diversity.equivalence.one_label import save_with_one_label
from trl_diversity.scripts.serve_classifier import ServeClassifierArguments, make_plans, yaml_lines
from trl_diversity.scripts.server_processes import ServerPlan, ServerProcesses, core_shares, visible_gpus


# Takes vLLM's command line; healthy at once, and with a child of its own that ignores SIGTERM, as a worker may
PROGRAM = """
import json, os, signal, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
options = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[3:] if "=" in argument)
if "fail" in os.environ.get("STAND_IN", ""):
    sys.exit("out of memory")
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
print("child", child.pid, "gpu", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
class Handler(BaseHTTPRequestHandler):
    def answer(self, status, body):
        self.send_response(status); self.end_headers(); self.wfile.write(json.dumps(body).encode())
    def do_GET(self):
        self.answer(200, {})
    def do_POST(self):
        bad = "broken" in os.environ.get("STAND_IN", "")
        reply = {"data": [{"index": 0, "probs": [0.5]}]}
        self.answer(500 if bad else 200, {"error": "engine died"} if bad else reply)
    def log_message(self, *arguments): pass
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
HTTPServer((options["host"], int(options["port"])), Handler).serve_forever()
"""


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def stand_in(tmp_path):
    """An "interpreter" that runs the program whatever module it is told to run."""
    (tmp_path / "program.py").write_text(PROGRAM)
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "program.py"} "$@"\n')
    path.chmod(0o755)
    return str(path)


def plans_of(stand_in, n=2, **environment):
    return [ServerPlan("m", port, python=stand_in, environment=environment) for port in free_ports(n)]


def accept(url):
    from trl_diversity.scripts.server_processes import classify_request

    classify_request("m")(url)


def children(servers):
    return [int(servers.log_path(plan).read_text().split()[1]) for plan in servers.plans]


def test_servers_are_ready_once_they_answer_and_leave_no_process(tmp_path, stand_in):
    with ServerProcesses(plans_of(stand_in), tmp_path / "logs") as servers:
        servers.wait_until_ready(accept, 60)
        pids = [*servers.pids, *children(servers)]
        assert len(pids) == 4 and leftovers(pids, 0) == pids and servers.ended() == []
    assert leftovers(pids) == []


def test_a_healthy_server_that_fails_on_a_request_is_not_ready(tmp_path, stand_in):
    with ServerProcesses(plans_of(stand_in, 1, STAND_IN="broken"), tmp_path) as servers:
        with pytest.raises(RuntimeError, match="is healthy, but fails on a request: HTTP 500 .*engine died"):
            servers.wait_until_ready(accept, 60)
        pids = children(servers)
    assert leftovers(pids) == []


def test_a_server_that_ends_while_it_starts_shows_its_log(tmp_path, stand_in):
    with ServerProcesses(plans_of(stand_in, 1, STAND_IN="fail"), tmp_path) as servers:
        with pytest.raises(RuntimeError, match="(?s)ended while it started. Its log, .* ends with:.*out of memory"):
            servers.wait_until_ready(accept, 60)


def test_a_taken_port_is_said_before_anything_starts(tmp_path, stand_in):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        plan = ServerPlan("m", taken.getsockname()[1], python=stand_in)
        with pytest.raises(OSError, match="port .* cannot be used .*choose another one"):
            ServerProcesses([plan], tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_command_ends_its_servers_however_it_ends(
    tmp_path, stand_in, pair_classifier_one_label_path, number, monkeypatch
):
    """Killed outright it can do nothing: the servers themselves notice that it is gone."""
    (port,) = free_ports(1)
    logs = tmp_path / "logs"
    command = [sys.executable, "-m", "trl_diversity.cli", "serve-classifier", pair_classifier_one_label_path]
    command += ["--gpus", "1", "--port", str(port), "--python", stand_in, "--log_directory", str(logs)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 100
        while not (logs / "ready.yaml").exists():
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        settings = yaml.safe_load((logs / "ready.yaml").read_text())
        assert settings == {
            "partition_model": pair_classifier_one_label_path,
            "partition_server_urls": [f"http://127.0.0.1:{port}"],
        }
        child = int((logs / f"server_{port}.log").read_text().split()[1])
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    if number == signal.SIGKILL:  # the server ends; its child, which ignores the signal, is vLLM's to end
        with pytest.raises(OSError):
            while time.monotonic() < end:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        return
    assert process.returncode == 0 and output.strip().endswith("All servers have ended.")
    assert leftovers([child]) == [] and not (logs / "ready.yaml").exists()


def arguments(**settings):
    return ServeClassifierArguments(**{"model": "m", **settings})


def test_one_server_for_each_gpu():
    plans = make_plans(
        arguments(gpus=2, port=8100, dtype="bfloat16", vllm_args="--a --b=c"), "served", None, list("467")
    )
    assert [(plan.port, plan.environment["CUDA_VISIBLE_DEVICES"]) for plan in plans] == [(8100, "4"), (8101, "6")]
    options = {"--runner=pooling", "--served-model-name=served", "--dtype=bfloat16", "--a", "--b=c"}
    assert options == set(plans[0].options)
    assert len(make_plans(arguments(), "m", None, list("0123"))) == 4
    with pytest.raises(SystemExit, match="`--gpus 5`, but this machine shows 4 GPU"):
        make_plans(arguments(gpus=5), "m", None, list("0123"))


def test_without_a_gpu_servers_run_on_the_cpu():
    (plan,) = make_plans(arguments(), "m", "its/tokenizer", [])
    assert "--dtype=float32" in plan.options and "--tokenizer=its/tokenizer" in plan.options
    assert "CUDA_VISIBLE_DEVICES" not in plan.environment


def test_servers_on_one_cpu_keep_out_of_each_others_way(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    shares = [share["VLLM_CPU_OMP_THREADS_BIND"] for share in core_shares(3, range(8))]
    assert shares == ["0,1", "2,3,4", "5,6,7"]
    assert core_shares(1) == [{}]
    assert core_shares(2, [7]) == [{"VLLM_CPU_OMP_THREADS_BIND": "nobind"}] * 2
    if (os.cpu_count() or 1) > 1:
        bound = [
            plan.environment["VLLM_CPU_OMP_THREADS_BIND"] for plan in make_plans(arguments(gpus=2), "m", None, [])
        ]
        assert bound == [share["VLLM_CPU_OMP_THREADS_BIND"] for share in core_shares(2)]
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-3")
    assert core_shares(2) == [{}, {}]


def test_the_lines_name_this_machine_for_others():
    args = arguments(model="darling-general", host="0.0.0.0")
    name = "dogtooth/similarity-classifier-f168-hf"
    lines = yaml.safe_load(yaml_lines(args, name, make_plans(args, name, None, ["0"])))
    host = socket.gethostname()
    assert lines == {"partition_model": "darling-general", "partition_server_urls": [f"http://{host}:8000"]}
    assert yaml.safe_load(yaml_lines(args, "/a/copy", []))["partition_model"] == "/a/copy"


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3, 5"}, ["3", "5"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_visible_gpus(environment, names):
    assert visible_gpus(environment) == names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpus": 0}, "`gpus` is the number of servers"),
        ({"port": 70000}, "`port` 70000"),
        ({"gpu_memory_utilization": 2}, "up to 1"),
    ],
)
def test_arguments_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        arguments(**settings)


def test_what_is_no_pair_classifier_is_refused(tmp_path, sentence_transformer_path, causal_lm_path):
    from trl_diversity.scripts.serve_classifier import main

    for path, message in (
        (sentence_transformer_path, "is an embedding model"),
        (causal_lm_path, "no equivalence model"),
    ):
        with pytest.raises(SystemExit, match=f"cannot be served: .*{message}"):
            main(arguments(model=path, log_directory=str(tmp_path)))


def test_a_copy_with_one_label_has_the_same_scores(tmp_path, pair_classifier_path):
    copy = save_with_one_label(pair_classifier_path, tmp_path / "copy")
    pairs = mixed_pairs(10)
    expected = CrossEncoderEquivalence(pair_classifier_path).score_pairs(pairs)
    one_label = CrossEncoderEquivalence(copy)
    assert one_label.cross_encoder.num_labels == 1
    assert one_label.score_pairs(pairs) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="no trained classifier with two labels: it has 1"):
        save_with_one_label(tiny.save_tiny_pair_classifier(tmp_path / "one", num_labels=1), tmp_path / "x")
