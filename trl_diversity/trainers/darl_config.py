# SPDX-License-Identifier: Apache-2.0
"""Arguments of [`DarlTrainer`]: those of TRL's `GRPOConfig`, and how likelihoods become rewards."""

import math
from dataclasses import dataclass, field

from trl import GRPOConfig

from trl_diversity.likelihood import answer_finder, check_reward_settings
from trl_diversity.likelihood.text_rewards import FORMAT_STYLES
from trl_diversity.trainers.config_checks import check_aggregation, check_save_steps, settings_that_differ


SCORE_PATHS = ("auto", "fast", "two_pass")


@dataclass
class DarlConfig(GRPOConfig):
    r"""
    Configuration class for the [`DarlTrainer`].

    It holds what Darl adds to [`~trl.GRPOConfig`]; all of that class's arguments are accepted. Papers: arXiv
    2601.14700 (Darl) and 2506.18254 (RLPR, on which it builds).

    Parameters:
        > Parameters that control the reward

        alpha (`float`, *optional*, defaults to `1.0`):
            Weight of the reference's likelihood.
        delta_weight (`float`, *optional*, defaults to `0.01`):
            Weight of the bonus for answers that differ from the reference: the paper's beta, a name that
            [`~trl.GRPOConfig`] uses for the KL term. 0 is RLPR.
        threshold_type (`str`, *optional*, defaults to `"dynamic"`):
            Bound of the bonus: `"dynamic"` (tau is the reference's likelihood over `gamma`) or `"static"` (`tau`).
        gamma (`float`, *optional*, defaults to `8.0`):
            Divisor of the dynamic bound, above 0.
        tau (`float`, *optional*):
            The static bound, at least 0.
        debias (`bool`, *optional*, defaults to `False`):
            Subtract the reference's likelihood without any reasoning, under the initial policy, and clip to `[0, 1]`.
        aggregation (`str`, *optional*, defaults to `"mean_prob"`):
            From token probabilities to a likelihood: `"mean_prob"`, `"mean_logprob"`, `"product"` or
            `"geometric_mean"`.
        format_style (`str`, *optional*, defaults to `"r1"`):
            Tags that earn the format reward with `answer_format="tags"`: `"r1"` (think and answer) or `"r1_nothink"`
            (answer). With other formats a completion earns it if its answer can be found.
        format_weight (`float`, *optional*, defaults to `0.1`):
            Share of the format in the reward, in `[0, 1]`.
        repetition_penalty_reward (`bool`, *optional*, defaults to `False`):
            Add -1 where some ten-word window occurs ten times.
        std_filter_beta (`float`, *optional*):
            Drop groups whose rewards vary less than this share of the moving average of past steps. RLPR: 0.5 (Qwen),
            0.9 (Llama).

        > Parameters that control how likelihoods are computed

        answer_format (`str`, *optional*, defaults to `"tags"`):
            Where the answer stands: `"tags"` (`<answer>`), `"boxed"` (`\boxed{}`), `"after_think"`, or a regular
            expression with a group.
        reference_column (`str`, *optional*, defaults to `"answer"`):
            Column of the data set that holds the references.
        drop_empty_references (`bool`, *optional*, defaults to `False`):
            Drop rows without a reference instead of refusing the data set.
        scorer_model (`str`, *optional*):
            Name or path of a fixed model that scores instead of the policy.
        score_on_server (`bool`, *optional*, defaults to `False`):
            Score with the vLLM server that generates, instead of a forward pass of the trainer's model. Needs
            `use_vllm` and `vllm_mode="server"`. TRL sends the policy's weights to the server before each generation,
            so the likelihoods are the current policy's, in the server's precision. Every rank must reach the server.
        score_path (`str`, *optional*, defaults to `"auto"`):
            `"fast"` (one pass over both answers), `"two_pass"`, or `"auto"`.
        score_tokens_per_forward (`int`, *optional*, defaults to `8192`):
            Most tokens in one scoring pass, padding included.

    > [!NOTE]
    > These parameters have default values different from [`~trl.GRPOConfig`], and are RLPR's:
    > - `epsilon_high`: Defaults to `0.27` instead of `None`.
    > `beta=0.0`, `scale_rewards="group"` and `loss_type="dapo"` are the paper's too, and stay so if TRL's defaults
    > move.

    Raises:
        `ValueError`: if an option is unknown, out of range or without effect, if
        `multi_objective_aggregation="normalize_then_sum"`, or if `save_steps` would cut a generation batch.
    """

    beta: float = field(default=0.0, metadata={"help": "KL coefficient. 0 loads no reference model."})
    epsilon_high: float | None = field(default=0.27, metadata={"help": "Upper bound of the clipping range."})
    scale_rewards: str = field(
        default="group", metadata={"help": "How advantages are scaled: `group`, `batch` or `none`."}
    )
    loss_type: str = field(
        default="dapo", metadata={"help": "Loss of `GRPOConfig`. `dapo` averages over the tokens of the whole batch."}
    )

    alpha: float = field(default=1.0, metadata={"help": "Weight of the reference's likelihood."})
    delta_weight: float = field(
        default=0.01,
        metadata={"help": "Weight of the bonus for answers that differ from the reference (the paper's beta)."},
    )
    threshold_type: str = field(
        default="dynamic",
        metadata={"help": "Bound of the bonus: `dynamic` (likelihood / gamma) or `static` (tau)."},
    )
    gamma: float = field(default=8.0, metadata={"help": "Divisor of the dynamic bound, above 0."})
    tau: float | None = field(default=None, metadata={"help": "The static bound, at least 0."})
    debias: bool = field(
        default=False,
        metadata={"help": "Subtract the reference's likelihood without reasoning, under the initial policy."},
    )
    aggregation: str = field(
        default="mean_prob",
        metadata={"help": "`mean_prob`, `mean_logprob`, `product` or `geometric_mean` of the token probabilities."},
    )
    format_style: str = field(
        default="r1",
        metadata={"help": "Tags that earn the format reward: `r1` (think and answer) or `r1_nothink` (answer)."},
    )
    format_weight: float = field(default=0.1, metadata={"help": "Share of the format in the reward, in [0, 1]."})
    repetition_penalty_reward: bool = field(
        default=False, metadata={"help": "Add -1 where some ten-word window occurs ten times."}
    )
    std_filter_beta: float | None = field(
        default=None,
        metadata={"help": "Drop groups whose rewards vary less than this share of the average of past steps."},
    )
    answer_format: str = field(
        default="tags",
        metadata={"help": "`tags`, `boxed`, `after_think` or a regular expression with a group for the answer."},
    )
    reference_column: str = field(default="answer", metadata={"help": "Column that holds the references."})
    drop_empty_references: bool = field(
        default=False, metadata={"help": "Drop rows without a reference instead of refusing the data set."}
    )
    scorer_model: str | None = field(
        default=None, metadata={"help": "Name or path of a fixed model that scores instead of the policy."}
    )
    score_on_server: bool = field(
        default=False,
        metadata={"help": "Score with the vLLM server that generates; needs `use_vllm` and `vllm_mode: server`."},
    )
    score_path: str = field(
        default="auto", metadata={"help": "`fast` (one pass over both answers), `two_pass` or `auto`."}
    )
    score_tokens_per_forward: int = field(
        default=8192, metadata={"help": "Most tokens in one scoring pass, padding included."}
    )

    def __post_init__(self):
        super().__post_init__()
        check_aggregation(self)
        check_save_steps(self)
        _check_score_on_server(self)
        check_reward_settings(self.threshold_type, self.gamma, self.tau, self.aggregation, self.format_weight)
        answer_finder(self.answer_format)
        for name, accepted in (("format_style", tuple(FORMAT_STYLES)), ("score_path", SCORE_PATHS)):
            if getattr(self, name) not in accepted:
                raise ValueError(
                    f"`{name}` is {getattr(self, name)!r}; accepted are {', '.join(map(repr, accepted))}."
                )
        for name in ("alpha", "delta_weight"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"`{name}` is {getattr(self, name)}; accepted is a finite number.")
        if self.score_tokens_per_forward < 1:
            raise ValueError(f"`score_tokens_per_forward` is at least 1; got {self.score_tokens_per_forward}.")
        if self.std_filter_beta is not None and not self.std_filter_beta > 0:
            raise ValueError(
                f"`std_filter_beta` lies above 0; got {self.std_filter_beta}. Leave it out to filter none."
            )
        unused = {"dynamic": ["tau"], "static": ["gamma"]}[self.threshold_type]
        if settings_that_differ(self, unused):
            raise ValueError(
                f"`{unused[0]}` has no effect with `threshold_type: {self.threshold_type}`. Remove one of the two."
            )
        if self.answer_format != "tags" and settings_that_differ(self, ["format_style"]):
            raise ValueError("`format_style` belongs to `answer_format: tags`. Remove one of the two.")
        if self.remove_unused_columns:
            raise ValueError(
                f"`remove_unused_columns=True` would drop the column of the references, {self.reference_column!r}, "
                "before the reward reads it. Set it to False."
            )


def _check_score_on_server(args: DarlConfig) -> None:
    """Refuse `score_on_server` without such a server, or with settings of another way of scoring."""
    if not args.score_on_server:
        return
    if not args.use_vllm or args.vllm_mode != "server":
        raise ValueError(
            "`score_on_server=True` needs the server of `use_vllm=True` and `vllm_mode='server'`; got "
            f"`use_vllm={args.use_vllm}` and `vllm_mode={args.vllm_mode!r}`. Set both, or remove `score_on_server`."
        )
    unused = settings_that_differ(args, ["scorer_model", "score_path", "score_tokens_per_forward"])
    if unused:
        raise ValueError(f"`{unused[0]}` has no effect with `score_on_server`. Remove one of the two.")
