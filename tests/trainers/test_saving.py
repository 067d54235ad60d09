# SPDX-License-Identifier: Apache-2.0
"""What a run saves holds no token and no path of this machine, and still loads back."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from transformers import trainer as transformers_trainer

from tests.trainers.helpers import make_trainer
from trl_diversity.trainers import DarlingConfig


TOKEN = "hf_ConfiguredTokenThatMustNeverBeSaved"
OTHER_TOKEN = "hf_TokenOfTheModelThatMustNotBeSaved"
PASSWORD = "passwordOfTheServer"


def lora():
    return LoraConfig(r=2, lora_alpha=4, init_lora_weights="gaussian")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder whose path is long and holds spaces, which YAML may fold over two lines."""
    return tmp_path_factory.mktemp("home of a user with a long name") / "a place for models and runs" / "of a project"


@pytest.fixture(scope="module")
def base_path(home, causal_lm_path):
    shutil.copytree(causal_lm_path, home / "base model")
    return home / "base model"


@pytest.fixture(scope="module")
def partition_path(home, pair_classifier_path):
    shutil.copytree(pair_classifier_path, home / "classifier")
    return home / "classifier"


def train(output_dir, base_path, partition_path, resume=None, **settings):
    trainer = make_trainer(
        output_dir,
        str(base_path),
        trainer_settings={"peft_config": lora(), "eval_dataset": Dataset.from_dict({"prompt": ["q0"]})},
        partition_model=str(partition_path),
        hub_token=TOKEN,
        model_init_kwargs={"token": OTHER_TOKEN},
        vllm_server_base_url=f"http://user:{PASSWORD}@localhost:8000",
        **{"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 2}
        | {"per_device_eval_batch_size": 4, "log_completions": True, "load_best_model_at_end": True}
        | {"metric_for_best_model": "eval_diversity/mean", "greater_is_better": True}
        | settings,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.fixture(scope="module")
def saved(home, base_path, partition_path):
    """A LoRA run with a checkpoint after each of two steps, and everything that can be saved at its end."""
    trainer = train(home / "output", base_path, partition_path)
    trainer.save_model()
    trainer.save_state()
    trainer.create_model_card(model_name="tiny", dataset_name=str(home / "data.jsonl"))
    return trainer


def leaks(folder, needles):
    """Which of the needles the files of a folder hold."""
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    assert files
    found = []
    for path in files:
        content = path.read_bytes()
        found += [(path.name, needle) for needle in needles if needle.encode() in content]
    return found


def secrets_of(home):
    # The path as a whole, and the part of it that a folded YAML line would still hold.
    return [TOKEN, OTHER_TOKEN, PASSWORD, str(home), "home of a user", "place for models", "of a project"]


def test_a_saved_run_holds_no_token_and_no_path(saved, home):
    output = home / "output"
    names = {path.name for path in output.rglob("*")}
    assert {"training_args.bin", "adapter_config.json", "adapter_model.safetensors", "trainer_state.json"} <= names
    assert {"README.md", "checkpoint-1", "checkpoint-2", "completions_00002.parquet"} <= names
    assert leaks(output, secrets_of(home)) == []


def test_the_search_for_leaks_finds_them(saved, home, tmp_path):
    torch.save(saved.args, tmp_path / "training_args.bin")
    assert {needle for _, needle in leaks(tmp_path, secrets_of(home))} >= {TOKEN, OTHER_TOKEN, str(home)}


def test_the_running_trainer_keeps_its_arguments(saved, home, base_path, partition_path):
    assert saved.args.hub_token == TOKEN
    assert saved.args.output_dir == str(home / "output")
    assert saved.args.partition_model == str(partition_path)
    assert saved.args.model_init_kwargs["token"] == OTHER_TOKEN
    assert saved.model.peft_config["default"].base_model_name_or_path == str(base_path)


@pytest.mark.parametrize("folder", [".", "checkpoint-1", "checkpoint-2"])
def test_training_arguments_load_back(saved, home, folder):
    args = torch.load(home / "output" / folder / "training_args.bin", weights_only=False)
    assert type(args) is DarlingConfig
    assert args.hub_token is None
    assert args.partition_model == "classifier"
    assert args.vllm_server_base_url == "http://localhost:8000"
    for name in ("num_generations", "learning_rate", "save_steps", "diversity_measure", "loss_type", "seed"):
        assert getattr(args, name) == getattr(saved.args, name), name


def test_the_adapter_loads_back(saved, home, base_path):
    base = AutoModelForCausalLM.from_pretrained(base_path)
    loaded = PeftModel.from_pretrained(base, home / "output")
    trained = {name: value for name, value in saved.model.named_parameters() if "lora_" in name}
    assert trained
    for name, value in loaded.named_parameters():
        if "lora_" in name:
            assert torch.equal(value, trained[name]), name


def test_the_best_checkpoint_is_known_after_the_run(saved, home):
    best = saved.state.best_global_step
    assert saved.state.best_model_checkpoint == str(home / "output" / f"checkpoint-{best}")
    state = json.loads((home / "output" / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["best_global_step"] == best
    assert state["best_model_checkpoint"] is None


def test_the_best_checkpoint_survives_a_resumed_run(saved, home, base_path, partition_path, caplog):
    """The saved state has its step alone; the resumed run finds it, keeps it, and loads it at its end."""
    output = home / "resumed"
    shutil.copytree(home / "output", output)
    state_path = output / "checkpoint-1" / "trainer_state.json"
    state = json.loads(state_path.read_text())
    state_path.write_text(json.dumps(state | {"best_metric": 1e9}))  # no later checkpoint is better
    shutil.rmtree(output / "checkpoint-2")
    trainer = train(output, base_path, partition_path, resume=str(output / "checkpoint-1"), save_total_limit=1)
    assert trainer.state.global_step == 2
    assert not any("does not exist anymore" in record.getMessage() for record in caplog.records)
    assert trainer.state.best_model_checkpoint == str(output / "checkpoint-1")
    adapter = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base_path), output / "checkpoint-1")
    for name, value in adapter.named_parameters():
        if "lora_" in name:
            assert torch.equal(value, trainer.model.get_parameter(name)), name
    assert leaks(output, secrets_of(home)) == []


class FakeHub:
    """Keeps a copy of each folder that would be uploaded, or is down."""

    def __init__(self, folder, is_down=False):
        self.folder, self.is_down, self.uploads, self.tokens = folder, is_down, [], []

    def upload_folder(self, folder_path, token=None, **kwargs):
        if self.is_down:
            raise ConnectionError("the Hub is down")
        copy = self.folder / str(len(self.uploads))
        shutil.copytree(folder_path, copy)
        self.uploads.append(copy)
        self.tokens.append(token)


@pytest.fixture
def fake_hub(tmp_path, monkeypatch):
    """What `Trainer` asks of the Hub when it pushes, without a network."""
    hub = FakeHub(tmp_path)
    monkeypatch.setattr(transformers_trainer, "hf_api", lambda: hub, raising=False)
    monkeypatch.setattr(transformers_trainer, "upload_folder", hub.upload_folder, raising=False)
    monkeypatch.setattr(transformers_trainer, "PushInProgress", lambda jobs: None)
    monkeypatch.setattr(transformers_trainer.Trainer, "init_hf_repo", lambda self, token=None: None)
    monkeypatch.setattr(transformers_trainer.Trainer, "push_in_progress", None, raising=False)
    monkeypatch.setattr(transformers_trainer.Trainer, "hub_model_id", "user/tiny", raising=False)
    return hub


PUSHING = {"push_to_hub": True, "load_best_model_at_end": False, "max_steps": 1}


@pytest.mark.parametrize(("strategy", "uploads"), [("every_save", 1), ("checkpoint", 2)])
def test_an_upload_holds_no_token_and_no_path(home, base_path, partition_path, fake_hub, strategy, uploads):
    """Transformers writes the training arguments once more before each upload."""
    output = home / f"pushed {strategy}"
    trainer = train(output, base_path, partition_path, hub_strategy=strategy, **PUSHING)
    assert fake_hub.tokens == [TOKEN] * uploads
    for upload in fake_hub.uploads:
        assert leaks(upload, secrets_of(home)) == []
        args = torch.load(upload / "training_args.bin", weights_only=False)
        assert type(args) is DarlingConfig and args.num_generations == 4
    assert type(trainer.args) is DarlingConfig and trainer.args.hub_token == TOKEN


def test_a_hub_that_is_down_is_told_after_the_checkpoint_is_on_disk(home, base_path, partition_path, fake_hub):
    """FC-067, for our trainers."""
    fake_hub.is_down = True
    output = home / "not pushed"
    with pytest.raises(ConnectionError, match="the Hub is down"):
        train(output, base_path, partition_path, hub_strategy="checkpoint", **PUSHING)
    names = {path.name for path in (output / "checkpoint-1").iterdir()}
    assert {"adapter_model.safetensors", "trainer_state.json", "optimizer.pt", "training_args.bin"} <= names
    assert leaks(output, secrets_of(home)) == []


def test_an_adapter_that_is_trained_further_is_saved_without_paths(home, base_path, tmp_path):
    """With `beta` above 0 TRL adds a second adapter, whose folder has its own configuration."""
    policy = get_peft_model(AutoModelForCausalLM.from_pretrained(base_path), lora())
    trainer = make_trainer(home / "further", policy, beta=0.01)
    trainer.train()
    trainer.save_model(str(tmp_path))
    assert len(list(tmp_path.rglob("adapter_config.json"))) == 2
    assert leaks(tmp_path, secrets_of(home)) == []


def test_a_full_model_is_saved_without_paths(home, base_path):
    trainer = make_trainer(home / "full", str(base_path), save_strategy="steps", save_steps=1)
    trainer.train()
    trainer.save_model()
    assert leaks(home / "full", secrets_of(home)) == []
    AutoModelForCausalLM.from_pretrained(home / "full")


def test_saving_into_a_folder_with_the_adapters_of_others(home, base_path, tmp_path):
    """Only what this run saved is rewritten, not what lies beside it."""
    foreign = tmp_path / "another run" / "adapter_config.json"
    foreign.parent.mkdir()
    foreign.write_text(json.dumps({"base_model_name_or_path": str(base_path)}))
    trainer = make_trainer(home / "beside", str(base_path), trainer_settings={"peft_config": lora()})
    trainer.save_model(str(tmp_path))
    assert json.loads(foreign.read_text())["base_model_name_or_path"] == str(base_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] is None
