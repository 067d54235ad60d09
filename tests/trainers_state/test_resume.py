# SPDX-License-Identifier: Apache-2.0
"""A run that was interrupted between two generations and resumed is the run that was not interrupted."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from transformers import AutoModelForCausalLM, TrainerCallback

from trl_diversity import DarlingConfig, DarlingTrainer
from trl_diversity.equivalence import load_equivalence_model


# Settings of the run, steps until it is interrupted, and steps in all.
VARIANTS: dict[str, tuple[dict[str, Any], int, int]] = {
    "plain": ({}, 2, 4),
    "steps_per_generation": ({"steps_per_generation": 4, "save_steps": 4}, 4, 8),
    "accumulation": ({"steps_per_generation": 4, "gradient_accumulation_steps": 2}, 2, 4),
    "num_iterations": ({"num_iterations": 2}, 2, 4),
    "reference": ({"beta": 0.1}, 2, 4),
    "lora": ({"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)}, 2, 4),
    "six_steps": ({"save_steps": 3}, 3, 6),  # the case FC-059
}


class CommonLetterEquivalence:
    """Two texts mean the same if more than a third of their letters are common to both."""

    threshold = 0.34

    def score_pairs(self, pairs: list[tuple[str, str]], prompts: list[str] | None = None) -> list[float]:
        return [len(set(a) & set(b)) / max(len(set(a) | set(b)), 1) for a, b in pairs]


class Interrupt(TrainerCallback):
    """Ends a run after some steps, as a machine that is taken away would."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = control.should_training_stop or state.global_step == self.step


class PromptRecorder:
    """A reward function that remembers the prompts and completions of every step."""

    __name__ = "novel_letters"

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[str], list[str]]] = []

    def __call__(self, prompts: list[str], completions: list[str], trainer_state: Any, **kwargs: Any) -> list[float]:
        self.seen.append((trainer_state.global_step, list(prompts), list(completions)))
        return [len(set(completion)) / 10 for completion in completions]


def build(policy: str, output_dir: Path, config: dict[str, Any], max_steps: int, **kwargs: Any) -> DarlingTrainer:
    config = {"save_steps": 2, "beta": 0.0} | config
    peft_config = config.pop("peft_config", None)
    args = DarlingConfig(
        output_dir=str(output_dir),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        max_steps=max_steps,
        learning_rate=1e-2,  # high, so that two steps change what is sampled
        logging_steps=1,
        seed=42,
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        **config,
    )
    return DarlingTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32),
        reward_funcs=PromptRecorder(),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [f"question {index}" for index in range(16)]}),
        peft_config=peft_config,
        **({"diversity": CommonLetterEquivalence()} | kwargs),
    )


def logged(trainer: DarlingTrainer) -> list[dict[str, float]]:
    """Everything that was logged, but what depends on the clock."""
    return [
        {key: value for key, value in entry.items() if not any(word in key for word in ("time", "second"))}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_resumed_run_equals_the_whole_run(causal_lm_path: str, tmp_path: Path, variant: str) -> None:
    config, interruption, max_steps = VARIANTS[variant]
    whole = build(causal_lm_path, tmp_path / "whole", config, max_steps)
    whole.train()
    interrupted = build(causal_lm_path, tmp_path / "parts", config, max_steps, callbacks=[Interrupt(interruption)])
    interrupted.train()
    assert interrupted.state.global_step == interruption
    torch.manual_seed(999)  # the state of the generator comes from the checkpoint, not from this process
    resumed = build(causal_lm_path, tmp_path / "parts", config, max_steps)
    resumed.train(resume_from_checkpoint=True)

    steps = [entry["step"] for entry in logged(resumed)]
    assert steps == list(range(1, max_steps + 1))
    assert any("reward" in entry and "diversity/mean" in entry for entry in logged(resumed)[interruption:])
    assert logged(resumed) == logged(whole)
    expected, actual = whole.model.state_dict(), resumed.model.state_dict()
    assert expected.keys() == actual.keys()
    for name, weights in expected.items():
        assert torch.equal(weights, actual[name]), name
    assert any(not torch.equal(weights, interrupted.model.state_dict()[name]) for name, weights in expected.items())

    seen_by_whole = [step for step in whole.reward_funcs[0].seen if step[0] >= interruption]
    assert resumed.reward_funcs[0].seen == seen_by_whole  # the same prompts and completions at the later steps
    assert len(seen_by_whole) >= 1


@given(
    save_steps=st.integers(1, 60),
    steps_per_generation=st.integers(1, 8),
    accumulation=st.integers(1, 6),
    num_iterations=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_save_steps_that_cut_a_generation_are_refused_with_the_nearest_valid_value(
    save_steps: int, steps_per_generation: int, accumulation: int, num_iterations: int
) -> None:
    def is_valid(steps: int) -> bool:
        """Whether generations begin anew after this many optimizer steps: count the batches one by one."""
        left = 0
        for _ in range(steps * accumulation):
            left = (left or steps_per_generation * num_iterations) - 1
        return left == 0

    def config() -> DarlingConfig:
        return DarlingConfig(
            output_dir="unused",
            per_device_train_batch_size=4,
            num_generations=4,
            steps_per_generation=steps_per_generation,
            gradient_accumulation_steps=accumulation,
            num_iterations=num_iterations,
            save_steps=save_steps,
            bf16=False,
            use_cpu=True,
            report_to="none",
        )

    if is_valid(save_steps):
        assert config().save_steps == save_steps
        return
    with pytest.raises(ValueError, match=f"`save_steps={save_steps}` cuts a generation") as error:
        config()
    nearest = int(str(error.value).partition("the nearest valid value is ")[2].partition(",")[0])
    assert is_valid(nearest)
    assert not any(is_valid(other) for other in range(1, 200) if abs(other - save_steps) < abs(nearest - save_steps))


@pytest.mark.parametrize(("share", "accepted"), [(0.5, True), (0.25, False)])
def test_save_steps_as_a_share_of_the_run_are_checked_when_it_starts(
    causal_lm_path: str, tmp_path: Path, share: float, accepted: bool
) -> None:
    trainer = build(causal_lm_path, tmp_path, {"steps_per_generation": 2, "save_steps": share}, max_steps=4)
    if accepted:
        trainer.train()
        assert (tmp_path / "checkpoint-2").is_dir()
    else:
        with pytest.raises(ValueError, match="the nearest valid value is 2"):
            trainer.train()
        assert not list(tmp_path.glob("checkpoint-*"))


def test_resuming_within_a_generation_says_so(
    causal_lm_path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a run is saved wherever it is; a longer run may go on from there, but not exactly."""
    config = {"steps_per_generation": 4, "save_steps": 4}
    build(causal_lm_path, tmp_path, config, max_steps=6).train()
    for checkpoint, is_cut in (("checkpoint-4", False), ("checkpoint-6", True)):
        caplog.clear()
        build(causal_lm_path, tmp_path, config, max_steps=7).train(resume_from_checkpoint=str(tmp_path / checkpoint))
        assert any("step 6 cuts a generation batch" in record.message for record in caplog.records) == is_cut
        assert any("cuts a generation" in record.message for record in caplog.records) == is_cut


@pytest.mark.parametrize("model", ["pair_classifier_path", "sentence_transformer_path"])
def test_building_an_equivalence_model_leaves_the_generators_alone(
    causal_lm_path: str, tmp_path: Path, model: str, request: pytest.FixtureRequest
) -> None:
    """The case FC-059: a model that is loaded after the random state would change what is sampled."""
    path = request.getfixturevalue(model)
    before = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist(), torch.get_rng_state()
    load_equivalence_model(path, threshold=0.5, device="cpu")
    assert random.getstate() == before[0]
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])

    completions = []
    for config in ({"diversity_measure": "none"}, {"partition_model": path, "partition_threshold": 0.5}):
        trainer = build(causal_lm_path, tmp_path, config | {"save_strategy": "no"}, max_steps=1, diversity=None)
        trainer.train()
        completions.append(trainer.reward_funcs[0].seen)
    assert completions[0] == completions[1]
