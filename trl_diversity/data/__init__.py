# SPDX-License-Identifier: Apache-2.0
"""Training and test data: what to keep of published data sets, and how long prompts are for a policy."""

from trl_diversity.lazy_names import lazy_names


_PUBLIC_NAMES = {
    "SOURCES": "sources",
    "drop_long_prompts": "prompt_lengths",
    "needs_image": "sources",
    "prepare": "preparation",
    "prompt_token_count": "prompt_lengths",
    "write_prepared": "writing",
}
__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES)
