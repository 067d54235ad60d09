# SPDX-License-Identifier: Apache-2.0
"""Public names of a package that are imported when they are first used, because their modules import torch."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """
    The module functions `__getattr__` and `__dir__` (PEP 562) of a package with lazy names.

    Args:
        package (`str`):
            Full name of the package.
        modules (`dict[str, str]`):
            For every public name the module below the package that defines it.

    Returns:
        `tuple`: the two functions.
    """

    def get_attribute(name: str) -> Any:
        if name in modules:
            return getattr(import_module(f"{package}.{modules[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get_attribute, list_names
