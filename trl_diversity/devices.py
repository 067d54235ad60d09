# SPDX-License-Identifier: Apache-2.0
"""Which device a process uses for models of its own."""

import os
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import torch


def process_device() -> "torch.device":
    """
    This process's GPU, or the CPU if there is none.

    A launcher tells a process its number in `LOCAL_RANK` long before accelerate makes that GPU the current one, so
    models that are loaded before the trainer do not all land on the first GPU. Processes that see only their own GPU
    take that one.
    """
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    rank = os.environ.get("LOCAL_RANK")
    index = torch.cuda.current_device() if rank is None else int(rank) % torch.cuda.device_count()
    return torch.device("cuda", index)
