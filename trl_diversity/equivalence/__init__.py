# SPDX-License-Identifier: Apache-2.0
"""Do two completions mean the same? Public names are imported lazily, because most of them need torch."""

from importlib import import_module
from typing import Any


_PUBLIC_NAMES = {
    "AnswerEquivalence": "answer",
    "CrossEncoderEquivalence": "cross_encoder",
    "EmbeddingEquivalence": "embedding",
    "EquivalenceModel": "base",
    "MathVerifier": "verification",
    "load_equivalence_model": "loading",
}
__all__ = sorted(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(f"{__name__}.{_PUBLIC_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
