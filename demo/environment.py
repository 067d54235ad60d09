# SPDX-License-Identifier: Apache-2.0
"""Set what the demo's libraries read from the environment, before they are imported."""

import os
import socket
import warnings


def prepare_environment() -> None:
    """Work offline if the Hub cannot be reached, and keep the libraries' notices off the screen."""
    if not hub_is_reachable():
        os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Threads that wait actively steal the cores from each other as soon as anything else runs on the machine
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.filterwarnings("ignore", category=FutureWarning)


def hub_is_reachable(timeout: float = 3.0) -> bool:
    """Whether the Hugging Face Hub answers within `timeout` seconds. Not asked where `HF_HUB_OFFLINE` is set."""
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() not in ("", "0", "false", "no"):
        return False
    try:
        socket.create_connection(("huggingface.co", 443), timeout=timeout).close()
    except OSError:
        return False
    return True
