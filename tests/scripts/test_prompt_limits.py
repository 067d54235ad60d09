# SPDX-License-Identifier: Apache-2.0
"""`max_prompt_tokens` and vLLM's length, through the training command."""

import pytest

from tests.scripts.conftest import read_lines, write_lines
from trl_diversity.scripts.darling import run


def settings(causal_lm_path: str) -> dict:
    return {
        "model_name_or_path": causal_lm_path,
        "dataset_name": "train.jsonl",
        "reward_funcs": ["script_rewards.brevity"],
        "diversity_measure": "ngram",
        "output_dir": "out",
        "max_steps": 1,
    }


def test_long_prompts_are_left_out_of_the_run(working_directory, config, causal_lm_path):
    write_lines(working_directory / "train.jsonl", [{"prompt": "p" * n} for n in (3, 90, 4, 80)])
    run(["--config", config(**settings(causal_lm_path), max_prompt_tokens=10)])
    seen = {len(prompt) for entry in read_lines(working_directory / "seen.jsonl") for prompt in entry["prompts"]}
    assert seen and seen <= {3, 4}


def test_what_vllm_cannot_take_is_said_at_the_start(working_directory, config, causal_lm_path):
    """FC-047: before a model is loaded, with the row; and the way out that is named works."""
    write_lines(working_directory / "train.jsonl", [{"prompt": "short"}, {"prompt": "p" * 300}])
    values = {**settings(causal_lm_path), "use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 204}
    with pytest.raises(ValueError, match=r"row 1 has 300 tokens.*max_completion_length=6.*leave room for 198"):
        run(["--config", config(**values)])
    with pytest.raises(ImportError, match="vLLM"):  # the lengths are fine now
        run(["--config", config(**values, max_prompt_tokens=198)])
