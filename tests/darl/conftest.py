# SPDX-License-Identifier: Apache-2.0
"""The policy that the tests of Darl train and score with."""

import gc
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.darl.taught import save_taught


@pytest.fixture(scope="session", autouse=True)
def frozen_imports() -> None:
    """Transformers collects garbage at the start of every run: do not let it walk the imported modules each time."""
    from trl_diversity.trainers import DarlTrainer  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def policy_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Llama policy that has seen a few texts in the formats of the tests, with one token for `" 42"`."""
    return save_taught(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def policy(policy_path: str) -> Any:
    """The policy as it is before training, in evaluation mode. Not to be changed."""
    return AutoModelForCausalLM.from_pretrained(policy_path, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer(policy_path: str) -> Any:
    return AutoTokenizer.from_pretrained(policy_path)
