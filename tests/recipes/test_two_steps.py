# SPDX-License-Identifier: Apache-2.0
"""Two steps of every recipe through the launch command in its header, on a tiny model of its family; on two processes
where the header starts several.

What is replaced: model, data, sizes and servers (this CPU generates and judges in the process), and accelerate's file.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import LlamaConfig, ModernBertConfig, ModernBertModel, Qwen3Config, Qwen3ForCausalLM

from tests import tiny
from tests.classifiers.conftest import word_pairs
from tests.recipes.test_recipes import DIVPO, ONLINE, ROOT
from trl_diversity import load_equivalence_model
from trl_diversity.scripts.recipe_header import LaunchCommand, launch_commands


IN_EVERY_RUN = (
    "recipes/llama-3.1-8b-instruct/darling.yaml",
    "recipes/qwen3-4b-base/grpo.yaml",
    "recipes/darl/llama-3.1-8b-instruct.yaml",
)
CASES = [path if path in IN_EVERY_RUN else pytest.param(path, marks=pytest.mark.slow) for path in ONLINE]
CPU_CONFIG = str(ROOT / "recipes" / "accelerate_configs" / "cpu-2proc.yaml")
# Of the header's command: where it runs, which this machine is not.
PLACES = ("num_machines", "num_processes", "machine_rank", "main_process_ip", "vllm_server_base_url")
SIZES = {
    "max_steps": 2,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 8,
    "max_prompt_tokens": 400,
    "use_vllm": "false",
    "vllm_enable_sleep_mode": "false",
    "use_cpu": "true",
    "bf16": "false",
    "gradient_checkpointing": "false",
    "dtype": "float32",
    "reward_model_dtype": "float32",
    "report_to": "none",
    "save_strategy": "no",
    "log_completions": "false",
    "logging_steps": 1,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny policy of each family, a reward model of Athene's shape, and a pair classifier."""
    from trl_diversity.rewards.athene import REWARD_TOKEN_ID, AtheneRewardModel

    tokenizer = tiny.tiny_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    with tiny.seeded(0):
        qwen = Qwen3ForCausalLM(
            Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=8, **sizes, **ends)
        )
        athene = AtheneRewardModel(LlamaConfig(vocab_size=REWARD_TOKEN_ID + 1, num_key_value_heads=1, **sizes, **ends))
    return {
        "llama": tiny.save_tiny_causal_lm(tmp_path_factory.mktemp("llama")),
        "qwen2": tiny.save_tiny_causal_lm(tmp_path_factory.mktemp("qwen2"), "qwen2"),
        "qwen3": tiny._save(tmp_path_factory.mktemp("qwen3"), qwen, tokenizer),
        "athene": tiny._save(tmp_path_factory.mktemp("athene"), athene, tokenizer),
        "classifier": tiny.save_tiny_pair_classifier(tmp_path_factory.mktemp("classifier")),
    }


def without_servers(path: str, target: Path) -> dict[str, Any]:
    """A copy of a recipe whose classifier runs in the process; returns its keys."""
    values = yaml.safe_load((ROOT / path).read_text())
    values.pop("partition_server_urls", None)
    target.write_text(yaml.safe_dump(values))
    return values


def here(command: LaunchCommand, recipe: str) -> list[str]:
    """The header's command for this machine: two processes on the CPU, or one where the header has one."""
    words, skipping = [], False
    for word in command.words:
        name = word.removeprefix("--").replace("-", "_")
        if word.startswith("-"):
            skipping = name in PLACES or name == "partition_server_urls"
        if not skipping:
            words.append(word)
    words[words.index("--config") + 1] = recipe
    if words[0] == "trl-diversity":
        return [sys.executable, "-m", "trl_diversity.cli", *words[1:]]
    words[words.index("--config_file") + 1] = CPU_CONFIG
    return [sys.executable, "-m", "accelerate.commands.launch", *words[2:]]


def overrides(values: dict[str, Any], models: dict[str, str], family: str) -> dict[str, Any]:
    chosen = {**SIZES, "model_name_or_path": models[family], "dataset_name": "train.jsonl", "output_dir": "out"}
    chosen["steps_per_generation"] = 2 if values.get("steps_per_generation", 1) > values.get(
        "gradient_accumulation_steps", 1
    ) else 1  # fmt: skip
    if "partition_model" in values:
        chosen["partition_model"] = models["classifier"]
    if "reward_funcs" in values and values["reward_funcs"] != ["accuracy_reward"]:
        chosen["reward_funcs"] = models["athene"]
    return chosen


def write_sums(path: Path) -> None:
    """Eight problems with their answers, in the form of all recipes."""
    rows = (
        {"prompt": [{"role": "user", "content": f"{i} + 1?"}], "solution": f"${i + 1}$", "answer": str(i + 1)}
        for i in range(8)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def finish(words: list[str], options: dict[str, Any], directory: Path) -> subprocess.CompletedProcess:
    """Run a command with further options, and expect it to end well."""
    finished = subprocess.run(
        [*words, *(item for key, value in options.items() for item in (f"--{key}", str(value)))],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished


@pytest.mark.distributed
@pytest.mark.parametrize("path", CASES)
def test_two_steps(path, models, tmp_path):
    write_sums(tmp_path / "train.jsonl")
    values = without_servers(path, tmp_path / "recipe.yaml")
    command = next(command for command in launch_commands(ROOT / path) if command.trains)
    family = "qwen3" if "qwen3" in path else "qwen2" if "qwen2" in path else "llama"
    processes = 1 if command.words[0] == "trl-diversity" else 2
    chosen = {**overrides(values, models, family), "per_device_train_batch_size": 8 // processes}  # one group a step
    finished = finish(here(command, "recipe.yaml"), chosen, tmp_path)
    kind = "MULTI_CPU" if processes == 2 else "NO"
    assert f"{processes} process(es), DistributedType.{kind}" in finished.stderr
    assert finished.stdout.count("Model saved to out.") == 1
    assert finished.stdout.count("'grad_norm'") == 2, "two steps are logged, by one process"
    saved = {file.name for file in (tmp_path / "out").iterdir()}
    assert saved & {"model.safetensors", "adapter_model.safetensors"} and "README.md" in saved


@pytest.mark.slow
@pytest.mark.parametrize("path", DIVPO)
def test_two_steps_of_divpo(path, models, tmp_path):
    """Groups are sampled, judged and paired, and two steps of DPO made on the pairs."""
    write_sums(tmp_path / "train.jsonl")
    without_servers(path, tmp_path / "recipe.yaml")
    (command,) = (command for command in launch_commands(ROOT / path) if command.trains)
    assert command.trains == "divpo" and command.words[0] == "trl-diversity"
    options = {
        name: SIZES[name]
        for name in SIZES
        if not name.startswith("vllm") and name not in ("use_vllm", "log_completions", "max_prompt_tokens")
    }
    options |= {
        "model_name_or_path": models["llama"],
        "dataset_name": "train.jsonl",
        "output_dir": "out",
        "reward_funcs": models["athene"],
        "partition_model": models["classifier"],
        "logging_strategy": "steps",
        "rounds": 1,
        "prompts_per_round": 4,
        "per_device_train_batch_size": 1,
    }
    finished = finish(here(command, "recipe.yaml"), options, tmp_path)
    assert finished.stdout.count("'grad_norm'") == 2
    (report,) = (json.loads(line) for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines())
    assert report["groups"] == 4 and report["pairs"] >= 2 and 1 <= report["clusters"] <= 8
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {"adapter_model.safetensors", "README.md"}


@pytest.fixture(scope="module")
def classifier_bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny base for every recipe: ModernBERT's architecture, sentence encoders, and a decoder."""
    tokenizer = tiny.tiny_bert_tokenizer()
    with tiny.seeded(0):
        encoder = ModernBertModel(
            ModernBertConfig(
                vocab_size=len(tokenizer),
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
                eos_token_id=None,
                cls_token_id=tokenizer.cls_token_id,
                sep_token_id=tokenizer.sep_token_id,
            )
        )
    sentence_transformer = tiny.save_tiny_sentence_transformer(tmp_path_factory.mktemp("sentences"))
    return {
        "cross-encoder": tiny._save(tmp_path_factory.mktemp("modernbert"), encoder, tokenizer),
        "minilm-cross-encoder": sentence_transformer,
        "math-qwen3-embedding": tiny.save_tiny_embedding_decoder(tmp_path_factory.mktemp("embeddings")),
        "smollm2-lora": tiny.save_tiny_causal_lm(tmp_path_factory.mktemp("decoder")),
        "default-head": sentence_transformer,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cross-encoder", "math-qwen3-embedding", "minilm-cross-encoder", "smollm2-lora", "default-head"]
)
def test_two_steps_of_a_classifier(name, classifier_bases, tmp_path):
    """The command in the header on a few pairs; what it saves judges pairs by the threshold that it found."""
    path = ROOT / "recipes" / "classifier" / f"{name}.yaml"
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(vars(pair)) + "\n" for pair in word_pairs(36)))
    (command,) = (command for command in launch_commands(path) if "train-classifier" in command.words)
    kind = yaml.safe_load(path.read_text())["kind"]
    options = {"data": "pairs.jsonl", "output_dir": "out", "base_model": classifier_bases[name], "use_cpu": "true"}
    if kind == "cross-encoder":
        options |= {"bf16": "false", "num_train_epochs": 2}  # one or two steps an epoch
    else:
        options |= {"sure_pairs": 10, "short_pairs": 20}
    finished = finish(here(command, str(path)), options, tmp_path)
    assert "Saved to out." in finished.stdout
    if kind == "cross-encoder":
        assert finished.stdout.count("'grad_norm'") == 2
    model = load_equivalence_model(str(tmp_path / "out"), device="cpu")
    assert 0 < model.threshold < 1
    assert all(0 <= score <= 1 for score in model.score_pairs([("a cat", "a dog"), ("a cat", "a cat.")]))
