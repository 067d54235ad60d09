# SPDX-License-Identifier: Apache-2.0
"""EQ-Bench creative writing v3: the runs file that its judge goes on from, and win rates from its result files."""

import re
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any


JUDGE_MODEL = "anthropic/claude-3.7-sonnet"  # of the leaderboard
SHORTEST_CHARACTERS = 500  # a shorter piece counts as failed
ATTEMPTS = 3
# The judge of pairs calls the two texts by these names, and writes one + to five for the margin.
_FIRST, _SECOND = "A0493", "A0488"
_NO_CRITERIA = ("improvement_suggestions", "theory_of_mind")


def writing_tasks(prompts: dict[str, Any], iterations: int) -> list[dict[str, Any]]:
    """
    The pieces to write: every prompt once per iteration, each time with the next of its seeds.

    Args:
        prompts (`dict[str, dict]`):
            EQ-Bench's `creative_writing_prompts_v3.json`: `writing_prompt` and `seed_modifiers` by id.
        iterations (`int`):
            3 on the leaderboard.

    Returns:
        `list[dict]`: `prompt_id`, `iteration`, `seed`, `base_prompt`, and the `prompt` with the seed in it.

    Raises:
        `ValueError`: if a prompt has another form.
    """
    tasks = []
    for prompt_id, entry in prompts.items():
        seeds = entry.get("seed_modifiers") if isinstance(entry, dict) else None
        text = entry.get("writing_prompt") if isinstance(entry, dict) else None
        if not isinstance(text, str) or not isinstance(seeds, list) or not seeds:
            raise ValueError(f"the prompt {prompt_id!r} needs a `writing_prompt` and `seed_modifiers`.")
        for iteration in range(1, iterations + 1):
            seed = seeds[(iteration - 1) % len(seeds)]
            tasks.append(
                {
                    "prompt_id": str(prompt_id),
                    "iteration": iteration,
                    "seed": seed,
                    "base_prompt": text,
                    "prompt": text.replace("<SEED>", seed),
                }
            )
    return tasks


def runs_file(
    tasks: Sequence[dict[str, Any]], pieces: Sequence[str], model: str, run_id: str, judge_model: str = JUDGE_MODEL
) -> dict[str, Any]:
    """
    A runs file whose pieces are written and not yet judged: EQ-Bench's script goes on from it.

    Its options must be the same: `--test-model`, `--judge-model`, `--run-id` and `--iterations`.

    Args:
        tasks (`Sequence[dict]`):
            As `writing_tasks` gives them.
        pieces (`Sequence[str]`):
            What the model wrote. A piece below 500 characters is marked as failed, as EQ-Bench does.
        model (`str`), run_id (`str`), judge_model (`str`, *optional*):
            As given to EQ-Bench's script.

    Returns:
        `dict`: the content of the JSON file.
    """
    creative_tasks: dict[str, dict[str, Any]] = {}
    for task, piece in zip(tasks, pieces, strict=True):
        is_short = len(piece.strip()) < SHORTEST_CHARACTERS
        block: dict[str, Any] = {"generation_failed": is_short}
        if is_short:
            block["error_message"] = f"Text too short after {ATTEMPTS} attempts"
        else:
            block["model_response"] = piece.strip()
        creative_tasks.setdefault(str(task["iteration"]), {})[task["prompt_id"]] = {
            "prompt_id": task["prompt_id"],
            "base_prompt": task["base_prompt"],
            "seed_modifiers": [task["seed"]],
            "iteration_index": task["iteration"],
            "test_model": model,
            "judge_model": judge_model,
            "status": "generated",
            "start_time": None,
            "end_time": None,
            "error": None,
            "results_by_modifier": {task["seed"]: block},
        }
    key = f"{run_id}__{re.sub(r'[^a-zA-Z0-9_-]+', '_', model)}"
    run = {"test_model": model, "judge_model": judge_model, "status": "running", "creative_tasks": creative_tasks}
    return {key: run | {"results": {}}}


def rubric_win_rates(
    runs: dict[str, Any], first: str, second: str, negative_criteria: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """
    How often one model's pieces score higher than another's, by criterion of the rubric.

    Pieces of the same prompt and iteration are compared. A tie counts half. Of several runs of a model the last one in
    the file counts.

    Args:
        runs (`dict`):
            Content of judged runs files, merged.
        first (`str`), second (`str`):
            Names of the models.
        negative_criteria (`Sequence[str]`, *optional*):
            Criteria of which less is better, EQ-Bench's `negative_criteria.txt`.

    Returns:
        `dict`: for every criterion `win_rate` of the first in `[0, 1]`, `pairs`, and mean scores `first`, `second`.

    Raises:
        `ValueError`: if a model has no judged piece, or they share none.
    """
    scores = {name: _judge_scores(runs, name) for name in (first, second)}
    shared = scores[first].keys() & scores[second].keys()
    if not shared:
        raise ValueError(f"{first!r} and {second!r} share no judged piece.")
    found: dict[str, list[tuple[float, float]]] = {}
    for item in sorted(shared):
        for criterion, value in scores[first][item].items():
            other = scores[second][item].get(criterion)
            if isinstance(value, int | float) and isinstance(other, int | float):
                found.setdefault(criterion, []).append((float(value), float(other)))
    rates = {}
    for criterion, pairs in found.items():
        sign = -1 if criterion in negative_criteria else 1
        wins = [0.5 if one == other else float(sign * one > sign * other) for one, other in pairs]
        means = {"first": fmean(one for one, _ in pairs), "second": fmean(other for _, other in pairs)}
        rates[criterion] = {"win_rate": fmean(wins), "pairs": len(wins), **means}
    return rates


def _judge_scores(runs: dict[str, Any], model: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Scores by prompt and iteration."""
    found = {}
    for run in runs.values():
        if not isinstance(run, dict) or run.get("test_model") != model:
            continue
        for iteration, tasks in run.get("creative_tasks", {}).items():
            for prompt_id, task in tasks.items():
                for block in task.get("results_by_modifier", {}).values():
                    if block.get("judge_scores"):
                        found[str(prompt_id), str(iteration)] = block["judge_scores"]
    if not found:
        names = sorted({run["test_model"] for run in runs.values() if isinstance(run, dict) and "test_model" in run})
        raise ValueError(f"{model!r} has no judged piece; the models are {', '.join(map(repr, names)) or 'none'}.")
    return found


def pairwise_win_rates(results: Any, first: str, second: str) -> dict[str, dict[str, float]]:
    """
    How often one model beats another, by criterion of EQ-Bench's pairwise judge.

    Args:
        results (`Any`):
            Content of `elo_results.json`, wherever the comparisons lie in it.
        first (`str`), second (`str`):
            Names of the models.

    Returns:
        `dict`: for every criterion `win_rate` of the first in `[0, 1]`, and the number of `pairs`.

    Raises:
        `ValueError`: if the two were not compared.
    """
    wins: dict[str, list[float]] = {}
    for comparison in _comparisons(results):
        pair, order = comparison["pair"], str(comparison.get("order", ""))
        if {pair.get("test_model"), pair.get("neighbor_model")} != {first, second}:
            continue
        test_is = _FIRST if f"{_FIRST}:test" in order else _SECOND
        first_is = test_is if pair["test_model"] == first else (_SECOND if test_is == _FIRST else _FIRST)
        for criterion, verdict in comparison["judge_response"].items():
            named = [name for name in (_FIRST, _SECOND) if isinstance(verdict, str) and name in verdict]
            if criterion not in _NO_CRITERIA and len(named) == 1:
                wins.setdefault(criterion, []).append(float(named[0] == first_is))
    if not wins:
        raise ValueError(f"there is no comparison of {first!r} with {second!r} in the file.")
    return {criterion: {"win_rate": fmean(values), "pairs": len(values)} for criterion, values in wins.items()}


def _comparisons(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("pair"), dict) and isinstance(value.get("judge_response"), dict):
            yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _comparisons(item)
