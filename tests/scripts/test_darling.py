# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity darling` from a configuration file to a saved model, resumed and published."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.equivalence.pooling_double import serving_model
from tests.scripts.conftest import read_lines, write_lines
from trl_diversity.scripts import darling, training
from trl_diversity.scripts.training import TrainingScriptArguments, find_checkpoint, set_up


ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "Put the answer in \\boxed{}."


def history(directory: Path) -> list[dict[str, Any]]:
    return json.loads((directory / "trainer_state.json").read_text())["log_history"]


def rewards_by_step(directory: Path) -> dict[int, float]:
    return {entry["step"]: entry["reward"] for entry in history(directory) if "reward" in entry}


@pytest.fixture
def run(working_directory, config, causal_lm_path):
    """Train in this process with a quick run's configuration; extra flags come from the command line."""

    def run_darling(*argv: str, **values: Any) -> Path:
        defaults = {
            "model_name_or_path": causal_lm_path,
            "dataset_name": "train.jsonl",
            "prompt_column": "question",
            "reward_funcs": ["script_rewards.brevity"],
            "diversity_measure": "ngram",
            "output_dir": "out",
        }
        darling.run(["--config", config(**{**defaults, **values}), *argv], prog="trl-diversity darling")
        return working_directory / "out"

    return run_darling


def test_the_module_trains_from_a_file_and_the_command_resumes(working_directory, causal_lm_path, run):
    """One process of `python -m`, as a user starts it; then two more steps in this one, from its last checkpoint."""
    recipe = working_directory / "recipe.yaml"
    recipe.write_text(
        f"""
        env:
          SCRIPT_TEST_VARIABLE: yes
        model_name_or_path: {causal_lm_path}
        dataset_name: train.jsonl
        prompt_column: question
        system_prompt: '{SYSTEM}'
        reward_funcs: [script_rewards.brevity, script_rewards.Length]
        reward_weights: [1, 5e-1]
        diversity_measure: ngram
        ngram_n: 2
        output_dir: wrong
        max_steps: 2e0
        learning_rate: 1e-3
        beta: 0
        per_device_train_batch_size: 4
        num_generations: 4
        max_completion_length: 6
        logging_steps: 1
        save_steps: 1
        eval_strategy: no
        use_cpu: true
        bf16: no
        gradient_checkpointing: False
        report_to: none
        """
    )
    finished = subprocess.run(
        [sys.executable, "-m", "trl_diversity.scripts.darling", "--config", str(recipe), "--output_dir=out"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert finished.returncode == 0, finished.stderr
    assert "Model saved to out." in finished.stdout and "1 process(es)" in finished.stderr
    out = working_directory / "out"
    assert {path.name for path in out.iterdir()} >= {"model.safetensors", "checkpoint-1", "checkpoint-2", "README.md"}
    assert not (working_directory / "wrong").exists()

    step = history(out / "checkpoint-2")[0]
    quality = step["rewards/brevity/mean"] + 0.5 * step["rewards/Length/mean"]
    assert step["quality/mean"] == pytest.approx(quality, rel=1e-4)
    assert 0 < step["diversity/mean"] <= 1

    seen = read_lines(working_directory / "seen.jsonl")
    assert {entry["variable"] for entry in seen} == {"yes"}
    prompts = [prompt for entry in seen for prompt in entry["prompts"]]
    assert len(prompts) == 8
    for system, user in prompts:  # FC-038
        assert system == {"role": "system", "content": SYSTEM}
        assert user["role"] == "user" and user["content"].startswith("Name animal")

    card = (out / "README.md").read_text()
    assert "Darling" in card and "2509.02534" in card
    assert "datasets:" not in card and "train.jsonl" not in card and causal_lm_path not in card  # FC-066

    first = rewards_by_step(out / "checkpoint-2")
    values = {
        "system_prompt": SYSTEM,
        "reward_funcs": ["script_rewards.brevity", "script_rewards.Length"],
        "reward_weights": [1, 0.5],
        "ngram_n": 2,
        "max_steps": 4,
    }
    run("--resume_from_checkpoint", "true", **values)
    resumed = rewards_by_step(out / "checkpoint-4")
    assert list(resumed) == [1, 2, 3, 4] and {step: resumed[step] for step in (1, 2)} == first
    assert len(read_lines(working_directory / "seen.jsonl")) == 4  # steps 1 and 2 were not run again


def test_partition_reward_model_adapter_and_evaluation(
    run, working_directory, pair_classifier_path, reward_model_path
):
    write_lines(working_directory / "held_out.jsonl", [{"question": "Name a bird."}, {"question": "Name a fish."}])
    out = run(
        "--clustering",
        "greedy",
        diversity_measure="partition",
        partition_model=pair_classifier_path,
        partition_threshold=0.5,
        reward_funcs=[reward_model_path],
        use_peft=True,
        lora_r=4,
        lora_target_modules="all-linear",
        eval_dataset_name="held_out.jsonl",
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=4,
        quality_shift="group_min",
    )
    assert (out / "adapter_model.safetensors").exists() and not (out / "model.safetensors").exists()
    entries = history(out / "checkpoint-2")
    assert 1 <= entries[0]["diversity/clusters_per_group"] <= 4
    assert f"rewards/{Path(reward_model_path).name}/mean" in entries[0]
    assert "eval_reward" in entries[-1]
    moved = load_file(out / "adapter_model.safetensors")
    assert any(bool(value.any()) for name, value in moved.items() if "lora_B" in name)


def test_servers(run, monkeypatch, pair_classifier_one_label_path, reward_model_path):
    """Partition and quality reward by stand-ins on this machine."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with (
        serving_model(pair_classifier_one_label_path) as (partition, _),
        serving_model(reward_model_path, max_model_len=512) as (reward, _),
    ):
        urls = ["--partition_server_urls", partition.url, partition.url]
        out = run(*urls, diversity_measure="partition", reward_funcs=[f"{reward.url}#{reward_model_path}"])
    entry = history(out / "checkpoint-2")[0]
    assert entry["diversity/server_pairs"] > 0 and f"rewards/{Path(reward_model_path).name}/mean" in entry


def test_streamed_data(run):
    out = run(dataset_streaming=True, save_strategy="no")
    assert (out / "model.safetensors").exists()


def test_hub_error_comes_after_the_model_is_saved(run, working_directory):
    """FC-067. The Hub is offline in tests."""
    with pytest.raises(SystemExit) as stopped:
        run("--push_to_hub", hub_model_id="someone/darling")
    assert "not pushed to the Hub: OfflineModeIsEnabled" in str(stopped.value.code)  # a text means status 1
    out = working_directory / "out"
    assert {path.name for path in out.iterdir()} >= {"model.safetensors", "README.md", "checkpoint-2"}
    assert "# Model Card for darling" in (out / "README.md").read_text()


@pytest.mark.parametrize("strategy", ["end", "every_save"])
def test_push(run, working_directory, monkeypatch, strategy):
    """What is uploaded in the end is the saved model with its card; with `end`, nothing is asked of the Hub before."""
    calls: list[tuple[str, set[str], str]] = []
    out = working_directory / "out"

    def create_repo(self, repo_id, **options):
        calls.append(("create", {path.name for path in out.iterdir()} if out.exists() else set(), repo_id))
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, repo_id, folder_path, run_as_future=False, **options):
        calls.append(("upload", set(os.listdir(folder_path)), repo_id))
        return SimpleNamespace(done=lambda: True, result=lambda: None)

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", create_repo)
    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", upload_folder)
    run(push_to_hub=True, hub_model_id="someone/darling", hub_strategy=strategy)
    kinds = [kind for kind, _, _ in calls]
    assert kinds == (["create", "upload"] if strategy == "end" else ["create", "upload", "upload", "upload"])
    assert ("model.safetensors" in calls[0][1]) is (strategy == "end")
    assert calls[-1][1] >= {"model.safetensors", "README.md", "tokenizer.json"}
    assert {repo_id for _, _, repo_id in calls} == {"someone/darling"}


def test_card_names_a_data_set_of_the_hub(monkeypatch):
    """FC-066, the other side: a name of the Hub is kept."""
    assert training._dataset_for_card(TrainingScriptArguments(dataset_name="trl-lib/tldr")) == "trl-lib/tldr"
    assert training._dataset_for_card(TrainingScriptArguments(dataset_name="/data/train.jsonl")) is None


def test_what_is_wrong_is_said_before_the_model_is_loaded(run, monkeypatch):
    monkeypatch.setattr("trl_diversity.trainers.DarlingTrainer", lambda **kwargs: pytest.fail("the trainer was built"))
    for message, values in (
        ("`model_name_or_path` is missing", {"model_name_or_path": None}),
        ("`dataset_name` is missing", {"dataset_name": None}),
        ("`reward_funcs` is empty", {"reward_funcs": None}),
        ("`reward_weights` has 2 values", {"reward_weights": [1, 2]}),
        ("no column 'prompt'", {"prompt_column": "prompt"}),
        ("`eval_dataset_name`", {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}),
    ):
        with pytest.raises(ValueError, match=message):
            run(**values)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        run("--resume_from_checkpoint", "true")
    with pytest.raises(FileNotFoundError, match="no trainer_state.json"):
        run("--resume_from_checkpoint", "absent")


def test_settings_reach_the_trainer(run, monkeypatch):
    """Model, trust in remote code, adapter and quantization are handed on; remote code is off by default."""
    built: list[dict[str, Any]] = []
    monkeypatch.setattr("trl_diversity.trainers.DarlingTrainer", lambda **kwargs: built.append(kwargs))
    monkeypatch.setattr("trl_diversity.scripts.training.train_and_save", lambda *arguments: None)
    run()
    assert built[-1]["args"].model_init_kwargs["trust_remote_code"] is False
    assert built[-1]["args"].trust_remote_code is False
    assert built[-1]["peft_config"] is None and built[-1]["eval_dataset"] is None
    run(
        "--trust_remote_code",
        model_revision="v2",
        dtype="bfloat16",
        attn_implementation="eager",
        model_init_kwargs={"rope_theta": 5.0},
        use_peft=True,
        lora_r=3,
    )
    assert built[-1]["args"].model_init_kwargs == {
        "revision": "v2",
        "dtype": "bfloat16",
        "attn_implementation": "eager",
        "trust_remote_code": True,
        "rope_theta": 5.0,
    }
    assert built[-1]["args"].trust_remote_code is True and built[-1]["peft_config"].r == 3


def test_several_gpus_in_one_process_are_refused():
    arguments = SimpleNamespace(
        process_index=0, world_size=1, n_gpu=2, device="cuda:0", distributed_state=SimpleNamespace()
    )
    arguments.distributed_state.distributed_type = "NO"
    with pytest.raises(ValueError, match="2 GPUs.*accelerate launch"):
        set_up(TrainingScriptArguments(), arguments, SimpleNamespace(model_name_or_path="policy"))


def test_boolean_buffers_are_left_out_on_request():
    model = torch.nn.Module()
    model.register_buffer("mask", torch.ones(2, dtype=torch.bool))
    model.register_buffer("scale", torch.ones(2))
    model.register_buffer("positions", torch.arange(2))
    training._ignore_boolean_buffers(model)
    assert model._ddp_params_and_buffers_to_ignore == ["mask"]


def test_checkpoint_by_path(tmp_path):
    directory = tmp_path / "checkpoint-3"
    directory.mkdir()
    (directory / "trainer_state.json").write_text("{}")

    def found(value: str | None) -> str | None:
        return find_checkpoint(SimpleNamespace(resume_from_checkpoint=value, output_dir=str(tmp_path)))

    assert found(str(directory)) == found("true") == found("True") == str(directory)
    assert found(None) is found("false") is None


def test_help_lists_the_options(capsys):
    with pytest.raises(SystemExit) as stopped:
        darling.make_parser("trl-diversity darling").parse_args_and_config(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    for option in ("--config", "--partition_model", "--reward_funcs", "--lora_r", "--resume_from_checkpoint"):
        assert option in shown


@pytest.mark.parametrize("is_watched", [True, False])
def test_the_watch_for_reward_hacking_is_one_option_away(run, capsys, is_watched):
    run("--watch_reward_hacking", str(is_watched), max_steps=1)
    assert ("'watch/words': " in capsys.readouterr().out) == is_watched
