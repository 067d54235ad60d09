# SPDX-License-Identifier: Apache-2.0
"""The trainers and their configurations, imported when they are first used."""

from importlib import import_module
from typing import Any


_PUBLIC_NAMES = {
    "DarlConfig": "darl_config",
    "DarlTrainer": "darl_trainer",
    "DarlingConfig": "darling_config",
    "DarlingTrainer": "darling_trainer",
}
__all__ = sorted(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(f"{__name__}.{_PUBLIC_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
