# SPDX-License-Identifier: Apache-2.0
"""Every member of TRL and transformers that the trainers rely on; widen the version range only while this passes."""

import contextlib
import importlib
import inspect
from dataclasses import fields
from importlib.metadata import version

import pytest
import torch
import transformers
from transformers import Trainer, TrainerState
from transformers import trainer as transformers_trainer
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer import grpo_trainer
from trl.trainer.utils import get_config_model_id, is_async_callable, pad

from tests.trainers.helpers import fix_completions, make_trainer, record_outputs
from trl_diversity.trainers.clean_saving import CleanSaving


def relied_on(holds, member, purpose, found=None):
    """Fail with the member that changed and what it was used for."""
    if not holds:
        found = "" if found is None else f" Found: {found}."
        pytest.fail(
            f"{member} is not as trl_diversity relies on it (trl {version('trl')}, transformers "
            f"{transformers.__version__}).{found} It is used for: {purpose}."
        )


# Member, its parameters in order (those we pass or take), and what we use it for.
SIGNATURES = [
    (
        "trl.GRPOTrainer._calculate_rewards",
        ["self", "inputs", "prompts", "completions", "completion_ids_list"],
        "the hook that both trainers override to fill their column",
    ),
    ("trl.GRPOTrainer._generate", ["self", "prompts"], "keeping the sampled ids, which the hook is not given"),
    ("trl.GRPOTrainer._get_train_sampler", ["self", "dataset"], "the order of prompts of a resumed run"),
    ("trl.GRPOTrainer._log_metric", ["self", "name", "value"], "logging diversity/*, quality/* and darl/*"),
    ("trl.GRPOTrainer._log_completion_extra", ["self", "column", "values"], "our columns of the completions table"),
    ("trl.GRPOTrainer._tokenize_prompts", ["self", "prompts"], "the prompts of DARL's baseline"),
    (
        "trl.GRPOTrainer._get_per_token_logps_and_entropies",
        ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"],
        "the likelihood of completions (Unlikeliness)",
    ),
    (
        "trl.GRPOTrainer.create_model_card",
        ["self", "model_name", "dataset_name", "tags"],
        "a card without local paths",
    ),
    ("trl.GRPOTrainer._save_checkpoint", ["self", "model", "trial"], "a trainer state without local paths"),
    ("transformers.Trainer._save", ["self", "output_dir", "state_dict"], "saved arguments without secrets"),
    ("transformers.Trainer._push_from_checkpoint", ["self", "checkpoint_folder"], "uploads without secrets"),
    ("transformers.Trainer.save_state", ["self"], "a trainer state without local paths"),
    ("transformers.Trainer._get_output_dir", ["self", "trial"], "finding the checkpoint that was saved"),
    ("trl.trainer.utils.is_async_callable", ["func"], "guarding asynchronous reward functions as such"),
    ("trl.trainer.utils.get_config_model_id", ["config"], "the name of the default output folder, and the card"),
    ("trl.trainer.utils.pad", ["tensors", "padding_value", "padding_side"], "batches of sampled ids"),
    (
        "trl.models.utils.disable_gradient_checkpointing",
        ["model", "gradient_checkpointing_kwargs"],
        "the forward pass of Unlikeliness",
    ),
    ("trl.models.prepare_deepspeed", ["model", "accelerator"], "DARL's frozen scorer under DeepSpeed"),
    ("transformers.trainer_callback.ExportableState.from_state", ["state"], "what DARL remembers between steps"),
    ("trl.TrlParser.__init__", ["self", "dataclass_types"], "the command line"),
]


@pytest.mark.parametrize(("member", "expected", "purpose"), SIGNATURES, ids=[row[0] for row in SIGNATURES])
def test_signatures(member, expected, purpose):
    value = importlib.import_module(member.partition(".")[0])
    for depth, part in enumerate(member.split(".")[1:], start=2):
        if inspect.ismodule(value) and not hasattr(value, part):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(".".join(member.split(".")[:depth]))
        value = getattr(value, part, None)
        relied_on(value is not None, member, purpose, "it is gone")
    found = list(inspect.signature(value).parameters)
    relied_on(found[: len(expected)] == expected, member, purpose, f"parameters {found}")


def test_new_arguments_of_the_trainer_are_passed_on():
    found = list(inspect.signature(GRPOTrainer.__init__).parameters)
    ours = list(inspect.signature(importlib.import_module("trl_diversity").DarlingTrainer.__init__).parameters)
    relied_on(ours[:-1] == found, "GRPOTrainer.__init__", "the same arguments in the same order", f"{found}")


CONFIG_FIELDS = """
    scale_rewards loss_type num_generations num_generations_eval temperature learning_rate beta reward_weights
    use_bias_correction_kl vllm_importance_sampling_correction multi_objective_aggregation num_iterations
    steps_per_generation gradient_accumulation_steps save_steps save_strategy per_device_train_batch_size hub_token
    gradient_checkpointing_kwargs trust_remote_code output_dir log_completions remove_unused_columns
""".split()


def test_fields_of_the_configuration():
    missing = set(CONFIG_FIELDS) - {field.name for field in fields(GRPOConfig)}
    relied_on(not missing, "GRPOConfig", "defaults and checks of our configurations", f"missing {sorted(missing)}")
    state = {field.name for field in fields(TrainerState)}
    needed = {"best_model_checkpoint", "best_global_step", "save_steps", "global_step", "log_history"}
    relied_on(needed <= state, "TrainerState", "finding the best checkpoint on resume", f"missing {needed - state}")
    for name in ("TRAINER_STATE_NAME", "TRAINING_ARGS_NAME", "PREFIX_CHECKPOINT_DIR"):
        relied_on(hasattr(transformers_trainer, name), f"transformers.trainer.{name}", "cleaning what is saved")


def test_places_that_save_the_training_arguments():
    """A third place would need its own cleaning."""
    places = {
        name
        for name, function in inspect.getmembers(Trainer, inspect.isfunction)
        if "torch.save(self.args" in inspect.getsource(function)
    }
    relied_on(
        places == {"_save", "_push_from_checkpoint"}, "Trainer", "saving no token: `torch.save(self.args", f"{places}"
    )
    overridden = {name for name in places if name in vars(CleanSaving)}
    assert overridden == places
    in_trl = {
        name
        for name, function in inspect.getmembers(GRPOTrainer, inspect.isfunction)
        if function.__module__.startswith("trl") and "torch.save(" in inspect.getsource(function)
    }
    relied_on(not in_trl, "GRPOTrainer", "saving no token", f"torch.save in {in_trl}")


def first(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def second(completions, **kwargs):
    return [None if "b" in completion else 1.0 for completion in completions]


TEXTS = ["a", "bb", "ccc", "dddd"]


@pytest.fixture
def grpo(tmp_path, causal_lm_path):
    trainer = make_trainer(
        tmp_path,
        causal_lm_path,
        [first, second],
        trainer_class=GRPOTrainer,
        reward_weights=[1.0, 2.0],
        scale_rewards="none",
        num_generations_eval=2,
    )
    fix_completions(trainer, {f"p{index}": TEXTS for index in range(4)})
    return trainer


def test_attributes_of_a_constructed_trainer(grpo):
    expected = {
        "reward_funcs": [first, second],
        "reward_func_names": ["first", "second"],
        "reward_processing_classes": [None, None],
        "num_generations": 4,
        "num_generations_eval": 2,
        "rollout_func": None,
        "_is_vlm": False,
    }
    for name, value in expected.items():
        found = getattr(grpo, name, "nothing")
        relied_on(found == value, f"GRPOTrainer.{name}", "appending our column, or finding the groups", found)
    weights = grpo.reward_weights
    is_tensor = isinstance(weights, torch.Tensor) and weights.tolist() == [1.0, 2.0]
    relied_on(is_tensor, "GRPOTrainer.reward_weights", "taking the weights of the user over", weights)
    relied_on(grpo._tokenizer is grpo.processing_class, "GRPOTrainer._tokenizer", "decoding and counting tokens")
    for name in ("_tag_names", "_name", "_paper"):
        relied_on(hasattr(GRPOTrainer, name), f"GRPOTrainer.{name}", "the identity of our trainers on their cards")


def test_the_order_of_prompts_is_drawn_from_a_generator_of_its_own(grpo):
    sampler = GRPOTrainer._get_train_sampler(grpo)
    for name in ("shuffle", "seed", "generator", "num_samples"):
        relied_on(hasattr(sampler, name), f"RepeatSampler.{name}", "repeating the order of an epoch on resume")
    first_epoch, second_epoch = list(sampler), list(sampler)
    relied_on(first_epoch != second_epoch, "RepeatSampler.generator", "a new order in each epoch", first_epoch)
    sampler.generator.manual_seed(sampler.seed)
    torch.randperm(sampler.num_samples, generator=sampler.generator)
    relied_on(list(sampler) == second_epoch, "RepeatSampler.generator", "one permutation of `num_samples` an epoch")


def test_the_hook_gives_the_gathered_rewards_of_all_functions(grpo, monkeypatch):
    """Its only collective is its last act: an exception before it would leave the other ranks waiting."""
    calls = []

    def gather(tensor):
        calls.append(tensor.clone())
        return torch.cat([tensor, tensor + 100])

    def forbidden(*args, **kwargs):
        calls.append("another collective")
        raise AssertionError("a collective that trl_diversity does not know of")

    monkeypatch.setattr(grpo_trainer, "gather", gather)
    monkeypatch.setattr(grpo_trainer, "gather_object", forbidden)
    for name in ("gather", "gather_for_metrics", "reduce", "pad_across_processes", "wait_for_everyone"):
        monkeypatch.setattr(grpo.accelerator, name, forbidden)
    rewards = grpo._calculate_rewards([{"prompt": "p0"}] * 4, ["p0"] * 4, TEXTS, [[1]] * 4)
    purpose = "the hook: errors are kept until TRL's one gather is done"
    relied_on(len(calls) == 1, "GRPOTrainer._calculate_rewards", purpose, f"{len(calls)} collectives")
    relied_on(tuple(rewards.shape) == (8, 2), "GRPOTrainer._calculate_rewards", "gathered (N, functions)", rewards)
    relied_on(rewards[:4, 0].tolist() == [1, 2, 3, 4], "GRPOTrainer._calculate_rewards", "one column a function")
    relied_on(bool(rewards[1, 1].isnan()), "GRPOTrainer._calculate_rewards", "None becomes NaN", rewards[1, 1])


def test_rewards_and_weights_are_read_at_each_step(grpo):
    """The column and its weight are appended after construction."""
    grpo.reward_weights = torch.tensor([0.0, 5.0])
    outputs = record_outputs(grpo)
    calculate = grpo._calculate_rewards
    nan = float("nan")

    def replaced(*args):
        calculate(*args)
        return torch.tensor([[9.0, 1.0], [nan, nan], [9.0, 2.0], [nan, 3.0]])

    grpo._calculate_rewards = replaced
    grpo.train()
    advantages = outputs[0]["advantages"].tolist()
    relied_on(
        advantages == pytest.approx([-5.0, 0.0, 0.0, 5.0]),
        "GRPOTrainer._generate_and_score_completions",
        "advantages = weighted nansum - mean of the group, none where all columns are NaN",
        advantages,
    )


def test_logged_metrics_and_columns(grpo):
    """Metrics are averaged; a column takes this rank's values and lies beside the completions."""
    calculate = grpo._calculate_rewards

    def logging(*args):
        rewards = calculate(*args)
        grpo._log_metric("mine/value", 3.0)
        grpo._log_completion_extra("mine", list(range(4)))
        return rewards

    grpo._calculate_rewards = logging
    grpo.train()
    logged = [entry.get("mine/value") for entry in grpo.state.log_history]
    relied_on(3.0 in logged, "GRPOTrainer._log_metric", "logging our metrics", logged)
    column = list(grpo._logs["extra"]["mine"])
    relied_on(column == [0, 1, 2, 3], "GRPOTrainer._log_completion_extra", "columns of the table", column)


def test_sampled_ids_come_first(grpo):
    prompt_ids, completion_ids = grpo._generate(["p0", "p1"])[:2]
    tokenizer = grpo.processing_class
    expected = [tokenizer(prompt)["input_ids"] for prompt in ("p0", "p1")]
    relied_on(prompt_ids == expected, "GRPOTrainer._generate", "prompt ids, first output", prompt_ids)
    texts = [tokenizer.decode(ids[:-1]) for ids in completion_ids]
    relied_on(texts == ["a", "a"], "GRPOTrainer._generate", "completion ids, second output", completion_ids)


def test_log_probabilities_of_the_last_tokens(grpo):
    ids = torch.tensor([[0, 38, 7, 8, 9], [5, 6, 7, 8, 0]])
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
    output = grpo._get_per_token_logps_and_entropies(grpo.model, ids, mask, 3, batch_size=1)
    member = "GRPOTrainer._get_per_token_logps_and_entropies"
    relied_on(len(output) == 3, member, "log-probabilities are the first of three outputs", len(output))
    relied_on(tuple(output[0].shape) == (2, 3), member, "one value for each of the last tokens", output[0].shape)
    relied_on(bool(torch.isfinite(output[0]).all()), member, "padding is masked by us, so it must be finite", output)


class AsyncObject:
    async def __call__(self):
        return None


def test_small_helpers(grpo):
    relied_on(is_async_callable(AsyncObject()), "is_async_callable", "objects with an async __call__")
    relied_on(not is_async_callable(first), "is_async_callable", "plain functions")
    padded = pad([torch.tensor([1]), torch.tensor([2, 3])], padding_value=9, padding_side="left")
    relied_on(padded.tolist() == [[9, 1], [2, 3]], "pad", "prompts on the left", padded)
    config = transformers.LlamaConfig()
    config._name_or_path = "org/model"
    relied_on(get_config_model_id(config) == "org/model", "get_config_model_id", "the name of the base model")
    with disable_gradient_checkpointing(grpo.model, None) as nothing:
        relied_on(nothing is None, "disable_gradient_checkpointing", "a context around one forward pass")


def test_the_card_of_a_local_base_model(grpo):
    """Its template says None where it has no name; our card says what it is instead."""
    grpo.create_model_card(model_name="tiny")
    with open(f"{grpo.args.output_dir}/README.md") as file:
        text = file.read()
    for part in ("[None](https://huggingface.co/None)", 'model="None"', "trained with GRPO", "Cite GRPO as:"):
        relied_on(part in text, "the template of TRL's model card", f"replacing {part!r}")
