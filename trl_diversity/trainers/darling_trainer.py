# SPDX-License-Identifier: Apache-2.0
"""GRPO whose reward is quality times semantic diversity."""

import time
from concurrent.futures import Future
from typing import Any

import torch
from accelerate.logging import get_logger
from trl.trainer.utils import get_config_model_id

from trl_diversity.distributed import deal_out, exchange, local_slice, map_dealt_out
from trl_diversity.diversity import CompletionGroup, GroupDiversity
from trl_diversity.diversity.groups import completion_text, make_groups, narrow_text, prompt_text
from trl_diversity.likelihood import assistant_tail
from trl_diversity.trainers.base_trainer import RewardColumnTrainer
from trl_diversity.trainers.darling_config import DarlingConfig
from trl_diversity.trainers.diversity_source import check_diversity_argument, resolve_diversity
from trl_diversity.trainers.diversity_step import (
    clusters_to_show,
    combine_groups,
    correct_members,
    diversity_metrics,
    in_background,
    quality_metrics,
    score_groups,
    select_members,
    spread_members,
    waits_for_servers,
)
from trl_diversity.trainers.logprobs import mean_token_logprobs
from trl_diversity.trainers.reward_column import append_reward_column, kept_errors, weighted_quality


logger = get_logger(__name__)

_Scored = tuple[list[GroupDiversity], dict[str, float]]  # by group, and what was counted
_COLUMNS = ("quality", "diversity", "cluster")  # ours in the completions table
_TAGS = {"answer": ("<answer>", "</answer>"), "after_think": ("<think>", "</think>")}  # by `diversity_text`


class DarlingTrainer(RewardColumnTrainer):
    """
    GRPO that rewards quality times semantic diversity, so that a policy does not end up saying one thing.

    For each completion `y_i` of a prompt `x`, the reward is `r(x, y_i) * Norm(Div(y_i))` (arXiv 2509.02534, Eq. 6),
    where `r` is the weighted sum of the reward functions and `Div(y_i)` the share of the group that means something
    else (Eq. 4). Everything else is inherited from [`~trl.GRPOTrainer`]. The rewards are one more column, named
    `darling`: the columns of the reward functions are logged as they are, and `darling` alone makes the advantages.

    Groups are whole: completions are gathered over all ranks, and each group is scored on one rank. With one
    completion per prompt, as in some evaluations, the reward is the quality.

    Departures from the paper, each with its setting:

    1. Qualities below 0 are lifted per group (`quality_shift="auto"`): a product would pay duplicates for them. Where
       no quality is negative, this changes nothing. `"none"` is the paper's letter.
    2. Empty completions have diversity 0.

    Args:
        model, reward_funcs, ..., environment_factory:
            The arguments of [`~trl.GRPOTrainer`] in their order; `args` is a [`DarlingConfig`].
        diversity (`str`, [`EquivalenceModel`] or [`DiversityMeasure`], *optional*):
            How unlike each other completions are. An object with `score_pairs` sorts them into clusters, another
            callable is a diversity measure, a string is the name or path of an equivalence model. By default the
            configuration says.

    The data set needs a column `prompt`, plain or conversational, and what the reward functions read.

    Logs, besides what GRPO logs: `diversity/*` and `quality/*` (docs/metrics.md).

    Raises:
        `TypeError`: if `args` is no [`DarlingConfig`].
        `ValueError`: if the configuration contradicts itself or the argument `diversity`. In training, on every rank:
        if a reward function or the diversity measure fails on any of them, or gives values out of range.

    Example:

    ```python
    from datasets import Dataset
    from trl_diversity import DarlingConfig, DarlingTrainer


    def brevity(completions, **kwargs):
        return [1.0 if len(completion) < 80 else 0.0 for completion in completions]


    trainer = DarlingTrainer(
        model="HuggingFaceTB/SmolLM2-135M-Instruct",
        reward_funcs=brevity,
        args=DarlingConfig("smollm2-darling", max_completion_length=32),
        train_dataset=Dataset.from_dict({"prompt": ["Name an animal.", "Suggest a hobby."] * 32}),
        diversity="sentence-transformers/all-MiniLM-L6-v2",
    )
    trainer.train()
    ```
    """

    args: DarlingConfig

    _tag_names = ["trl", "grpo", "darling"]
    _name = "Darling"
    _paper = {
        "title": "Jointly Reinforcing Diversity and Quality in Language Model Generations",
        "id": "2509.02534",
        "citation": (
            "@article{li2025jointly,\n"
            "    title   = {{Jointly Reinforcing Diversity and Quality in Language Model Generations}},\n"
            "    author  = {Tianjian Li and Yiming Zhang and Ping Yu and Swarnadeep Saha and Daniel Khashabi and "
            "Jason Weston and Jack Lanchantin and Tianlu Wang},\n"
            "    year    = 2025,\n"
            "    eprint  = {arXiv:2509.02534},\n"
            "}"
        ),
    }

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: DarlingConfig | None = None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        reward_processing_classes=None,
        callbacks=None,
        optimizers=(None, None),
        quantization_config=None,
        peft_config=None,
        tools=None,
        rollout_func=None,
        environment_factory=None,
        *,
        diversity=None,
    ):
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = DarlingConfig(f"{name.split('/')[-1]}-Darling")
        if not isinstance(args, DarlingConfig):
            raise TypeError(f"`args` is a `DarlingConfig`, got {type(args).__name__}.")
        check_diversity_argument(diversity, args)
        super().__init__(
            model=model,
            reward_funcs=reward_funcs,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            reward_processing_classes=reward_processing_classes,
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
            peft_config=peft_config,
            tools=tools,
            rollout_func=rollout_func,
            environment_factory=environment_factory,
        )
        self.diversity = resolve_diversity(diversity, args, self.accelerator.device)
        self.quality_weights = append_reward_column(self, "darling")  # (n_functions,)
        self._said_single = False
        self._refuse_special_tags()
        if getattr(self.diversity, "needs_logprobs", False):
            name = getattr(self.diversity, "name", "diversity")
            self._refuse_unknown_tokens(f"The measure {name!r}", tools, environment_factory)

    def _refuse_special_tags(self):
        """TRL decodes completions without special tokens: tags that are special tokens would never be found."""
        for tag in _TAGS.get(self.args.diversity_text, ()):
            ids = self._tokenizer(tag, add_special_tokens=False)["input_ids"]
            if tag not in self._tokenizer.decode(ids, skip_special_tokens=True):
                raise ValueError(
                    f"`diversity_text: {self.args.diversity_text}` looks for {tag}, which is a special token of this "
                    "tokenizer and is dropped when completions are decoded. Register it as a normal token, or use "
                    "`diversity_text: full`."
                )

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        is_training = self.model.training  # read before anything calls `eval()`
        group_size: Any = self.num_generations if is_training else self.num_generations_eval
        measure = self.diversity if group_size > 1 else None
        groups = None if measure is None else self._gather_groups(prompts, completions, group_size)
        ahead = None if groups is None else self._score_ahead(groups)
        with kept_errors(self) as errors:
            rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        error = errors[0] if errors else None
        quality = weighted_quality(rewards_per_func, self.quality_weights)  # (N,)
        quality_groups = quality.view(-1, group_size).tolist()
        if groups is None:
            exchange(None, error, self.accelerator.process_index)  # collective: every rank reaches this
            rewards_per_func[:, -1] = quality
            diversities = rewards = None
        else:
            diversities = self._measure_diversity(groups, quality_groups, error, ahead)
            rewards = combine_groups(self.args, quality_groups, diversities)
            rewards_per_func[:, -1] = torch.tensor(rewards, device=quality.device).view(-1)
        self._report(quality_groups, diversities, rewards, len(prompts))
        return rewards_per_func

    def _gather_groups(self, prompts, completions, group_size) -> list[CompletionGroup]:
        """The groups of the whole batch, the same on every rank."""
        error, rows = None, None
        try:
            texts = [completion_text(completion) for completion in completions]
            if self.args.diversity_text in ("after_think", "answer") and not self._are_parsed(completions):
                # The prompt may have opened the think block or the answer, which the completion then only closes
                tails = [assistant_tail(ids, self._tokenizer) for ids in self._sampled_ids[0]]
                texts = [tail + text for tail, text in zip(tails, texts, strict=True)]
            texts = [narrow_text(text, self.args.diversity_text, self._last_tokens) for text in texts]
            logprobs: list[float] | list[None] = [None] * len(texts)
            if getattr(self.diversity, "needs_logprobs", False):
                logprobs = mean_token_logprobs(self, *self._sampled_ids)
            rows = list(zip(map(prompt_text, prompts), texts, logprobs, strict=True))
        except Exception as caught:
            error = caught
        gathered = exchange(rows, error, self.accelerator.process_index)  # collective: every rank reaches this
        return make_groups([row for rows in gathered for row in rows], group_size)

    def _are_parsed(self, completions) -> bool:
        """Whether TRL took the reasoning out of the text, also where the prompt had opened the think block."""
        parsers = (getattr(self._tokenizer, name, None) for name in ("response_template", "response_schema"))
        return not isinstance(completions[0], str) and any(parsers)

    def _score_ahead(self, groups: list[CompletionGroup]) -> "Future[_Scored] | None":
        """
        Begin to score this rank's groups, if that means waiting for servers and needs no quality.

        The thread makes no collective call and no use of torch: what it gives, or raises, is exchanged later, on the
        main thread, where diversity that is not scored ahead is computed.
        """
        if self.args.partition_correct_only or not waits_for_servers(self.diversity):
            return None
        shares = deal_out(_costs(groups), self.accelerator.num_processes)
        mine = [groups[index] for index in shares[self.accelerator.process_index]]
        return in_background(self._score_groups, mine)

    def _measure_diversity(self, groups, quality, error, ahead=None) -> list[GroupDiversity]:
        """Diversity of all groups, each scored on one rank; raises on every rank what failed on any of them."""
        members = [list(range(len(group.completions))) for group in groups]
        if self.args.partition_correct_only:
            members = [correct_members(group_quality) for group_quality in quality]
        selected = [index for index, group_members in enumerate(members) if group_members]
        parts = [select_members(groups[index], members[index]) for index in selected]
        scored, statistics = map_dealt_out(
            self._score_groups if ahead is None else lambda _: ahead.result(),
            parts,
            costs=_costs(parts),
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
            error=error,
        )  # collective: every rank reaches this
        for name in {name for counts in statistics for name in counts}:
            values = [counts[name] for counts in statistics if name in counts]
            self._log_metric(f"diversity/{name}", max(values) if name == "seconds" else sum(values))
        diversity = dict(zip(selected, scored, strict=True))
        return [
            spread_members(diversity.get(index), members[index], len(group.completions), self.args.diversity_floor)
            for index, group in enumerate(groups)
        ]

    def _score_groups(self, groups: list[CompletionGroup]) -> _Scored:
        started = time.perf_counter()
        assert self.diversity is not None  # plain GRPO has no groups to score
        results, statistics = score_groups(self.diversity, groups)
        return results, {**statistics, "seconds": time.perf_counter() - started}

    def _log_completion_extra(self, column: str, values: list):
        if column in _COLUMNS:
            raise ValueError(f"The column {column!r} of the completions table is Darling's: log under another name.")
        super()._log_completion_extra(column, values)

    def _last_tokens(self, text: str) -> str:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        kept = ids[-self.args.diversity_last_tokens :]
        return text if len(kept) == len(ids) else self._tokenizer.decode(kept)

    def _report(self, quality, diversities, rewards, n_local):
        """Log the metrics of this step and the columns of the completions table."""
        metrics = quality_metrics(quality)
        # Every step fills the same columns: TRL keeps their latest values, which must stay beside their completions.
        no_values = [[None] * len(group) for group in quality]
        columns = dict(zip(_COLUMNS, (quality, no_values, no_values), strict=True))
        if diversities is not None:
            metrics |= diversity_metrics(diversities, rewards)
            columns["diversity"] = [diversity.scores for diversity in diversities]
            columns["cluster"] = [clusters_to_show(diversity) for diversity in diversities]
        elif self.diversity is not None and not self._said_single:
            self._said_single = True
            logger.info("One completion per prompt: the reward is the quality, there is nothing to compare.")
        for name, value in metrics.items():
            self._log_metric(name, value)
        for name, groups in columns.items():
            values = [value for group in groups for value in group]
            super()._log_completion_extra(name, local_slice(values, n_local, self.accelerator.process_index))
        unscored = sum(value != value for group in quality for value in group)
        if unscored:
            logger.warning(
                f"No reward function gave a reward to {unscored} completions; they get no advantage. Make sure that "
                "at least one returns a number for every completion."
            )


def _costs(groups: list[CompletionGroup]) -> list[int]:
    """By which groups are dealt out over the ranks."""
    return [sum(map(len, group.completions)) for group in groups]
