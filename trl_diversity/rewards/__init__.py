# SPDX-License-Identifier: Apache-2.0
"""Quality rewards: how good is a completion by itself? Public names are imported lazily: a server needs no torch."""

from trl_diversity.lazy_names import lazy_names


_PUBLIC_NAMES = {
    "AtheneRewardModel": "athene",
    "LocalRewardModel": "local",
    "RemoteRewardModel": "remote",
    "load_reward_model": "loading",
}
__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES)
