# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity darl`: a short run with everything it leaves behind, and its own arguments."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests import tiny
from trl_diversity.scripts import darl


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of two steps on questions with numeric references, and without any reward function."""
    folder = tmp_path_factory.mktemp("darl")
    model = tiny.save_tiny_causal_lm(folder / "policy")
    rows = [{"question": f"{number} + 1 = ?", "sum": number + 1} for number in range(4)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.yaml").write_text(
        f"model_name_or_path: {model}\n"
        f"dataset_name: {folder / 'train.jsonl'}\n"
        f"output_dir: {folder / 'out'}\n"
        "prompt_column: question\n"
        "reference_column: sum\n"
        "instruction: r1_nothink\n"
        "answer_format: '(?s)(.+)'\n"  # a random policy writes no tags: all it writes is the answer
        "num_generations: 2\n"
        "per_device_train_batch_size: 4\n"
        "max_completion_length: 12\n"
        "max_steps: 2\n"
        "logging_steps: 1\n"
        "log_completions: true\n"
        "use_cpu: true\n"
        "bf16: false\n"
        "gradient_checkpointing: false\n"
        "report_to: none\n"
    )
    darl.run(["--config", str(folder / "run.yaml"), "--save_strategy", "no"])
    return folder / "out"


def test_a_run_leaves_model_and_card(finished_run: Path) -> None:
    card = (finished_run / "README.md").read_text()
    assert "Darl" in card and "2601.14700" in card and "2506.18254" in card
    assert (finished_run / "model.safetensors").is_file()


def test_the_instruction_opens_every_prompt_and_the_references_are_scored(finished_run: Path) -> None:
    table = pd.concat(pd.read_parquet(path) for path in sorted((finished_run / "completions").glob("*.parquet")))
    assert len(table) == 8
    assert all(prompt[0]["content"] == darl.INSTRUCTIONS["r1_nothink"] for prompt in table["prompt"])
    well_formed = table[table["malformed"].isna()]
    assert len(well_formed) and well_formed["reference_prob"].between(0, 1).all()
    expected = 0.9 * well_formed["reference_prob"] + 0.1  # the bonus weighs at most 0.01 / 8 of the likelihood
    assert well_formed["darl"].tolist() == pytest.approx(expected.tolist(), abs=2e-3)


def test_an_unknown_instruction_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'r2'.*r1, r1_nothink"):
        darl.DarlScriptArguments(instruction="r2")


def test_two_system_messages_are_refused() -> None:
    with pytest.raises(ValueError, match="`instruction` and `system_prompt`"):
        darl.DarlScriptArguments(instruction="r1", system_prompt="Be brief.")
