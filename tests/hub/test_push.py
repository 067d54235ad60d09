# SPDX-License-Identifier: Apache-2.0
"""Pushing from a recipe with the real huggingface_hub client: what arrives, what must not, and after a failure."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.classifiers.conftest import word_pairs
from tests.hub.stand_in import Hub, hub_on_loopback


ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_" + "x1y2z3" * 6
REWARDS = "def brevity(completions, **kwargs):\n    return [1 / (1 + len(text)) for text in completions]\n"
RECIPE = {
    "dataset_name": "train.jsonl",
    "reward_funcs": ["push_rewards.brevity"],
    "output_dir": "out",
    "push_to_hub": True,
    "hub_model_id": "someone/tiny",
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 6,
    "logging_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
}


@pytest.fixture
def workplace(tmp_path, causal_lm_path):
    (tmp_path / "push_rewards.py").write_text(REWARDS)
    rows = [{"prompt": f"Name animal {i}."} for i in range(4)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def command(workplace: Path, hub: Hub, *words: str) -> subprocess.CompletedProcess:
    """Run in a process of its own, for which the stand-in is the Hub and the token is in the environment."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(workplace / "home"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=workplace, env=environment, capture_output=True, text=True, timeout=250
    )


def train(workplace: Path, hub: Hub, model: str, **values) -> subprocess.CompletedProcess:
    (workplace / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "model_name_or_path": model, **values}))
    return command(workplace, hub, "trl_diversity.cli", "darling", "--config", "recipe.yaml")


def no_secrets(content: bytes, workplace: Path, model: str) -> None:
    for word in (TOKEN, str(workplace), str(Path(model).parent), str(ROOT)):
        assert word.encode() not in content


def test_what_arrives_and_what_does_not(workplace, causal_lm_path, pair_classifier_path):
    """Weights, card and arguments; checkpoints too with `hub_strategy: every_save`. No token, no local path."""
    import torch
    from safetensors.torch import load, load_file

    with hub_on_loopback() as hub:
        finished = train(
            workplace,
            hub,
            causal_lm_path,
            diversity_measure="partition",
            partition_model=pair_classifier_path,
            partition_threshold=0.5,
            hub_strategy="every_save",
            hub_token=TOKEN,
            save_steps=1,
        )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "Model pushed to" in finished.stdout
    assert {"model.safetensors", "README.md", "training_args.bin", "tokenizer.json", "config.json"} <= hub.files.keys()
    assert hub.tokens == {f"Bearer {TOKEN}"}
    for text in (finished.stdout, finished.stderr):
        assert TOKEN not in text
    for name, content in hub.files.items():
        no_secrets(content, workplace, causal_lm_path)
        assert name != "trainer_state.json" or json.loads(content)["best_model_checkpoint"] is None
    pushed, saved = load(hub.files["model.safetensors"]), load_file(workplace / "out" / "model.safetensors")
    assert pushed.keys() == saved.keys() and all(torch.equal(pushed[name], saved[name]) for name in saved)
    args = torch.load(io.BytesIO(hub.files["training_args.bin"]), weights_only=False)
    assert args.hub_token is None and args.partition_threshold == 0.5 and args.partition_model == "pair_classifier0"
    card = hub.files["README.md"].decode()
    assert "Darling" in card and "2509.02534" in card
    assert "| quality rewards | brevity |" in card and "| `partition_model` | pair_classifier0 |" in card
    assert "| threshold of the equivalence model | 0.5 |" in card and "| `quality/mean` | 0." in card
    assert "![Metrics over the training steps](training_curves.png)" in card
    assert hub.files["training_curves.png"].startswith(b"\x89PNG")
    assert any("step" in message for message in hub.messages)  # a checkpoint, before the end


def test_a_classifier(workplace, pair_classifier_one_label_path):
    """Weights with their calibration, and the card; no checkpoints of the run."""
    (workplace / "pairs.jsonl").write_text("".join(json.dumps(vars(pair)) + "\n" for pair in word_pairs(24)))
    options = ["--data", "pairs.jsonl", "--output_dir", "classifier", "--kind", "cross-encoder", "--use_cpu", "true"]
    options += ["--base_model", pair_classifier_one_label_path, "--num_train_epochs", "1", "--dev_share", "0.3"]
    options += ["--push_to_hub", "true", "--hub_model_id", "someone/classifier"]
    with hub_on_loopback() as hub:
        finished = command(workplace, hub, "trl_diversity.cli", "train-classifier", *options)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "Pushed to https://huggingface.co/someone/classifier." in finished.stdout
    assert {"config.json", "model.safetensors", "README.md", "tokenizer.json"} <= hub.files.keys()
    assert not any(name.startswith(("checkpoint-", "eval/")) for name in hub.files)
    assert list(workplace.glob("classifier/checkpoint-*")), "there was something to leave out"
    calibration = json.loads(hub.files["config.json"])["trl_diversity"]
    assert f"| threshold | {calibration['threshold']:.6g} |" in hub.files["README.md"].decode()
    for content in [*hub.files.values(), finished.stdout.encode(), finished.stderr.encode()]:
        assert TOKEN.encode() not in content
    for content in hub.files.values():
        no_secrets(content, workplace, pair_classifier_one_label_path)


@pytest.mark.slow
def test_a_failed_push_is_reported_and_goes_on_where_it_was(workplace, causal_lm_path):
    """The Hub breaks once it has the weights: the model is on disk, and the next try does not send them again."""
    with hub_on_loopback() as hub:
        hub.refuse_commits = 10**6
        finished = train(
            workplace, hub, causal_lm_path, diversity_measure="ngram", hub_strategy="end", save_strategy="no"
        )
        assert finished.returncode == 1 and "hf upload" in finished.stderr and "Traceback" not in finished.stderr
        assert TOKEN not in finished.stdout + finished.stderr
        assert (workplace / "out" / "model.safetensors").exists() and not hub.files
        sent = list(hub.uploads)
        assert sent
        hub.refuse_commits = 0
        again = command(workplace, hub, "huggingface_hub.cli.hf", "upload", "someone/tiny", "out")
        assert again.returncode == 0, again.stderr[-2000:]
    assert hub.uploads == sent, "the weights were sent a second time"
    assert {"model.safetensors", "README.md"} <= hub.files.keys()
