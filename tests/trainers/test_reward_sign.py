# SPDX-License-Identifier: Apache-2.0
"""Saying it once more never pays, whatever sign and scale the qualities have: field cases, through the trainer."""

import math

import pytest
from datasets import Dataset

from tests.trainers.helpers import FixedDiversity, fix_completions, logged, make_trainer, record_outputs
from trl_diversity.diversity import GroupDiversity


def step(tmp_path, model, texts, quality, **settings):
    """The advantages of one group of texts, and its trainer."""
    quality = dict(zip(texts, quality, strict=True)) if not callable(quality) else quality
    trainer = make_trainer(
        tmp_path,
        model,
        lambda completions, **kwargs: [quality[text] for text in completions],
        train_dataset=Dataset.from_dict({"prompt": ["p0"]}),
        **{"num_generations": len(texts), "per_device_train_batch_size": len(texts)} | settings,
    )
    fix_completions(trainer, {"p0": texts})
    outputs = record_outputs(trainer)
    trainer.train()
    return outputs[0]["advantages"].tolist(), trainer


ONE_AND_THREE = ["unique", "same", "Same", "SAME"]


def test_among_equal_negative_qualities_the_unique_answer_is_not_worst(tmp_path, causal_lm_path):
    """FC-160. Lifted to 0, all are worth the same: the letter of the product would put the unique one last."""
    advantages, trainer = step(tmp_path, causal_lm_path, ONE_AND_THREE, [-2.0] * 4)
    assert advantages[0] >= max(advantages[1:])
    assert logged(trainer, "quality/negative_fraction") == [1.0]
    advantages, _ = step(tmp_path, causal_lm_path, ONE_AND_THREE, [-2.0] * 4, quality_shift="sigmoid")
    assert advantages[0] > max(advantages[1:])
    with pytest.raises(ValueError, match="4 of 4 quality rewards are negative"):
        step(tmp_path, causal_lm_path, ONE_AND_THREE, [-2.0] * 4, quality_shift="none")


def test_rewards_like_those_of_a_preference_model(tmp_path, causal_lm_path):
    """Mostly negative: a unique answer is above its equals that were said twice."""
    texts = ["twice", "TWICE", "once", "worst", "fine"]
    advantages, _ = step(tmp_path, causal_lm_path, texts, [-1.0, -1.0, -1.0, -4.7, 0.4])
    assert advantages[2] > advantages[0] == pytest.approx(advantages[1])
    assert min(advantages) == advantages[3]


def test_copying_does_not_pay(tmp_path, causal_lm_path):
    """FC-162: -1 with diversity 0 is not better than -1 said once, and quality keeps its order."""

    def measure(scores):
        return FixedDiversity(scores)

    texts = ["good", "bad", "poor"]
    copied, _ = step(tmp_path, causal_lm_path, texts, [-1.0, -6.0, -3.0], diversity=measure([0.0, 1.0, 1.0]))
    single, _ = step(tmp_path, causal_lm_path, texts, [-1.0, -6.0, -3.0], diversity=measure([1.0, 1.0, 1.0]))
    assert single[0] > single[2] > single[1]
    assert copied[0] < single[0]


def test_no_factor_is_negative(tmp_path, causal_lm_path):
    """FC-161: a measure that gives a negative diversity is refused, so that two negatives never make a reward."""

    class Scaled:
        name, needs_logprobs = "z-scores", False

        def __call__(self, groups):
            return [GroupDiversity([-0.5, 0.5, 0.0, 0.0]) for _ in groups]

    with pytest.raises(ValueError, match="'z-scores' gave the score -0.5"):
        step(tmp_path, causal_lm_path, ONE_AND_THREE, [-5.0, 1.0, 1.0, 1.0], diversity=Scaled())


@pytest.mark.parametrize("norm", ["linear", "sigmoid", "minmax", "inverse_size"])
def test_a_group_that_says_one_thing_has_no_signal(tmp_path, causal_lm_path, norm):
    """FC-166: 0/0 in a norm is handled, advantages are 0, and the log says why."""
    texts = ["one", "One", "ONE", "oNE"]
    for quality in (1.0, 0.0, -2.0):
        advantages, trainer = step(tmp_path, causal_lm_path, texts, [quality] * 4, diversity_norm=norm)
        assert advantages == [0.0] * 4
        assert logged(trainer, "frac_reward_zero_std") == [1.0]
        assert logged(trainer, "diversity/zero_std_groups") == [1.0]
        assert logged(trainer, "diversity/collapsed_groups") == [1.0]
        assert math.isfinite(logged(trainer, "reward")[0])


def test_all_correct_answers_keep_their_diversity_signal(tmp_path, causal_lm_path):
    advantages, _ = step(tmp_path, causal_lm_path, ONE_AND_THREE, [1.0] * 4)
    assert advantages[0] > 0 > max(advantages[1:])
    advantages, _ = step(tmp_path, causal_lm_path, ONE_AND_THREE, [1.0] * 4, quality_shift="group_min")
    assert advantages == [0.0] * 4  # as documented


def test_answers_that_cannot_be_judged_do_not_train_on_diversity(tmp_path, causal_lm_path, caplog):
    """FC-169: a reward function abstains with None; a constant would be multiplied by diversity."""
    texts = ["a", "b", "c", "C"]
    advantages, trainer = step(tmp_path, causal_lm_path, texts, [None] * 4)
    assert advantages == [0.0] * 4
    assert logged(trainer, "reward") == [None] and not logged(trainer, "quality/mean")
    assert any("No reward function gave a reward to 4" in record.getMessage() for record in caplog.records)
    advantages, _ = step(tmp_path, causal_lm_path, texts, [1.0, None, 1.0, 1.0])
    assert advantages[1] == 0.0 and advantages[0] > 0 > advantages[2]
