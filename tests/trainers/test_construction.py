# SPDX-License-Identifier: Apache-2.0
"""What building a trainer needs, and what it leaves as it was."""

import inspect
import random

import numpy as np
import pytest
import torch
from transformers import training_args
from trl import GRPOConfig, GRPOTrainer

from tests.trainers.helpers import ExactText, length_reward, logged, make_trainer, prompts_dataset, record_outputs
from trl_diversity.trainers import DarlingConfig, DarlingTrainer


def test_the_arguments_of_grpo_in_their_order_and_diversity_by_keyword():
    theirs = list(inspect.signature(GRPOTrainer.__init__).parameters.values())
    *ours, diversity = inspect.signature(DarlingTrainer.__init__).parameters.values()
    assert [parameter.name for parameter in ours] == [parameter.name for parameter in theirs]
    assert [parameter.default for parameter in ours] == [parameter.default for parameter in theirs]
    assert (diversity.name, diversity.kind, diversity.default) == ("diversity", inspect.Parameter.KEYWORD_ONLY, None)


def test_positional_arguments(tmp_path, causal_lm_path):
    args = make_trainer(tmp_path, causal_lm_path).args
    trainer = DarlingTrainer(
        causal_lm_path, length_reward, args, prompts_dataset(), prompts_dataset(2), diversity=ExactText()
    )
    assert len(trainer.eval_dataset) == 2


def test_without_arguments_a_configuration_is_built(tmp_path, causal_lm_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training_args, "is_torch_bf16_gpu_available", lambda: True)  # TRL's default is bfloat16
    trainer = DarlingTrainer(causal_lm_path, length_reward, train_dataset=prompts_dataset(), diversity=ExactText())
    assert isinstance(trainer.args, DarlingConfig)
    assert trainer.args.output_dir.endswith("-Darling") and trainer.args.num_generations == 8
    with pytest.raises(ValueError, match="`partition_model`.*`diversity=`"):
        DarlingTrainer(causal_lm_path, length_reward, train_dataset=prompts_dataset())


def test_the_configuration_of_grpo_is_refused(tmp_path, causal_lm_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    with pytest.raises(TypeError, match="`DarlingConfig`, got GRPOConfig"):
        DarlingTrainer(causal_lm_path, length_reward, args, prompts_dataset(), diversity=ExactText())


def test_building_the_equivalence_model_moves_no_seed(
    tmp_path, causal_lm_path, pair_classifier_path, sentence_transformer_path
):
    """FC-059: what a run samples does not depend on which model compares its completions."""

    def states(**settings):
        make_trainer(tmp_path, causal_lm_path, **settings)
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    plain = states(diversity_measure="none")
    assert states(partition_model=pair_classifier_path) == plain
    assert states(diversity=sentence_transformer_path) == plain
    assert states(seed=7, diversity_measure="none") != plain


def test_scoring_moves_no_seed(tmp_path, causal_lm_path, pair_classifier_path):
    def completions(**settings):
        trainer = make_trainer(tmp_path, causal_lm_path, max_steps=2, learning_rate=0.0, **settings)
        outputs = record_outputs(trainer)
        trainer.train()
        return [output["completions"] for output in outputs]

    plain = completions(diversity_measure="none")
    assert len(plain) == 2
    assert completions(partition_model=pair_classifier_path) == plain
    assert completions(diversity_measure="unlikeliness") == plain


def test_lists_of_the_user_stay_as_they_are(tmp_path, causal_lm_path, reward_model_path):
    """TRL replaces names by models and fills in tokenizers in the lists that it is given."""
    functions, tokenizers = [length_reward, reward_model_path], [None, None]
    names = []
    for _ in range(2):
        trainer = make_trainer(
            tmp_path, causal_lm_path, functions, trainer_settings={"reward_processing_classes": tokenizers}
        )
        names.append(trainer.reward_func_names)
        trainer.train()
        assert functions == [length_reward, reward_model_path]
        assert tokenizers == [None, None]
    assert names[0] == names[1] and names[0][0] == "length_reward" and names[0][-1] == "darling"
    assert len(names[0]) == 3
    assert logged(trainer, "reward")


def test_one_reward_function_without_a_list(tmp_path, causal_lm_path):
    trainer = make_trainer(tmp_path, causal_lm_path, length_reward)
    assert trainer.reward_func_names == ["length_reward", "darling"]
    assert trainer.reward_funcs[0] is length_reward
    trainer.train()
    assert trainer.reward_funcs[0] is length_reward  # guarded only while rewards are computed


@pytest.mark.parametrize("reward_funcs", [[], None])
def test_no_reward_function_is_refused(tmp_path, causal_lm_path, reward_funcs):
    """FC-019: clearly, and not by a variable that was never set."""
    with pytest.raises(ValueError, match="`reward_funcs`"):
        make_trainer(tmp_path, causal_lm_path, reward_funcs)


def test_weights_that_do_not_fit_are_refused(tmp_path, causal_lm_path):
    with pytest.raises(ValueError, match=r"reward weights \(2\).*\(1\)"):
        make_trainer(tmp_path, causal_lm_path, reward_weights=[1.0, 2.0])


@pytest.mark.parametrize("conversational", [False, True])
def test_texts_for_a_chat_model_are_pointed_out(tmp_path, causal_lm_path, conversational, caplog):
    make_trainer(tmp_path, causal_lm_path, train_dataset=prompts_dataset(conversational=conversational))
    assert ("without its chat template" in caplog.text) is not conversational
