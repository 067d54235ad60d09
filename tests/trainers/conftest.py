# SPDX-License-Identifier: Apache-2.0
"""Keeps the trainer tests fast."""

import gc

import pytest


@pytest.fixture(scope="session", autouse=True)
def frozen_imports() -> None:
    """Transformers collects garbage at the start of every run: do not let it walk the imported modules each time."""
    import trl_diversity.trainers  # noqa: F401

    gc.collect()
    gc.freeze()
