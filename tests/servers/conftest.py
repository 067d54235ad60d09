# SPDX-License-Identifier: Apache-2.0
"""Real vLLM servers of tiny models, started once for all tests. Without vLLM the tests here are skipped."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import GenerationConfig

from tests import tiny
from tests.darl.taught import save_taught
from tests.servers.processes import ClassifierCommand, leftovers
from trl_diversity.scripts.server_processes import ServerPlan, ServerProcesses, classify_request, cpu_options


START_SECONDS = 600
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name == "test_the_command_leaves_no_process")  # stable: only that one moves
    skip = pytest.mark.skip(reason="needs vLLM: `make test-servers` installs it in an environment of its own")
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))  # the first test that needs a server waits for its start
            if find_spec("vllm") is None:
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def no_proxy() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("NO_PROXY", "127.0.0.1,localhost")
    yield
    patch.undo()


@pytest.fixture(scope="session")
def classifier_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random BERT pair classifier with two labels and token types, which vLLM serves exactly only with one label."""
    return tiny.save_tiny_pair_classifier(tmp_path_factory.mktemp("classifier"), num_labels=2, max_length=512)


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory, classifier_path: str) -> Iterator[ClassifierCommand]:
    """`trl-diversity serve-classifier` with one server, ready. It leaves no process behind."""
    with ClassifierCommand(classifier_path, tmp_path_factory.mktemp("command"), START_SECONDS) as running:
        yield running
        pids = running.process_group()
    assert leftovers(pids) == []


@pytest.fixture(scope="session")
def policy_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """
    Policy that has seen a few answers. Its own generation settings, which vLLM takes where a request has none, would
    draw the likeliest token alone and punish repetition.
    """
    path = save_taught(tmp_path_factory.mktemp("policy"))
    config = GenerationConfig.from_pretrained(path)
    config.update(do_sample=True, top_k=1, repetition_penalty=1.3)
    config.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def model_servers(
    tmp_path_factory: pytest.TempPathFactory, policy_path: str, reward_model_path: str, decoder_classifier_path: str
) -> Iterator[list[str]]:
    """Addresses of servers of policy, reward model and a pair classifier with two labels, which start side by side."""
    options, environment = cpu_options(1)
    options = (*options, "--dtype=float32")
    of_policy = ("--served-model-name=policy", "--max-model-len=512", "--max-logprobs=-1")
    of_policy = (*of_policy, "--logprobs-mode=processed_logprobs")
    generation = ServerPlan(
        policy_path,
        18201,
        options=(*options, *of_policy),
        environment={**environment, "VLLM_SERVER_DEV_MODE": "1"},  # for what loads weights from a directory
    )
    first_requests = {generation.url: _complete}
    plans = [generation]
    for port, path in ((18202, reward_model_path), (18203, decoder_classifier_path)):
        plans.append(ServerPlan(path, port, options=(*options, "--runner=pooling"), environment=environment))
        first_requests[plans[-1].url] = classify_request(path)
    with ServerProcesses(plans, tmp_path_factory.mktemp("servers")) as servers:
        servers.wait_until_ready(lambda url: first_requests[url](url), START_SECONDS)
        yield servers.urls


@pytest.fixture(scope="session")
def generation_server(model_servers: list[str]) -> str:
    """Address of a server that generates, scores prompts, chats, and loads weights from a directory when told."""
    return model_servers[0]


@pytest.fixture(scope="session")
def reward_server(model_servers: list[str]) -> str:
    """Address of a server of the tiny reward model."""
    return model_servers[1]


@pytest.fixture(scope="session")
def two_label_server(model_servers: list[str]) -> str:
    """Address of a server of the decoder pair classifier, which has two labels and no token types."""
    return model_servers[2]


def _complete(url: str) -> None:
    import httpx

    body = {"model": "policy", "prompt": [[5, 6, 7]], "max_tokens": 1, "prompt_logprobs": 0}
    httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()


os.environ.setdefault("OMP_NUM_THREADS", "1")
