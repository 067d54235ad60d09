# SPDX-License-Identifier: Apache-2.0
"""Plain GRPO collapses onto one meaning; Darling keeps them all at nearly the same quality."""

import functools
import time
from collections.abc import Callable

import pytest
from datasets import Dataset
from transformers import LlamaForCausalLM

from tests.learning.word_policy import GOOD, MEANINGS, PROMPTS, outcome, quality, word_policy, word_tokenizer
from trl_diversity import DarlingConfig, DarlingTrainer


# The only setting in which the runs differ.
ARMS = {
    "GRPO": "none",
    "Darling": "tests.learning.word_policy.SameMeaning",
    "exact match": "tests.learning.word_policy.SameText",
    "n-gram": "ngram",
}
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, float]]:
    """What an arm has learned with a seed: trained when it is first asked for, and shown (`pytest -s`)."""
    print("\narm          seed  meanings of 4  words of 8  quality  seconds")

    @functools.cache
    def outcome_of(arm: str, seed: int) -> dict[str, float]:
        started = time.perf_counter()
        result = outcome(word_policy(seed) if arm == "untrained" else _train(arm, seed, tmp_path_factory))
        seconds = time.perf_counter() - started
        numbers = f"{result['meanings']:>14.2f} {result['words']:>11.2f} {result['quality']:>8.3f} {seconds:>8.1f}"
        print(f"{arm:<12} {seed:>4} {numbers}")
        return result

    return outcome_of


def _train(arm: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    args = DarlingConfig(
        output_dir=str(tmp_path_factory.mktemp("collapse")),
        diversity_measure=ARMS[arm],
        seed=seed,
        # As the paper: no division by the standard deviation, mean over the tokens of the batch; no KL term
        scale_rewards="none",
        loss_type="dapo",
        beta=0.0,
        # Far above the paper's rate of 1e-6, so that 150 steps are enough for a policy of 10,000 weights
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        max_steps=150,
        # One token is an answer; large groups, so that every meaning is usually in each of them
        max_completion_length=1,
        num_generations=32,
        per_device_train_batch_size=32 * len(PROMPTS),
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = DarlingTrainer(
        model=word_policy(seed),
        reward_funcs=quality,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=word_tokenizer(),
    )
    trainer.train()
    return trainer.model


@pytest.mark.parametrize("seed", SEEDS)
def test_untrained_policy_has_far_to_go(trained: Callable[[str, int], dict[str, float]], seed: int) -> None:
    assert trained("untrained", seed)["quality"] < 0.5


@pytest.mark.parametrize("seed", SEEDS)
def test_grpo_collapses(trained: Callable[[str, int], dict[str, float]], seed: int) -> None:
    assert trained("GRPO", seed)["meanings"] < 2
    assert trained("GRPO", seed)["quality"] > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_darling_keeps_the_meanings_and_the_quality(
    trained: Callable[[str, int], dict[str, float]], seed: int
) -> None:
    assert trained("Darling", seed)["meanings"] > 3.5
    assert trained("Darling", seed)["quality"] > 0.95 * trained("GRPO", seed)["quality"]


@pytest.mark.parametrize(
    ("arm", "seed"),
    [
        ("exact match", SEEDS[0]),
        *(pytest.param("exact match", seed, marks=pytest.mark.slow) for seed in SEEDS[1:]),
        *(pytest.param("n-gram", seed, marks=pytest.mark.slow) for seed in SEEDS),
    ],
)
def test_diversity_of_words_is_not_diversity_of_meanings(
    trained: Callable[[str, int], dict[str, float]], arm: str, seed: int
) -> None:
    """Five of the eight words mean the same: who spreads over words says it in five of eight answers."""
    lexical, darling = trained(arm, seed), trained("Darling", seed)
    assert lexical["words"] > 0.8 * len(GOOD)
    assert lexical["words"] > darling["words"] + 1
    assert lexical["meanings"] < 0.85 * len(MEANINGS) < darling["meanings"]
