# SPDX-License-Identifier: Apache-2.0
"""From what a preflight has measured to the reasons why training would be wasted."""

from collections.abc import Mapping, Sequence
from typing import Any


MOSTLY_COLLAPSED = 0.9  # share of groups of one meaning from which a policy has nothing to learn from
MOSTLY_MALFORMED = 0.9
MOSTLY_TRUNCATED = 0.5
MOSTLY_NEGATIVE = 0.5
LEAST_RIGHT_PAIRS = 0.7  # of the labelled pairs; guessing gives a half
# (prompt, first, second, whether they mean the same): plain enough that any usable model tells them apart.
LABELLED_PAIRS: tuple[tuple[str, str, str, bool], ...] = (
    ("Name an animal.", "A dog.", "The dog.", True),
    ("Name an animal.", "A dog.", "A submarine full of old letters.", False),
    ("Suggest a hobby.", "You could try painting.", "Painting would be a nice thing to try.", True),
    ("Suggest a hobby.", "You could try painting.", "Join a chess club in your town.", False),
    ("Give me a reason to plant a tree.", "It gives shade in summer.", "In summer it provides shade.", True),
    ("Give me a reason to plant a tree.", "It gives shade in summer.", "Its fruit can be sold at a market.", False),
    ("Where should I go on holiday?", "Go to the mountains of Norway.", "I would go to Norway's mountains.", True),
    ("Where should I go on holiday?", "Go to the mountains of Norway.", "Stay home and read a thick novel.", False),
)


def reasons_against(measured: Mapping[str, Any]) -> list[str]:
    """
    Why training as configured would be wasted.

    Args:
        measured (`Mapping[str, Any]`):
            Keys of the report; what was not measured is absent or `None`.

    Returns:
        `list[str]`: empty if nothing speaks against it.
    """
    found = []
    collapsed, clusters = measured.get("collapsed_groups"), measured.get("clusters_per_group")
    if collapsed is not None and collapsed >= MOSTLY_COLLAPSED:
        shown = "" if clusters is None else f" ({clusters:.2f} clusters a group)"
        found.append(
            f"the policy is collapsed already: {collapsed:.0%} of the groups have one meaning{shown}, and diversity "
            "has nothing to choose from. Raise `temperature`, or look whether the partition model tells them apart"
        )
    flat = measured.get("groups_without_spread")
    if flat is not None and flat >= 1 and not found:
        found.append(
            "within every group all rewards are equal, which gives no advantage: the quality is "
            f"{_range(measured)}. Look at the reward function, or take easier or harder prompts"
        )
    negative = measured.get("negative_quality")
    if negative is not None and negative > MOSTLY_NEGATIVE and measured.get("pays_duplicates"):
        found.append(
            f"{negative:.0%} of the qualities are negative, and with `quality_shift: none` their product with the "
            "diversity pays duplicates. Set `quality_shift: auto`"
        )
    for key, limit, reason in (
        ("malformed", MOSTLY_MALFORMED, "have no answer that can be found. Ask for the format (`instruction`)"),
        ("truncated", MOSTLY_TRUNCATED, "end at `max_completion_length`. Raise it, or look whether the policy ends"),
    ):
        share = measured.get(key)
        if share is not None and share >= limit:
            found.append(f"{share:.0%} of the completions {reason}")
    right = measured.get("labelled_pairs_right")
    if right is not None and right < LEAST_RIGHT_PAIRS:
        found.append(
            f"the partition model is right on {right:.0%} of the labelled pairs, little more than a coin. Check "
            "`partition_model` and `partition_threshold`, or give pairs of your own domain with --pairs"
        )
    return found


def share_right(scores: Sequence[float], threshold: float, labels: Sequence[bool]) -> float:
    """Share of pairs in `[0, 1]` on which a score above the threshold agrees with the label."""
    return sum((score > threshold) == label for score, label in zip(scores, labels, strict=True)) / len(labels)


def _range(measured: Mapping[str, Any]) -> str:
    low, high = measured.get("quality_min"), measured.get("quality_max")
    if low is None or high is None:
        return "not known"
    return f"{low:.3g} everywhere" if low == high else f"between {low:.3g} and {high:.3g}"
