# SPDX-License-Identifier: Apache-2.0
"""
`python -m demo.why_no_std`: what the division by the group's standard deviation does to noisy rewards.

Rewards are r = f + noise, in groups of eight. Some prompts have completions that truly differ in f, others hardly any.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np


GROUP_SIZE = 8
PROMPTS = 20_000
SPREAD_SIGMA = 1.0  # of the log of the true spread: some prompts are decided, some are not
NOISE_LEVELS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)  # over the median true spread
_EPSILON = 1e-4  # as in TRL


def advantages(rewards: np.ndarray, with_std: bool) -> np.ndarray:
    """
    GRPO's advantages.

    Args:
        rewards (`numpy.ndarray` of shape `(prompts, n)`):
            Rewards of every group.
        with_std (`bool`):
            Whether they are divided by the standard deviation of the group (ddof 1, as in TRL).

    Returns:
        `numpy.ndarray` of shape `(prompts, n)`.
    """
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    return centred / (rewards.std(axis=1, ddof=1, keepdims=True) + _EPSILON) if with_std else centred


def noise_share(quality: np.ndarray, noise: np.ndarray, with_std: bool) -> float:
    """
    Share of a batch's squared advantages that is the noise's, in `[0, 1]`.

    The advantage of a completion is `scale * (quality - its mean) + scale * (noise - its mean)`, with one scale for
    the group; products of the two parts average out.
    """
    centred = advantages(quality + noise, with_std=False)
    # One over the standard deviation where it is divided by, else 1
    scale = np.abs(advantages(quality + noise, with_std)).sum(axis=1) / np.maximum(np.abs(centred).sum(axis=1), 1e-300)
    parts = [(scale[:, None] * advantages(part, with_std=False)) ** 2 for part in (noise, quality)]
    return float(parts[0].sum() / (parts[0].sum() + parts[1].sum()))


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Cosine of all advantages of a batch of one kind with those of another."""
    return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


def dense_groups(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """True qualities `(prompts, n)` and the true spread `(prompts,)` of each group, its median 1."""
    spread = np.exp(generator.normal(scale=SPREAD_SIGMA, size=PROMPTS))
    return generator.normal(size=(PROMPTS, GROUP_SIZE)) * spread[:, None], spread


def binary_groups(generator: np.random.Generator) -> np.ndarray:
    """Rewards 0 or 1 without noise, `(prompts, n)`: every prompt has its own chance to be solved."""
    chance = generator.uniform(size=(PROMPTS, 1))
    return (generator.uniform(size=(PROMPTS, GROUP_SIZE)) < chance).astype(float)


def simulate(seed: int = 0) -> dict[str, Any]:
    """
    The figures of docs/why_no_std.md.

    Returns:
        `dict`: `dense` (share of noise by its size, with and without std), `weights` (mean absolute advantage by true
        spread at noise 0.5), `binary` (mean absolute advantage by number of correct completions) and `binary_cosine`.
    """
    generator = np.random.default_rng(seed)
    quality, spread = dense_groups(generator)
    noise = generator.normal(size=quality.shape)
    dense = {
        level: {with_std: noise_share(quality, level * noise, with_std) for with_std in (False, True)}
        for level in NOISE_LEVELS
    }
    edges = np.quantile(spread, np.linspace(0, 1, 11))
    bins = np.clip(np.searchsorted(edges, spread, side="right") - 1, 0, 9)
    noisy = quality + 0.5 * noise
    weights = {}
    for with_std in (False, True):
        size = np.abs(advantages(noisy, with_std)).mean(axis=1)
        weights[with_std] = [float(size[bins == index].mean() / size.mean()) for index in range(10)]
    solved = binary_groups(generator)
    correct = solved.sum(axis=1).astype(int)
    binary = {}
    for with_std in (False, True):
        size = np.abs(advantages(solved, with_std)).mean(axis=1)
        mean = size[(correct > 0) & (correct < GROUP_SIZE)].mean()
        binary[with_std] = [float(size[correct == count].mean() / mean) for count in range(GROUP_SIZE + 1)]
    same = cosine(advantages(solved, True), advantages(solved, False))
    spreads = [float(np.median(spread[bins == index])) for index in range(10)]
    return {"dense": dense, "spreads": spreads, "weights": weights, "binary": binary, "binary_cosine": same}


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the three panels of the page."""
    from trl_diversity.evaluation.plots import new_figure

    figure = new_figure(13, 4)
    left, middle, right = figure.subplots(1, 3)
    for with_std, color, label in ((False, "C0", "mean subtracted"), (True, "C1", "also divided by the std")):
        shares = [100 * values[with_std] for values in result["dense"].values()]
        left.plot(list(result["dense"]), shares, "o-", color=color, label=label)
        middle.plot(result["spreads"], result["weights"][with_std], "o-", color=color)
        right.plot(range(GROUP_SIZE + 1), result["binary"][with_std], "o-", color=color)
    left.set_xlabel("noise of the reward (1: median true spread)")
    left.set_ylabel("noise in the squared advantages (%)")
    left.set_title("dense rewards: how much noise is learnt")
    middle.set_xscale("log", base=2)
    middle.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    middle.set_xlabel("true spread of the group (noise 0.5)")
    middle.set_ylabel("weight of a group (mean: 1)")
    middle.set_title("dense rewards: who is listened to")
    right.set_xlabel(f"correct completions of {GROUP_SIZE}")
    right.set_ylabel("weight of a group (mean of mixed: 1)")
    right.set_title("binary rewards: who is listened to")
    for axes in (left, middle, right):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)


def main(argv: list[str] | None = None) -> None:
    """Simulate, draw, and print the numbers."""
    parser = argparse.ArgumentParser(prog="python -m demo.why_no_std", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/results/why-no-std.png"), help="figure to write")
    args = parser.parse_args(argv)
    result = simulate()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    draw(result, args.output)
    print("noise   without std   with std   (share of the squared advantages that is noise)")
    for level, values in result["dense"].items():
        print(f"{level:>5} {values[False]:>13.3f} {values[True]:>10.3f}")
    print("weight of the tenth of groups with the smallest and the largest true spread, noise 0.5 (mean: 1)")
    for with_std in (False, True):
        weights = result["weights"][with_std]
        print(f"  {'with' if with_std else 'without'} std: {weights[0]:.2f} and {weights[-1]:.2f}")
    print("weight of a group with 1 and with 4 correct of 8, binary rewards (mean of mixed groups: 1)")
    for with_std in (False, True):
        weights = result["binary"][with_std]
        print(f"  {'with' if with_std else 'without'} std: {weights[1]:.2f} and {weights[4]:.2f}")
    print(f"binary rewards: cosine of the two kinds of advantages {result['binary_cosine']:.3f}")


if __name__ == "__main__":
    main()
