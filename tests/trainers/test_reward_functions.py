# SPDX-License-Identifier: Apache-2.0
"""Reward functions of every kind reach the reward, and those that fail do so by name."""

import asyncio
import functools
import math
import time

import numpy as np
import pytest
import torch
from datasets import Dataset

from tests.trainers.helpers import (
    FixedDiversity,
    fix_completions,
    logged,
    make_trainer,
    prompts_dataset,
    record_outputs,
    table_lookup,
    text_of,
)


TEXTS = ["red", "RED", "blue", "green"]
DIVERSITY = [2 / 3, 2 / 3, 1.0, 1.0]
LENGTHS = [3.0, 3.0, 4.0, 5.0]


def sync_length(completions, **kwargs):
    return [len(text_of(completion)) for completion in completions]


async def async_length(completions, **kwargs):
    await asyncio.sleep(0)
    return [float(len(text_of(completion))) for completion in completions]


async def async_scaled(scale, completions, **kwargs):
    return [scale * value for value in await async_length(completions)]


class SyncLength:
    def __call__(self, completions, **kwargs):
        return sync_length(completions)


class AsyncLength:
    async def __call__(self, completions, **kwargs):
        return await async_length(completions)


def built(tmp_path, model, reward_funcs, **settings):
    trainer = make_trainer(
        tmp_path, model, reward_funcs, train_dataset=Dataset.from_dict({"prompt": ["p0"]}), **settings
    )
    fix_completions(trainer, {"p0": TEXTS})
    return trainer


def rewards(tmp_path, model, reward_funcs, **settings):
    trainer = built(tmp_path, model, reward_funcs, **settings)
    outputs = record_outputs(trainer)
    trainer.train()
    return outputs[0]["rewards_per_func"]


@pytest.mark.parametrize(
    ("function", "factor"),
    [
        pytest.param(sync_length, 1, id="function"),
        pytest.param(SyncLength(), 1, id="object"),
        pytest.param(functools.partial(sync_length, scale=2), 1, id="partial"),
        pytest.param(async_length, 1, id="async-function"),
        pytest.param(AsyncLength(), 1, id="async-object"),
        pytest.param(functools.partial(async_scaled, 2.0), 2, id="async-partial"),
        pytest.param(lambda completions, **kwargs: np.array(sync_length(completions)), 1, id="numpy"),
        pytest.param(lambda completions, **kwargs: torch.tensor(sync_length(completions)), 1, id="tensor"),
        pytest.param(lambda completions, **kwargs: tuple(sync_length(completions)), 1, id="tuple"),
    ],
)
def test_every_kind_of_function_is_multiplied_by_diversity(tmp_path, causal_lm_path, function, factor):
    """FC-017: objects and partials of asynchronous functions are awaited too."""
    columns = rewards(tmp_path, causal_lm_path, function)
    assert columns[:, 0].tolist() == pytest.approx([factor * value for value in LENGTHS])
    expected = [factor * value * div for value, div in zip(LENGTHS, DIVERSITY, strict=True)]
    assert columns[:, 1].tolist() == pytest.approx(expected)


def test_functions_of_several_kinds_together(tmp_path, causal_lm_path):
    columns = rewards(
        tmp_path, causal_lm_path, [AsyncLength(), sync_length, async_length], reward_weights=[1.0, 0.5, 0.25]
    )
    assert columns[:, :3].tolist() == [[value] * 3 for value in LENGTHS]
    expected = [1.75 * value * div for value, div in zip(LENGTHS, DIVERSITY, strict=True)]
    assert columns[:, 3].tolist() == pytest.approx(expected)


def test_asynchronous_functions_wait_together_also_inside_a_running_loop(tmp_path, causal_lm_path):
    """FC-018: as in a notebook, and not one waiting time after the other."""

    def judge(name):
        async def wait(completions, **kwargs):
            await asyncio.sleep(0.3)
            return [1.0] * len(completions)

        wait.__name__ = name
        return wait

    trainer = built(tmp_path, causal_lm_path, [judge("one"), sync_length, judge("two"), judge("three")])

    async def notebook_cell():
        assert asyncio.get_running_loop().is_running()
        started = time.perf_counter()
        trainer.train()
        return time.perf_counter() - started

    assert asyncio.run(notebook_cell()) < 0.85  # three waits in a row take 0.9 s
    assert logged(trainer, "quality/mean") == [pytest.approx(3 + 3.75)]


def test_the_logged_total_is_the_weighted_sum(tmp_path, causal_lm_path):
    """FC-016: before and after diversity, under names of their own."""
    a = table_lookup(dict.fromkeys(TEXTS, 1.0), "a")
    b = table_lookup(dict.fromkeys(TEXTS, 0.0), "b")
    for diversity, total in ((1.0, 0.7), (0.5, 0.35)):
        trainer = built(
            tmp_path, causal_lm_path, [a, b], reward_weights=[0.7, 0.3], diversity=FixedDiversity(diversity)
        )
        trainer.train()
        assert logged(trainer, "quality/mean") == [pytest.approx(0.7)]
        assert logged(trainer, "reward") == [pytest.approx(total)]
        assert logged(trainer, "rewards/darling/mean") == [pytest.approx(total)]
        assert logged(trainer, "rewards/a/mean") == [1.0] and logged(trainer, "rewards/b/mean") == [0.0]


def test_columns_and_hooks_of_trl_reach_the_function(tmp_path, causal_lm_path):
    seen = {}

    def reward(prompts, completions, completion_ids, answer, trainer_state, log_extra, log_metric, **kwargs):
        seen.update(answer=answer, step=trainer_state.global_step, ids=completion_ids, extra=sorted(kwargs))
        log_metric("mine", 3.0)
        return [float(value) for value in answer]

    trainer = make_trainer(tmp_path, causal_lm_path, reward, train_dataset=prompts_dataset(4, answer=[1, 2, 3, 4]))
    trainer.train()
    assert len(set(seen["answer"])) == 1 and len(seen["answer"]) == 4
    assert seen["step"] == 0 and len(seen["ids"]) == 4 and seen["extra"] == []
    assert logged(trainer, "mine") == [3.0]


class Broken:
    """A bad reward, as a function of its own name."""

    def __init__(self, returned, name="judge"):
        self.returned, self.__name__ = returned, name

    def __call__(self, completions, **kwargs):
        if isinstance(self.returned, Exception):
            raise self.returned
        return self.returned


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (RuntimeError("the judge is out of quota"), RuntimeError, "the judge is out of quota"),
        ([0.7], ValueError, "'judge' returned 1 rewards, but 4 were expected"),  # FC-014
        ([0.7] * 5, ValueError, "'judge' returned 5 rewards, but 4"),
        ([], ValueError, "'judge' returned 0 rewards, but 4"),
        (0.7, TypeError, "'judge' returned 0.7; return a list"),
        (None, TypeError, "'judge' returned None; return a list"),
        (torch.tensor(0.7), (TypeError, ValueError), "'judge' returned .*0.7.*return a list"),
        (np.array(0.7), (TypeError, ValueError), "'judge' returned .*0.7.*return a list"),
        ([1.0, math.inf, 0.0, 0.0], ValueError, "'judge' returned inf for row 1"),
        ([1.0, 0.0, 0.0, -math.inf], ValueError, "'judge' returned -inf for row 3"),
        ([1.0, 0.0, 1e300, 0.0], ValueError, "'judge' returned .* for row 2"),  # infinite as a float32
        ([1.0, "good", 0.0, 0.0], (TypeError, ValueError), "good"),
        ([1.0, [0.5], 0.0, 0.0], (TypeError, ValueError), "float"),
    ],
)
def test_a_bad_reward_stops_the_run_by_name(tmp_path, causal_lm_path, returned, error, message, kind):
    broken = Broken(returned)

    async def judge(completions, **kwargs):
        return broken(completions)

    trainer = built(tmp_path, causal_lm_path, [sync_length, judge if kind == "async" else broken])
    with pytest.raises(error, match=message) as caught:
        trainer.train()
    notes = "\n".join(getattr(caught.value, "__notes__", []))
    assert "'judge'" in f"{caught.value}\n{notes}"
    assert trainer.reward_funcs[0] is sync_length  # what guarded the functions is gone again


def test_a_failing_measure_stops_the_run_with_its_own_message(tmp_path, causal_lm_path):
    """FC-168: there is no fallback that would pay every completion, or none, during an outage."""

    class Down:
        threshold = 0.5

        def score_pairs(self, pairs, prompts=None):
            raise ConnectionError("all servers answered 503")

    trainer = built(tmp_path, causal_lm_path, sync_length, diversity=Down())
    with pytest.raises(ConnectionError, match="all servers answered 503"):
        trainer.train()
    assert not logged(trainer, "reward")


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([0.5, math.nan, 0.5, 0.5], "'fixed' gave the score nan.*'p0'"),
        ([0.5, 1.5, 0.5, 0.5], "'fixed' gave the score 1.5"),
        ([0.5, 0.5], "'fixed' gave 2 scores.*group of 4"),
    ],
)
def test_a_bad_diversity_stops_the_run_by_name(tmp_path, causal_lm_path, scores, message):
    trainer = built(tmp_path, causal_lm_path, sync_length, diversity=FixedDiversity(scores))
    with pytest.raises(ValueError, match=message):
        trainer.train()
