# SPDX-License-Identifier: Apache-2.0
"""The reward-hacking watch: its measures on texts made for the purpose, and what a run logs."""

import pytest
from datasets import Dataset

from tests.trainers.helpers import fix_completions, logged, make_trainer
from trl_diversity import RewardHackingWatch
from trl_diversity.trainers.hacking_watch import text_after_answer, watch_metrics


def test_text_after_the_answer():
    assert text_after_answer("so <answer>4</answer> zq xv") == "zq xv"
    assert text_after_answer("so \\boxed{\\frac{1}{2}} and \\boxed{3}. More") == ". More"
    assert text_after_answer("\\boxed{\\frac{1}{2}}") == "" and text_after_answer("no answer") is None


def test_random_words_after_the_answer_are_seen():
    """What n-gram rewards were hacked with: novel, and worth nothing."""
    honest = [f"The sum of {i} is \\boxed{{{i}}}" for i in range(4)]
    hacked = [f"The sum is \\boxed{{4}} zq{i} xv{i} wk{i} jy{i} qq{i}" for i in range(4)]
    copied = ["The sum is \\boxed{4} I hope this helps you all"] * 4
    prompts = ["What is the sum?"] * 4
    assert watch_metrics(prompts, honest, 4)["tail_words"] == 0
    assert watch_metrics(prompts, honest, 4)["tail_novelty"] == 0
    found = watch_metrics(prompts, hacked, 4)
    assert found["tail_words"] == 5 and found["tail_novelty"] == 1.0
    found = watch_metrics(prompts, copied, 4)
    assert found["tail_words"] == 6 and found["tail_novelty"] == 0.0
    assert "tail_words" not in watch_metrics(prompts, ["no answer"] * 4, 4)


def test_groups_are_told_apart():
    completions = ["\\boxed{1} a b c d", "\\boxed{1} e f g h", "\\boxed{1} a b c d", "\\boxed{1} e f g h"]
    assert watch_metrics(["p"] * 4, completions, 2)["tail_novelty"] == 1.0
    assert watch_metrics(["p"] * 4, completions, 4)["tail_novelty"] == 0.0


def test_other_scripts_are_seen():
    prompts = ["Name a fruit."] * 4
    found = watch_metrics(prompts, ["Apple", "яблоко", "apple яблоко", "123"], 4)
    assert found["other_script"] == pytest.approx(2 / 4)  # as many Latin letters as needed: five against six
    assert found["mixed_scripts"] == pytest.approx((0 + 0 + 5 / 11) / 3)
    japanese = watch_metrics(["果物は?"], ["りんごとミカンと林檎"], 1)
    assert japanese["mixed_scripts"] == 0.0 and japanese["other_script"] == 0.0
    assert watch_metrics(["p"], ["123"], 1) == {"words": 1.0}


def watched(tmp_path, model, **settings):
    texts = {"p0": ["aa <answer>1</answer> x", "bb", "cc", "dd"], "p1": ["aa", "aa", "aa", "Aa"]}

    def reward(completions, **kwargs):
        return [float(len(set(text))) for text in completions]

    trainer = make_trainer(
        tmp_path,
        model,
        reward,
        train_dataset=Dataset.from_dict({"prompt": ["p0", "p1"]}),
        shuffle_dataset=False,
        **settings,
    )
    fix_completions(trainer, texts)
    watch = RewardHackingWatch(trainer)
    trainer.add_callback(watch)
    return trainer, watch


def test_every_generation_is_logged_once(tmp_path, causal_lm_path):
    trainer, watch = watched(tmp_path, causal_lm_path, max_steps=4)
    trainer.train()
    words = logged(trainer, "watch/words")
    assert words[:2] == [pytest.approx((3 + 1 + 1 + 1) / 4), 1.0]
    assert logged(trainer, "watch/tail_words")[0] == 1.0
    assert len(logged(trainer, "watch/quality_for_diversity")) == 3  # there is no average before the first
    # The first generation: qualities 16, 1, 1, 1; the second: 1, 1, 1, 2 with less diversity
    assert 0 <= watch.averages["diversity"] <= 1 and watch.averages["quality"] > 1


def test_completions_that_pay_quality_for_diversity_are_counted():
    watch = RewardHackingWatch()
    assert watch._trade([1.0, 1.0], [0.5, 0.5]) == {}
    assert watch._trade([0.5, 2.0, 0.5, None], [0.9, 0.9, 0.1, 0.9]) == {"quality_for_diversity": pytest.approx(1 / 3)}
    assert watch.averages["quality"] == pytest.approx(0.9 * 1 + 0.1 * 1)
    assert watch._trade([None], [None]) == {}


def test_averages_are_restored_on_resume(tmp_path, causal_lm_path):
    settings = {"save_strategy": "steps", "save_steps": 2}
    whole, _ = watched(tmp_path / "whole", causal_lm_path, max_steps=4, **settings)
    whole.train()
    part, _ = watched(tmp_path / "part", causal_lm_path, max_steps=4, **settings)
    part.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    expected = logged(whole, "watch/quality_for_diversity")
    assert logged(part, "watch/quality_for_diversity")[-2:] == expected[-2:]


def test_a_callback_without_its_trainer_says_so():
    with pytest.raises(ValueError, match="RewardHackingWatch has no trainer"):
        RewardHackingWatch().on_step_end(None, None, None)
