# SPDX-License-Identifier: Apache-2.0
"""Sample answers from a policy and measure them: quality, clusters among eight, Distinct-4."""

import statistics
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from demo.rewards import relevance
from demo.warm_up import messages
from trl_diversity import CompletionGroup, NgramDiversity, PartitionDiversity, load_equivalence_model


GROUP_SIZE = 8
BATCH_SIZE = 128


@dataclass(frozen=True)
class Sample:
    """Answers to several prompts, `GROUP_SIZE` to a group, and what was measured on them."""

    groups: list[CompletionGroup]
    quality: list[list[float]]  # per group and completion, in [0, 1]
    labels: list[list[int]]  # cluster of every completion within its group
    diversity: list[list[float]]  # of every completion, in [0, 1]
    distinct4: list[float]  # per group, in [0, 1]

    def summary(self) -> dict[str, float]:
        """Means: `quality`, `diversity` and `distinct4` in `[0, 1]`, `clusters` per group in `[1, 8]`."""
        return {
            "quality": statistics.fmean(value for group in self.quality for value in group),
            "diversity": statistics.fmean(value for group in self.diversity for value in group),
            "clusters": statistics.fmean(len(set(labels)) for labels in self.labels),
            "distinct4": statistics.fmean(self.distinct4),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per completion: `prompt`, `group`, `completion`, `quality`, `cluster`."""
        return [
            {"prompt": group.prompt, "group": index, "completion": completion, "quality": value, "cluster": label}
            for index, (group, quality, labels) in enumerate(zip(self.groups, self.quality, self.labels, strict=True))
            for completion, value, label in zip(group.completions, quality, labels, strict=True)
        ]


@lru_cache(maxsize=1)
def partition_model() -> Any:
    """The model that says which answers mean the same: the one that Darling trains with."""
    return load_equivalence_model("default", device="cpu")


def measure(groups: list[CompletionGroup]) -> Sample:
    """
    Measure groups of completions.

    Quality is the reward `demo.rewards.relevance`. Clusters are those of the partition that Darling trains with:
    the default partition model, closed transitively. Distinct-4 is the share of 4-grams that no other answer of the
    group has; an answer of fewer than four words counts as one n-gram.
    """
    prompts = [group.prompt for group in groups for _ in group.completions]
    quality = iter(relevance(prompts, [text for group in groups for text in group.completions]))
    partitions = PartitionDiversity(partition_model())(groups)
    return Sample(
        groups=groups,
        quality=[[next(quality) for _ in group.completions] for group in groups],
        labels=[partition.labels or [] for partition in partitions],
        diversity=[partition.scores for partition in partitions],
        distinct4=[statistics.fmean(result.scores) for result in NgramDiversity(n=4)(groups)],
    )


def sample(
    model: Any,
    tokenizer: Any,
    prompts: list[str],
    groups_per_prompt: int,
    seed: int,
    group_size: int = GROUP_SIZE,
    **sampling: Any,
) -> list[CompletionGroup]:
    """
    Draw `groups_per_prompt` groups of `group_size` answers to every prompt.

    Args:
        model (`PreTrainedModel`):
            The policy.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer, with a chat template.
        prompts (`list[str]`):
            Questions; the system message is put before them.
        groups_per_prompt (`int`):
            Groups drawn for each prompt.
        seed (`int`):
            Seed of the draws. The state of torch's generator is left as it was.
        group_size (`int`, *optional*, defaults to `GROUP_SIZE`):
            Answers in a group.
        sampling (`Any`):
            Passed to `generate`: `temperature` and `max_new_tokens`.

    Returns:
        `list[CompletionGroup]`: the groups of the first prompt, then those of the second, and so on.
    """
    import torch

    count = groups_per_prompt * group_size
    texts = [
        tokenizer.apply_chat_template(messages(prompt), add_generation_prompt=True, tokenize=False)
        for prompt in prompts
        for _ in range(count)
    ]
    answers: list[str] = []
    was_training = model.training
    model.eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for start in range(0, len(texts), BATCH_SIZE):
            batch = tokenizer(
                texts[start : start + BATCH_SIZE],
                return_tensors="pt",
                padding=True,
                padding_side="left",
                add_special_tokens=False,
            )
            output = model.generate(**batch, do_sample=True, top_k=0, **sampling)
            answers += tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    model.train(was_training)
    return [
        CompletionGroup(prompts[start // count], answers[start : start + group_size])
        for start in range(0, len(answers), group_size)
    ]
