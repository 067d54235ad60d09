# SPDX-License-Identifier: Apache-2.0
"""GRPO without a verifier: the reward is how probable the policy itself finds the reference after its reasoning."""

from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.models import prepare_deepspeed
from trl.trainer.utils import get_config_model_id

from trl_diversity.distributed import exchange, max_over_ranks
from trl_diversity.likelihood import (
    FrozenScorer,
    PolicyScorer,
    PreparedCompletion,
    RowScores,
    Scorer,
    ScoringRow,
    ServerScorer,
    assistant_tail,
    format_reward,
    prepare_completion,
    repetition_penalty,
)
from trl_diversity.likelihood.model_inspection import base_model
from trl_diversity.likelihood.token_text import decode
from trl_diversity.trainers.base_trainer import RewardColumnTrainer, refuse_options
from trl_diversity.trainers.baseline import known_baseline, score_baselines
from trl_diversity.trainers.config_checks import settings_that_differ
from trl_diversity.trainers.darl_config import DarlConfig
from trl_diversity.trainers.darl_state import DarlState
from trl_diversity.trainers.darl_step import (
    ScoredCompletion,
    combine_completions,
    darl_metrics,
    group_stds,
    scored_completion,
)
from trl_diversity.trainers.references import checked_references, row_reference
from trl_diversity.trainers.reward_column import (
    append_reward_column,
    kept_errors,
    only_reward_column,
    weighted_quality,
)


# Ours in the completions table
_COLUMNS = ("answer", "reference_prob", "answer_prob", "malformed")


class DarlTrainer(RewardColumnTrainer):
    """
    GRPO whose reward is the likelihood of a reference answer, with a bounded bonus for answers that differ from it.

    The reference y* is put in the place of the answer y in each completion, after its reasoning z, and the policy
    itself says how probable both are: `r(y, z, x)` is the mean probability of the tokens of y. The reward is `alpha *
    r(y*) + delta_weight * delta * 1[delta <= tau]` with `delta = max(r(y*) - r(y), 0)` and `tau = r(y*) / gamma`
    (arXiv 2601.14700). No verifier is needed. Everything else is inherited from [`~trl.GRPOTrainer`]. The reward is
    one more column, named `darl`; rewards of other functions are added to it with their weights.

    RLPR (arXiv 2506.18254) is `delta_weight=0, debias=True, std_filter_beta=0.5, repetition_penalty_reward=True`.

    Departures from RLPR's released code:

    1. The reference is spliced in tokens: the prefix keeps the ids that were sampled.
    2. Groups that the filter drops stay in the batch without an advantage, instead of being replaced by new prompts.
    3. Likelihoods are computed in float32.

    Args:
        model, reward_funcs, ..., environment_factory:
            The arguments of [`~trl.GRPOTrainer`] in their order; `args` is a [`DarlConfig`]. `reward_funcs` may be
            left out. `tools`, `rollout_func`, `environment_factory` and images are refused.
        scorer ([`Scorer`], *optional*):
            Scores instead of the policy. Its `score` is called on every rank, with the rows of that rank.

    The data set needs the columns `prompt`, plain or conversational, and `answer` (or `reference_column`).

    Logs, besides what GRPO logs: `darl/*` (docs/metrics.md).

    Raises:
        `TypeError`: if `args` is no [`DarlConfig`].
        `ValueError`: if the configuration contradicts itself, or references are missing. In training, on every rank:
        if a reward function or the scoring fails on any of them, or no reference has a finite likelihood.

    Example:

    ```python
    from datasets import Dataset
    from trl_diversity import DarlConfig, DarlTrainer


    question = "What is the capital of France? Think, then answer in <answer> tags."
    trainer = DarlTrainer(
        model="HuggingFaceTB/SmolLM2-135M-Instruct",
        args=DarlConfig("smollm2-darl", max_completion_length=64, format_style="r1_nothink"),
        train_dataset=Dataset.from_dict({"prompt": [question] * 64, "answer": ["Paris"] * 64}),
    )
    trainer.train()
    ```
    """

    args: DarlConfig

    _tag_names = ["trl", "grpo", "darl"]
    _name = "Darl"
    _paper = {
        "title": "DARL: Encouraging Diverse Answers for General Reasoning without Verifiers",
        "id": "2601.14700",
        "citation": (
            "@inproceedings{huang2026darl,\n"
            "    title     = {{DARL: Encouraging Diverse Answers for General Reasoning without Verifiers}},\n"
            "    author    = {Chongxuan Huang and Lei Lin and Xiaodong Shi and Wenping Hu and Ruiming Tang},\n"
            "    booktitle = {Findings of the Association for Computational Linguistics: ACL 2026},\n"
            "    year      = 2026,\n"
            "    eprint    = {arXiv:2601.14700},\n"
            "}\n\n"
            "@article{yu2025rlpr,\n"
            "    title  = {{RLPR: Extrapolating RLVR to General Domains without Verifiers}},\n"
            "    author = {Tianyu Yu and others},\n"
            "    year   = 2025,\n"
            "    eprint = {arXiv:2506.18254},\n"
            "}"
        ),
    }

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: DarlConfig | None = None,
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
        scorer=None,
    ):
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = DarlConfig(f"{name.split('/')[-1]}-Darl")
        if not isinstance(args, DarlConfig):
            raise TypeError(f"`args` is a `DarlConfig`, got {type(args).__name__}.")
        _check_scorer(scorer, args)
        refuse_options("DarlTrainer", tools=tools, rollout_func=rollout_func, environment_factory=environment_factory)
        if not reward_funcs and args.reward_weights is not None:
            raise ValueError(
                f"`reward_weights` is {args.reward_weights}, but there are no `reward_funcs` to weigh: Darl's own "
                "reward has no weight. Remove it, or give `reward_funcs`."
            )
        checks = (args.reference_column, args.drop_empty_references)
        train_dataset = checked_references(train_dataset, *checks, "train_dataset")
        eval_dataset = checked_references(eval_dataset, *checks, "eval_dataset")
        if args.debias and train_dataset is not None and not isinstance(train_dataset, Dataset):
            raise ValueError(
                "`debias=True` scores the whole train set with the initial policy before step 1, which a streamed "
                "data set does not allow. Load it as a `Dataset`, or set `debias=False`."
            )
        reward_funcs = list(reward_funcs) if isinstance(reward_funcs, list) else reward_funcs
        super().__init__(
            model=model,
            reward_funcs=reward_funcs or only_reward_column("darl"),
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
        self._refuse_unknown_tokens("DarlTrainer", tools, environment_factory)
        # Weights of the other reward functions, (n_functions,)
        self.quality_weights = append_reward_column(self, "darl") if reward_funcs else torch.zeros(0)
        self.scorer = scorer if scorer is not None else self._make_scorer()
        self.add_callback(DarlState(args.std_filter_beta))

    @property
    def darl_state(self) -> DarlState:
        """What the reward remembers between steps. Transformers may replace the callback on resume."""
        return next(callback for callback in self.callback_handler.callbacks if isinstance(callback, DarlState))

    def _make_scorer(self) -> Scorer:
        if self.args.score_on_server:
            address = f"http://{self.args.vllm_server_host}:{self.args.vllm_server_port}"
            return ServerScorer(
                self.args.vllm_server_base_url or address,
                max_concurrency=max(8 // self.accelerator.num_processes, 1),  # of each rank
                timeout=self.args.vllm_server_timeout,
            )
        settings: dict[str, Any] = {
            "path": self.args.score_path,
            "tokens_per_forward": self.args.score_tokens_per_forward,
            "agree_on_max": max_over_ranks,
        }
        if self.args.scorer_model is None:
            return PolicyScorer(self.model, pad_token_id=self._tokenizer.pad_token_id, **settings)
        trust_remote_code = self.args.trust_remote_code
        model = AutoModelForCausalLM.from_pretrained(self.args.scorer_model, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(self.args.scorer_model, trust_remote_code=trust_remote_code)
        model.requires_grad_(False)
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if self.is_deepspeed_enabled:
            model = prepare_deepspeed(model, self.accelerator)
        else:
            settings.pop("agree_on_max")  # every rank has the whole model
            model = model.to(self.accelerator.device)
        return FrozenScorer(model, tokenizer, self._tokenizer, max_length=longest, **settings)

    def score_rows(self, rows: list[ScoringRow]) -> list[RowScores]:
        """Likelihoods of this rank's rows. Collective where the model is sharded: every rank reaches this."""
        if isinstance(self.scorer, PolicyScorer) and base_model(self.scorer.model) is base_model(self.model):
            self.scorer.model = self.model_wrapped
        scores = list(self.scorer.score(rows))
        if len(scores) != len(rows):
            raise ValueError(f"{type(self.scorer).__name__} gave {len(scores)} scores for {len(rows)} rows.")
        return scores

    @property
    def max_length(self) -> int | None:
        """Most tokens of prompt, reasoning and reference together; one is left, as a server would need it."""
        longest = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return None if longest is None else longest - 1

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        is_training = self.model.training  # read before anything calls `eval()`
        group_size: Any = self.num_generations if is_training else self.num_generations_eval
        with kept_errors(self) as errors:
            rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.args.debias and not self.darl_state.baseline:
            self.darl_state.baseline = score_baselines(self)
        scored = self._score_completions(inputs, errors[0] if errors else None)
        rewards = torch.tensor(combine_completions(self.args, scored), device=rewards_per_func.device)  # (N,)
        if len(self.quality_weights):
            rewards = rewards + torch.nan_to_num(weighted_quality(rewards_per_func, self.quality_weights), nan=0.0)
        rewards_per_func[:, -1] = rewards
        # Without a reward a completion must have no advantage, which takes NaN in every column
        rewards_per_func[torch.isnan(rewards)] = torch.nan
        metrics = darl_metrics(self.args, scored)
        if is_training and self.darl_state.std_filter is not None:
            kept = self.darl_state.std_filter.update(group_stds(rewards.tolist(), group_size))
            rewards_per_func.view(-1, group_size, rewards_per_func.size(1))[~torch.tensor(kept)] = torch.nan
            metrics["darl/filtered_fraction"] = 1 - sum(kept) / len(kept)
        self._report(metrics, scored, len(prompts))
        return rewards_per_func

    def _score_completions(self, inputs, error: Exception | None) -> list[ScoredCompletion]:
        """Score this rank's completions, and return those of all ranks; raises on every rank what failed on any."""
        rank = self.accelerator.process_index
        prepared: list[PreparedCompletion] = []
        try:
            prepared = [self._prepare(*row) for row in zip(*self._sampled_ids, inputs, strict=True)]
        except Exception as caught:
            error = error or caught
        exchange(None, error, rank)  # collective: every rank reaches this
        scored = None
        try:
            rows = [completion.row for completion in prepared if completion.row is not None]
            scores = iter(self.score_rows(rows))
            scored = [
                self._scored(completion, next(scores) if completion.row is not None else None, *row)
                for completion, row in zip(prepared, zip(*self._sampled_ids, inputs, strict=True), strict=True)
            ]
        except Exception as caught:
            error = caught
        parts = exchange(scored, error, rank)  # collective: every rank reaches this
        return [completion for part in parts for completion in part]

    def _prepare(self, prompt_ids, completion_ids, row) -> PreparedCompletion:
        return prepare_completion(
            prompt_ids,
            completion_ids,
            row_reference(row, self.args.reference_column),
            self._tokenizer,
            self.args.answer_format,
            max_length=self.max_length,
            eos_token_ids=self.eos_token_ids,
        )

    def _scored(self, prepared, scores, prompt_ids, completion_ids, row) -> ScoredCompletion:
        text = decode(completion_ids, self._tokenizer)
        if self.args.answer_format == "tags":
            tail = assistant_tail(prompt_ids, self._tokenizer)
            format_score = format_reward(text, self.args.format_style, prompt_tail=tail)
        else:
            format_score = float(prepared.span.malformed is None)
        return scored_completion(
            prepared,
            scores,
            self.args.aggregation,
            format_score=format_score,
            penalty=repetition_penalty(text) if self.args.repetition_penalty_reward else 0.0,
            baseline=known_baseline(self, row) if self.args.debias else float("nan"),
        )

    def _report(self, metrics, scored, n_local):
        """Log the metrics of this step and the columns of the completions table."""
        for name, value in metrics.items():
            self._log_metric(name, value)
        start = self.accelerator.process_index * n_local
        local = scored[start : start + n_local]
        rows = [(one.answer, one.reference_likelihood, one.answer_likelihood, one.malformed) for one in local]
        for column, values in zip(_COLUMNS, zip(*rows, strict=True), strict=True):
            super()._log_completion_extra(column, list(values))

    def _log_completion_extra(self, column: str, values: list):
        if column in _COLUMNS:
            raise ValueError(f"The column {column!r} of the completions table is Darl's: log under another name.")
        super()._log_completion_extra(column, values)


def _check_scorer(scorer: Any, args: DarlConfig) -> None:
    """Refuse what is no scorer, and settings of which a scorer given as an object would know nothing."""
    if scorer is None:
        return
    if isinstance(scorer, type) or not callable(getattr(scorer, "score", None)):
        kind = f"the class {scorer.__name__}" if isinstance(scorer, type) else type(scorer).__name__
        raise TypeError(f"`scorer` is {kind}; accepted is an object with a method `score`, such as a `FrozenScorer`.")
    conflicting = settings_that_differ(
        args, ["scorer_model", "score_on_server", "score_path", "score_tokens_per_forward"]
    )
    if conflicting:
        raise ValueError(f"Both `scorer` and `{conflicting[0]}` are given. Give one of the two.")
