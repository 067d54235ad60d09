# SPDX-License-Identifier: Apache-2.0
"""Sends a trainer's weights to a vLLM server through a directory. TRL's own transport needs CUDA and NCCL."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file


def send_weights_through(directory: str | Path, patch: pytest.MonkeyPatch) -> list[int]:
    """
    Replace TRL's transport of weights, and only that, by a file that the server loads.

    Args:
        directory (`Path`):
            Folder with the model's config, in which the file is written anew each time.
        patch (`pytest.MonkeyPatch`):
            Undoes it.

    Returns:
        `list[int]`: grows by the number of weights that were sent, each time.
    """
    from trl.generation.vllm_client import VLLMClient

    sent: list[int] = []

    def init_communicator(self: Any, device: Any = 0) -> None:
        """There is none."""

    def update_named_params(self: Any, metadata: Any, named_params: Any) -> None:
        weights = {name: parameter.detach().clone().contiguous() for name, parameter in named_params}
        # With tied embeddings the server would keep its old output matrix
        weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"].clone())
        save_file(weights, Path(directory) / "model.safetensors", metadata={"format": "pt"})
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}}
        self._post(self.base_url + "/collective_rpc", json=body)
        sent.append(len(weights))

    patch.setattr(VLLMClient, "init_communicator", init_communicator)
    patch.setattr(VLLMClient, "update_named_params", update_named_params)
    return sent
