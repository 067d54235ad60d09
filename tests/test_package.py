# SPDX-License-Identifier: Apache-2.0
"""Importing the package is cheap, and every public name resolves."""

import json
import subprocess
import sys

import pytest

import trl_diversity
from trl_diversity import diversity, equivalence


HEAVY = ["torch", "transformers", "trl", "vllm", "sentence_transformers", "datasets", "accelerate", "peft"]
PURE_MODULES = [
    "trl_diversity",
    "trl_diversity.diversity",
    "trl_diversity.diversity.combine",
    "trl_diversity.equivalence",
    "trl_diversity.equivalence.base",
]


def test_importing_pure_modules_loads_no_heavy_library() -> None:
    """In a process of its own, since this one has imported torch already."""
    program = f"""
import importlib, json, sys
modules = [importlib.import_module(name) for name in {PURE_MODULES!r}]
dir(modules[0]), modules[0].PartitionDiversity, modules[0].EquivalenceModel, modules[0].darling_reward
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("name", trl_diversity.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(trl_diversity, name).__name__ == name


@pytest.mark.parametrize("package", [diversity, equivalence])
def test_names_of_the_parts_resolve(package) -> None:
    missing = [name for name in package.__all__ if not hasattr(package, name)]
    assert missing == [] and set(package.__all__) <= set(dir(package))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="trl_diversity.*DarlnigTrainer"):
        _ = trl_diversity.DarlnigTrainer
    assert not hasattr(equivalence, "nothing")


def test_the_package_has_a_version_and_lists_its_names() -> None:
    assert trl_diversity.__version__
    assert trl_diversity.__all__ == sorted(set(trl_diversity.__all__)) and set(trl_diversity.__all__) <= set(
        dir(trl_diversity)
    )
