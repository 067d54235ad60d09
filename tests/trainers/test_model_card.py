# SPDX-License-Identifier: Apache-2.0
"""The model card names Darling, its paper and TRL, and no place on this machine."""

import pytest
import yaml
from peft import LoraConfig

from tests.trainers.helpers import make_trainer


@pytest.fixture(scope="module")
def trainer(tmp_path_factory, causal_lm_path):
    return make_trainer(tmp_path_factory.mktemp("card") / "tiny-darling", causal_lm_path)


def written(trainer, **kwargs):
    trainer.create_model_card(**kwargs)
    with open(f"{trainer.args.output_dir}/README.md") as file:
        text = file.read()
    _, header, body = text.split("---\n", 2)
    return yaml.safe_load(header), body


def test_card_names_the_method_its_paper_and_trl(trainer):
    header, body = written(trainer, model_name="tiny", tags="animals")
    assert "This model was trained with Darling" in body
    assert "https://huggingface.co/papers/2509.02534" in body
    assert "Jointly Reinforcing Diversity and Quality in Language Model Generations" in body
    assert "Cite Darling as:" in body and "eprint  = {arXiv:2509.02534}" in body
    assert "[TRL](https://github.com/huggingface/trl)" in body and "Cite TRL as:" in body
    assert "GRPO" not in body and "2402.03300" not in body
    assert {"trl", "grpo", "darling", "animals", "generated_from_trainer"} <= set(header["tags"])
    assert header["library_name"] == "transformers"


def test_card_of_a_local_base_model_and_a_local_data_set(trainer, causal_lm_path, tmp_path, monkeypatch):
    """FC-065, FC-066: a path as base model or data set tells about this machine, and the Hub refuses it."""
    data = tmp_path / "train.jsonl"
    data.write_text("{}")
    monkeypatch.chdir(tmp_path)
    for dataset_name in ("/data/train.jsonl", str(data), "train.jsonl"):
        header, body = written(trainer, model_name="tiny", dataset_name=dataset_name)
        assert "base_model" not in header and "datasets" not in header
        text = yaml.safe_dump(header) + body
        for path in (causal_lm_path, str(tmp_path), "/data", "train.jsonl", str(trainer.args.output_dir)):
            assert path not in text
        assert "fine-tuned version of a local checkpoint" in body
        assert "None" not in body and 'model="tiny"' in body


def test_card_of_a_base_model_whose_folder_is_gone(trainer, monkeypatch):
    """TRL takes a path that is not there for a name on the Hub."""
    monkeypatch.setattr(trainer.model.config, "_name_or_path", "/data/local-model")
    header, body = written(trainer, model_name="tiny")
    assert "base_model" not in header
    assert "/data" not in body and "fine-tuned version of a local checkpoint" in body
    assert "darling" in header["tags"] and header["library_name"] == "transformers"


def test_card_of_models_and_data_on_the_hub(trainer, monkeypatch):
    monkeypatch.setattr(trainer.model.config, "_name_or_path", "someone/base-model")
    header, body = written(trainer, model_name="tiny", dataset_name="someone/prompts")
    assert header["base_model"] == "someone/base-model" and header["datasets"] == "someone/prompts"
    assert "[someone/base-model](https://huggingface.co/someone/base-model)" in body


def test_card_without_a_name_takes_that_of_the_output_folder(trainer):
    header, body = written(trainer)
    assert "# Model Card for tiny-darling" in body
    assert "None" not in body
    assert header["model_name"] == "tiny-darling"


def test_every_checkpoint_refreshes_the_card(tmp_path, causal_lm_path):
    trainer = make_trainer(
        tmp_path / "tiny-lora",
        causal_lm_path,
        trainer_settings={"peft_config": LoraConfig(r=2)},
        save_strategy="steps",
        save_steps=1,
    )
    trainer.train()
    text = (tmp_path / "tiny-lora" / "README.md").read_text()
    assert "trained with Darling" in text and "# Model Card for tiny-lora" in text and "None" not in text


def test_the_model_itself_carries_the_tags(trainer):
    assert {"trl", "grpo", "darling"} <= set(trainer.model.model_tags)


def test_card_of_a_run_in_which_some_metrics_were_not_numbers(trainer, monkeypatch):
    """A resumed run's history holds None where a value was NaN."""
    history = [
        {"step": 1, "reward": None, "diversity/mean": 0.5},
        {"step": 2, "reward": 0.25, "diversity/mean": float("nan")},
        {"step": 3, "reward": 0.75},
    ]
    monkeypatch.setattr(trainer.state, "log_history", history)
    _, body = written(trainer, model_name="tiny")
    assert "| `reward` | 0.25 | 0.75 |" in body
    assert "| `diversity/mean` | 0.5 | 0.5 |" in body
    assert "nan" not in body.lower().split("metric")[1]
