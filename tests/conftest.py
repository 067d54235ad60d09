# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test: no network, one thread, and tiny models that are saved once per session."""

import os


# Before anything imports Hugging Face libraries, which read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import ipaddress  # noqa: E402
import socket  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from transformers.utils import logging as transformers_logging  # noqa: E402

from tests import tiny  # noqa: E402


SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

torch.set_num_threads(1)
transformers_logging.disable_progress_bar()


def _is_loopback(address: Any) -> bool:
    if not isinstance(address, tuple):  # a UNIX socket's path
        return True
    host = address[0]
    if host in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Connections to anything but this machine fail at once, so that no test depends on the network."""
    patch = pytest.MonkeyPatch()
    for name in ("connect", "connect_ex"):
        original = getattr(socket.socket, name)

        def guarded(self: socket.socket, address: Any, *, original: Any = original) -> Any:
            if not _is_loopback(address):
                raise OSError(f"tests must not use the network, but a connection to {address!r} was tried")
            return original(self, address)

        patch.setattr(socket.socket, name, guarded)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def causal_lm_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random Llama policy with a chat template."""
    return tiny.save_tiny_causal_lm(tmp_path_factory.mktemp("causal_lm"))


@pytest.fixture(scope="session")
def qwen2_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random Qwen2 policy with a chat template."""
    return tiny.save_tiny_causal_lm(tmp_path_factory.mktemp("qwen2"), architecture="qwen2")


@pytest.fixture(scope="session")
def pair_classifier_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random BERT pair classifier with two labels."""
    return tiny.save_tiny_pair_classifier(tmp_path_factory.mktemp("pair_classifier"), num_labels=2)


@pytest.fixture(scope="session")
def pair_classifier_one_label_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random BERT pair classifier with one label."""
    return tiny.save_tiny_pair_classifier(tmp_path_factory.mktemp("pair_classifier_one_label"), num_labels=1)


@pytest.fixture(scope="session")
def decoder_classifier_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random Qwen2 pair classifier without a pad token."""
    return tiny.save_tiny_decoder_classifier(tmp_path_factory.mktemp("decoder_classifier"))


@pytest.fixture(scope="session")
def reward_model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random one-label Llama reward model."""
    return tiny.save_tiny_reward_model(tmp_path_factory.mktemp("reward_model"))


@pytest.fixture(scope="session")
def sentence_transformer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random BERT with mean pooling as a sentence-transformers model."""
    return tiny.save_tiny_sentence_transformer(tmp_path_factory.mktemp("sentence_transformer"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Directory with NoveltyBench and maths data; tests that need it are skipped where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the data directory ../shared/data beside the checkout")
    return SHARED_DATA
