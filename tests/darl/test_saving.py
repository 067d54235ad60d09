# SPDX-License-Identifier: Apache-2.0
"""What a Darl run saves names its method and papers, and holds no token and no path of this machine."""

import json
import re
import shutil

import pytest
import torch
import yaml
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM

from tests.darl.helpers import make_trainer, references_dataset, serve_cases
from tests.trainers.test_saving import leaks
from trl_diversity.trainers import DarlConfig


TOKEN = "hf_ConfiguredTokenThatMustNeverBeSaved"
OTHER_TOKEN = "hf_TokenOfTheModelThatMustNotBeSaved"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder whose path is long and holds spaces, which YAML may fold over two lines."""
    return (
        tmp_path_factory.mktemp("home of a user with a long name") / "a place for models and runs" / "of one project"
    )


@pytest.fixture(scope="module")
def saved(home, policy_path):
    """A LoRA run with a local policy and a local scorer, with everything that can be saved."""
    for name in ("base model", "scorer"):
        shutil.copytree(policy_path, home / name)
    trainer = make_trainer(
        home / "output",
        str(home / "base model"),
        trainer={
            "peft_config": LoraConfig(r=2, init_lora_weights="gaussian"),
            "eval_dataset": references_dataset(["p1"]),
        },
        scorer_model=str(home / "scorer"),
        debias=True,
        std_filter_beta=0.5,
        hub_token=TOKEN,
        model_init_kwargs={"token": OTHER_TOKEN},
        max_steps=2,
        save_strategy="steps",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=4,
        load_best_model_at_end=True,
        metric_for_best_model="eval_darl/reference_prob",
        log_completions=True,
        num_completions_to_print=0,
    )
    serve_cases(trainer)
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    trainer.create_model_card(model_name="tiny", dataset_name=str(home / "data.jsonl"))
    return trainer


def secrets_of(home):
    return [TOKEN, OTHER_TOKEN, str(home), home.parent.name, "home of a user", "home\\ of"]


def test_a_saved_run_holds_no_token_and_no_path(saved, home):
    output = home / "output"
    names = {path.name for path in output.rglob("*")}
    assert {"training_args.bin", "adapter_config.json", "adapter_model.safetensors", "trainer_state.json"} <= names
    assert {"README.md", "checkpoint-1", "checkpoint-2", "completions_00002.parquet"} <= names
    assert leaks(output, secrets_of(home)) == []


def test_the_search_for_leaks_finds_them(saved, home, tmp_path):
    torch.save(saved.args, tmp_path / "training_args.bin")
    assert {needle for _, needle in leaks(tmp_path, secrets_of(home))} >= {TOKEN, OTHER_TOKEN, str(home)}


def test_training_arguments_and_adapter_load_back(saved, home):
    args = torch.load(home / "output" / "training_args.bin", weights_only=False)
    assert type(args) is DarlConfig
    assert args.hub_token is None and args.scorer_model == "scorer"
    assert args.debias and args.std_filter_beta == 0.5
    assert saved.args.scorer_model == str(home / "scorer")
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(home / "base model"), home / "output")
    for name, value in loaded.named_parameters():
        if "lora_" in name:
            assert torch.equal(value, saved.model.get_parameter(name)), name


def test_saved_state_of_the_reward(saved, home):
    state = json.loads((home / "output" / "checkpoint-1" / "trainer_state.json").read_text())
    attributes = state["stateful_callbacks"]["DarlState"]["attributes"]
    assert attributes["filter_state"] == {"step": 1, "moving_average": None, "averaged_steps": 0}
    assert len(attributes["baseline"]) == 4


def test_model_card(saved, home):
    _, header, body = (home / "output" / "README.md").read_text().split("---\n", 2)
    header = yaml.safe_load(header)
    assert {"trl", "grpo", "darl"} <= set(header["tags"])
    assert "datasets" not in header and "base_model" not in header
    assert "This model was trained with Darl, a method introduced in" in body
    assert "https://huggingface.co/papers/2601.14700" in body
    assert "DARL: Encouraging Diverse Answers for General Reasoning without Verifiers" in body
    assert re.search(r"eprint\s*= \{arXiv:2601\.14700\}", body)
    assert re.search(r"eprint\s*= \{arXiv:2506\.18254\}", body)
    for other in ("Darling", "2402.03300", "DeepSeekMath", "2509.02534"):
        assert other not in body
    for entry in re.findall(r"```bibtex\n(.*?)```", body, flags=re.DOTALL):
        assert entry.count("{") == entry.count("}")
        assert re.match(r"@\w+\{\w+,\n", entry)
