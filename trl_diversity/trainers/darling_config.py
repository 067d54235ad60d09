# SPDX-License-Identifier: Apache-2.0
"""Arguments of [`DarlingTrainer`]: those of TRL's `GRPOConfig`, and how diversity is measured and combined."""

import logging
import math
from dataclasses import dataclass, field

from trl import GRPOConfig

from trl_diversity.diversity.clustering import CLUSTERINGS
from trl_diversity.diversity.combine import COMBINES, DIVERSITY_NORMS, QUALITY_SHIFTS
from trl_diversity.diversity.groups import DIVERSITY_TEXTS
from trl_diversity.trainers.config_checks import (
    check_aggregation,
    check_partition_source,
    check_save_steps,
    settings_that_differ,
)


logger = logging.getLogger(__name__)

DIVERSITY_MEASURES = ("partition", "ngram", "unlikeliness", "none")
# The settings that choose or shape a diversity measure, and the measures they belong to.
MEASURE_SETTINGS = {
    "partition_model": ("partition",),
    "partition_threshold": ("partition",),
    "partition_device": ("partition",),
    "partition_dtype": ("partition",),
    "partition_server_urls": ("partition",),
    "judge_base_url": ("partition",),
    "judge_model": ("partition",),
    "judge_prompt": ("partition",),
    "judge_yes_means": ("partition",),
    "judge_unparsable": ("partition",),
    "server_concurrency": ("partition",),
    "server_timeout": ("partition",),
    "server_retries": ("partition",),
    "clustering": ("partition",),
    "short_answer_rule": ("partition",),
    "ngram_n": ("ngram",),
    "beta_rank": ("unlikeliness",),
}


@dataclass
class DarlingConfig(GRPOConfig):
    r"""
    Configuration class for the [`DarlingTrainer`].

    It holds what Darling adds to [`~trl.GRPOConfig`]; all of that class's arguments are accepted. Text in the paper:
    arXiv 2509.02534.

    Parameters:
        > Parameters that control how diversity is measured

        diversity_measure (`str`, *optional*, defaults to `"partition"`):
            `"partition"` (an equivalence model sorts completions into clusters), `"ngram"` (novel word n-grams),
            `"unlikeliness"` (rank of the policy's own likelihood), `"none"` (plain GRPO: the reward is the quality),
            or the dotted path of a [`DiversityMeasure`] or of a class of them that needs no arguments.
        partition_model (`str`, *optional*):
            Name or path of the equivalence model: a sequence classifier of pairs or a sentence-transformers model.
            With `partition_server_urls`, the classifier that the servers serve (by default what they say).
        partition_server_urls (`list[str]`, *optional*):
            Addresses of vLLM servers of a pair classifier, which judge instead of a local model
            ([`ServerEquivalence`]).
        judge_base_url (`str`, *optional*):
            Address of an OpenAI-compatible chat server, which judges instead of a classifier ([`JudgeEquivalence`]).
            Its key is read from the environment variable `JUDGE_API_KEY`.
        judge_model (`str`, *optional*):
            Name of the model at `judge_base_url`.
        judge_prompt (`str`, *optional*, defaults to `"writing"`):
            `"writing"`, `"math"`, or a template, or the path of a file that holds one.
        judge_yes_means (`str`, *optional*):
            `"same"` or `"different"`: what the verdict [[yes]] of a template of one's own says.
        judge_unparsable (`str`, *optional*, defaults to `"error"`):
            What happens if the judge gives no verdict twice: `"error"`, or the pair counts as `"different"`.
        server_concurrency (`int`, *optional*, defaults to `16`):
            Most requests of a rank under way at a time, over all servers.
        server_timeout (`float`, *optional*, defaults to `60.0`):
            Seconds to wait for an answer of a server.
        server_retries (`int`, *optional*, defaults to `3`):
            Further rounds over the servers. After `(server_retries + 1) * server_timeout` seconds the step fails.
        partition_threshold (`float`, *optional*):
            Probability in `[0, 1]` above which two completions are one cluster. The checkpoint's own by default.
        clustering (`str`, *optional*, defaults to `"closure"`):
            `"closure"` (transitive, the paper's training), `"greedy"` (NoveltyBench) or `"pairwise"` (Eq. 4 on raw
            judgements).
        short_answer_rule (`bool`, *optional*, defaults to `False`):
            Settle pairs of at most five words by their common words, as the released code does.
        partition_device (`str`, *optional*):
            Device of a local equivalence model. The rank's own by default.
        partition_dtype (`str`, *optional*):
            Data type of a local equivalence model. `float32` on CPU and `bfloat16` on GPU by default.
        ngram_n (`int`, *optional*, defaults to `4`):
            Words per n-gram.
        beta_rank (`float`, *optional*, defaults to `0.25`):
            Share of its reward that the likeliest completion loses with `"unlikeliness"`, in `[0, 1]`.
        diversity_text (`str`, *optional*, defaults to `"full"`):
            Which text of a completion is compared: `"full"`, `"after_think"`, `"answer"` (answer tags or `\boxed{}`)
            or `"last_tokens"`.
        diversity_last_tokens (`int`, *optional*, defaults to `256`):
            Policy tokens that `"last_tokens"` keeps.

        > Parameters that control how quality and diversity are combined

        combine (`str`, *optional*, defaults to `"multiply"`):
            `"multiply"` (Eq. 6) or `"add"` (standardised within the group and summed).
        diversity_weight (`float`, *optional*, defaults to `1.0`):
            Weight of the diversity in `"add"`.
        diversity_floor (`float`, *optional*, defaults to `0.0`):
            Least normalised diversity, in `[0, 1]`. The released code has 0.1.
        diversity_norm (`str`, *optional*, defaults to `"linear"`):
            `"linear"`, `"sigmoid"`, `"minmax"` or `"inverse_size"`.
        quality_shift (`str`, *optional*, defaults to `"auto"`):
            `"auto"` lifts a group whose lowest quality is negative to 0, `"none"` is the paper's letter, `"group_min"`
            takes the group's minimum away, `"sigmoid"` maps the quality to `(0, 1)`.
        allow_negative_quality (`bool`, *optional*, defaults to `False`):
            Accept mostly negative qualities with `quality_shift="none"`.
        partition_correct_only (`bool`, *optional*, defaults to `False`):
            Measure diversity among the completions with a quality above 0; the others get the floor.

    > [!NOTE]
    > These parameters have default values different from [`~trl.GRPOConfig`], and are the paper's:
    > - `scale_rewards`: Defaults to `"none"` instead of `"group"`.
    > - `beta`: Defaults to `0.001` instead of `0.0`.
    > - `use_bias_correction_kl`: Defaults to `False` instead of `True`, which changes the k3 estimator's gradient.
    > - `vllm_importance_sampling_correction`: Defaults to `False` instead of `True`.
    > `loss_type="dapo"`, `num_generations=8`, `temperature=1.0` and `learning_rate=1e-6` are the paper's too, and stay
    > so if TRL's defaults move.

    Raises:
        `ValueError`: if an option is unknown, out of range or without effect, if
        `multi_objective_aggregation="normalize_then_sum"`, or if `save_steps` would cut a generation batch.
    """

    scale_rewards: str = field(
        default="none",
        metadata={
            "help": "How advantages are scaled: `none` (Darling's default), `group` (standard deviation of the group) "
            "or `batch`."
        },
    )
    loss_type: str = field(
        default="dapo",
        metadata={"help": "Loss of `GRPOConfig`. `dapo` averages over the tokens of the whole batch, as the paper."},
    )
    num_generations: int | None = field(
        default=8,
        metadata={"help": "Completions per prompt, whose diversity is measured against each other."},
    )
    temperature: float = field(default=1.0, metadata={"help": "Sampling temperature."})
    learning_rate: float = field(default=1e-6, metadata={"help": "The initial learning rate for AdamW."})
    beta: float = field(
        default=0.001, metadata={"help": "KL coefficient, with the k3 estimator. 0 loads no reference model."}
    )
    use_bias_correction_kl: bool = field(
        default=False,
        metadata={"help": "Multiply the KL term by the importance ratio. Changes the gradient; off in the paper."},
    )
    vllm_importance_sampling_correction: bool = field(
        default=False,
        metadata={"help": "Correct for the mismatch between vLLM and the trainer. Off in the paper."},
    )

    diversity_measure: str = field(
        default="partition",
        metadata={
            "help": "`partition` (an equivalence model sorts completions into clusters), `ngram`, `unlikeliness`, "
            "`none` (plain GRPO) or a dotted path."
        },
    )
    partition_model: str | None = field(
        default=None,
        metadata={
            "help": "Name or path of the equivalence model: a sequence classifier of pairs or a sentence-transformers "
            "model."
        },
    )
    partition_server_urls: list[str] | None = field(
        default=None,
        metadata={"help": "Addresses of vLLM servers of a pair classifier, which judge instead of a local model."},
    )
    judge_base_url: str | None = field(
        default=None,
        metadata={
            "help": "Address of an OpenAI-compatible chat server, which judges instead of a classifier. Its key is "
            "read from the environment variable JUDGE_API_KEY."
        },
    )
    judge_model: str | None = field(default=None, metadata={"help": "Name of the model at `judge_base_url`."})
    judge_prompt: str = field(
        default="writing",
        metadata={"help": "Question to the judge: `writing`, `math`, a template, or a file that holds one."},
    )
    judge_yes_means: str | None = field(
        default=None,
        metadata={"help": "`same` or `different`: what [[yes]] says as the answer to a template of your own."},
    )
    judge_unparsable: str = field(
        default="error",
        metadata={"help": "If the judge gives no verdict twice: `error`, or the pair counts as `different`."},
    )
    server_concurrency: int = field(
        default=16, metadata={"help": "Most requests of a rank under way at a time, over all servers that judge."}
    )
    server_timeout: float = field(default=60.0, metadata={"help": "Seconds to wait for an answer of such a server."})
    server_retries: int = field(
        default=3,
        metadata={"help": "Further rounds over the servers after the first one, with growing waits in between."},
    )
    partition_threshold: float | None = field(
        default=None,
        metadata={"help": "Probability above which two completions are one cluster. Default: the checkpoint's own."},
    )
    clustering: str = field(
        default="closure",
        metadata={"help": "`closure` (transitive), `greedy` (NoveltyBench) or `pairwise` (raw judgements)."},
    )
    short_answer_rule: bool = field(
        default=False,
        metadata={"help": "Settle pairs of at most five words by their common words, as the released code does."},
    )
    partition_device: str | None = field(
        default=None, metadata={"help": "Device of a local equivalence model. Default: the rank's own."}
    )
    partition_dtype: str | None = field(
        default=None,
        metadata={"help": "Data type of a local equivalence model. Default: float32 on CPU, bfloat16 on GPU."},
    )
    ngram_n: int = field(default=4, metadata={"help": "Words per n-gram of the measure `ngram`."})
    beta_rank: float = field(
        default=0.25,
        metadata={"help": "Share of its reward that the likeliest completion loses with `unlikeliness`, in [0, 1]."},
    )
    diversity_text: str = field(
        default="full",
        metadata={"help": "Text of a completion that is compared: `full`, `after_think`, `answer` or `last_tokens`."},
    )
    diversity_last_tokens: int = field(
        default=256, metadata={"help": "Policy tokens that `diversity_text: last_tokens` keeps."}
    )
    combine: str = field(
        default="multiply",
        metadata={"help": "`multiply` (quality x diversity) or `add` (standardised within the group and summed)."},
    )
    diversity_weight: float = field(default=1.0, metadata={"help": "Weight of the diversity with `combine: add`."})
    diversity_floor: float = field(default=0.0, metadata={"help": "Least normalised diversity, in [0, 1]."})
    diversity_norm: str = field(
        default="linear",
        metadata={"help": "Norm of the diversity: `linear`, `sigmoid`, `minmax` or `inverse_size`."},
    )
    quality_shift: str = field(
        default="auto",
        metadata={
            "help": "`auto` (lift groups with a negative quality to 0), `none` (the paper's letter), `group_min` or "
            "`sigmoid`."
        },
    )
    allow_negative_quality: bool = field(
        default=False, metadata={"help": "Accept mostly negative qualities with `quality_shift: none`."}
    )
    partition_correct_only: bool = field(
        default=False,
        metadata={"help": "Measure diversity among completions with a quality above 0; the others get the floor."},
    )

    def __post_init__(self):
        super().__post_init__()
        check_aggregation(self)
        check_save_steps(self)
        check_partition_source(self)
        self._check_choices()
        self._check_ranges()
        self._check_effects()

    def _check_choices(self):
        if self.diversity_measure not in DIVERSITY_MEASURES and "." not in self.diversity_measure:
            raise ValueError(
                f"`diversity_measure` is {self.diversity_measure!r}; accepted are "
                f"{', '.join(map(repr, DIVERSITY_MEASURES))} or the dotted path of a measure."
            )
        for name, accepted in (
            ("clustering", CLUSTERINGS),
            ("combine", COMBINES),
            ("diversity_norm", DIVERSITY_NORMS),
            ("diversity_text", DIVERSITY_TEXTS),
            ("quality_shift", QUALITY_SHIFTS),
        ):
            if getattr(self, name) not in accepted:
                raise ValueError(
                    f"`{name}` is {getattr(self, name)!r}; accepted are {', '.join(map(repr, accepted))}."
                )

    def _check_ranges(self):
        for name in ("partition_threshold", "diversity_floor", "beta_rank"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"`{name}` lies in [0, 1]; got {value}.")
        for name in ("ngram_n", "diversity_last_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is at least 1; got {getattr(self, name)}.")
        if not math.isfinite(self.diversity_weight):
            raise ValueError(f"`diversity_weight` is a finite number; got {self.diversity_weight}.")

    def _check_effects(self):
        """An option that would change nothing is a misunderstanding: say so before anything is trained."""
        for name in settings_that_differ(self, MEASURE_SETTINGS):
            if self.diversity_measure in DIVERSITY_MEASURES and self.diversity_measure not in MEASURE_SETTINGS[name]:
                # No error: a baseline or an ablation is a recipe with one setting changed.
                logger.warning("`%s` has no effect with `diversity_measure: %s`.", name, self.diversity_measure)
        if self.diversity_measure == "none":
            return
        if self.combine == "add" and self.diversity_norm != "linear":
            raise ValueError(
                f"`diversity_norm: {self.diversity_norm}` has no effect with `combine: add`, which standardises the "
                "diversity of each group. Leave it at 'linear'."
            )
        if self.combine == "add" and self.diversity_floor and not self.partition_correct_only:
            raise ValueError("`diversity_floor` has no effect with `combine: add`. Leave it at 0.")
        for name, other, value in (
            ("diversity_weight", "combine", "add"),
            ("allow_negative_quality", "quality_shift", "none"),
            ("diversity_last_tokens", "diversity_text", "last_tokens"),
        ):
            if getattr(self, other) != value and settings_that_differ(self, [name]):
                raise ValueError(
                    f"`{name}` has no effect with `{other}: {getattr(self, other)}`. It belongs to `{other}: {value}`."
                )
        if self.diversity_norm == "inverse_size" and (
            self.diversity_measure in ("ngram", "unlikeliness") or self.clustering == "pairwise"
        ):
            raise ValueError(
                "`diversity_norm: inverse_size` needs clusters: use `diversity_measure: partition` with `clustering: "
                "closure` or 'greedy'."
            )
