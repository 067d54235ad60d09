# SPDX-License-Identifier: Apache-2.0
"""Which model a vLLM server says it serves."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServedModel:
    """
    A model as a server names it.

    Attributes:
        name (`str`):
            What requests call it.
        root (`str`):
            Hub name or directory that the server loaded it from.
        max_length (`int`, *optional*):
            Tokens that it reads and writes together.
    """

    name: str
    root: str
    max_length: int | None


def served_model(reply: Any, name: str | None, url: str) -> ServedModel:
    """
    The model with this name, or without a name the only model, from what `GET /v1/models` answers.

    In vLLM's list adapters have a parent, and other names of the same model share its root.

    Raises:
        `ValueError`: if there is no such model, or without a name not one model alone.
    """
    try:
        models = {str(entry["id"]): entry for entry in reply["data"]}
        bases = [entry for entry in models.values() if entry.get("parent") is None]
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"the server at {url} lists its models in another form than vLLM: {reply!r:.200}") from None
    if name is None and len({entry.get("root") or entry["id"] for entry in bases}) == 1:
        name = str(bases[0]["id"])
    if name not in models:
        raise ValueError(
            f"the server at {url} serves {', '.join(models) or 'no model'}; give the `model` to score with"
        )
    lengths = [entry.get("max_model_len") for entry in (models[name], *bases)]
    max_length = next((length for length in lengths if isinstance(length, int)), None)
    return ServedModel(name, str(models[name].get("root") or name), max_length)
