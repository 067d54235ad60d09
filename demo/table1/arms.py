# SPDX-License-Identifier: Apache-2.0
"""The rows of the table and the sizes of the experiment: frozen before the seeds are run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """One way to train: a recipe of recipes/smollm2-135m and the options that differ from it."""

    name: str
    folder: str
    recipe: str | None  # None: not trained
    options: tuple[str, ...] = ()


ARMS = (
    Arm("base", "base", None),
    Arm("GRPO, with std", "grpo-std", "grpo.yaml", ("--scale_rewards", "group")),
    Arm("GRPO, without std", "grpo", "grpo.yaml"),
    Arm("GRPO-Unlikeliness", "unlikeliness", "grpo.yaml", ("--diversity_measure", "unlikeliness")),
    Arm("DivPO", "divpo", "divpo.yaml"),
    Arm("Darling (partition)", "darling", "darling.yaml"),
    Arm("Darling (4-gram)", "darling-4gram", "darling.yaml", ("--diversity_measure", "ngram", "--ngram_n", "4")),
)
# Ablations of the paper's section 6.1, not in the table: `--arms` runs them.
ABLATIONS = (
    Arm("Darling, with std", "darling-std", "darling.yaml", ("--scale_rewards", "group")),
    Arm("Darling, added", "darling-add", "darling.yaml", ("--combine", "add")),
    Arm(
        "Darling, added, with std", "darling-add-std", "darling.yaml", ("--combine", "add", "--scale_rewards", "group")
    ),
)

GROUP_SIZE = 10  # completions of a prompt among which clusters are counted, as in NoveltyBench
GROUPS_PER_PROMPT = 1  # another prompt tells more than another group
EVALUATION_SEED = 1000  # plus the seed of the training
# The reward lies in [0, 1]: its tenths are the qualities 1 to 10 of the utility.
QUALITY_THRESHOLDS = tuple(tenth / 10 for tenth in range(1, 10))
PILOT_SEEDS = (100, 101)  # never among the seeds of the table
PILOT_ARMS = ("grpo", "darling")
PILOT_PROMPTS = "development"  # a file of demo/prompts


def find_arms(folders: list[str] | None) -> list[Arm]:
    """
    The arms with these folders, in the table's order; the table's own by default.

    Raises:
        `ValueError`: if there is no such arm.
    """
    known = {arm.folder: arm for arm in (*ARMS, *ABLATIONS)}
    if folders is None:
        return list(ARMS)
    if unknown := [folder for folder in folders if folder not in known]:
        raise ValueError(f"there is no arm {unknown[0]!r}; accepted are {', '.join(known)}.")
    return [arm for folder, arm in known.items() if folder in folders]
