# SPDX-License-Identifier: Apache-2.0
"""Loading a model whole where DeepSpeed ZeRO-3 would hand each process a part of it."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def outside_zero3() -> Iterator[None]:
    """
    Models that are loaded in this context are not partitioned, although the policy is.

    While ZeRO-3 is on, `from_pretrained` partitions every model it loads. A model that scores and is not handed to
    DeepSpeed afterwards would then compute on empty weights.
    """
    from transformers.integrations import deepspeed

    reference = deepspeed._hf_deepspeed_config_weak_ref  # transformers has no public way to read it
    if reference is None:
        yield
        return
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if (config := reference()) is not None:
            deepspeed.set_hf_deepspeed_config(config)
