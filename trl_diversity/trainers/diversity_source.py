# SPDX-License-Identifier: Apache-2.0
"""From the argument `diversity` and the configuration to the diversity measure of a run."""

import importlib
import logging
import os
import sys
from typing import Any

import torch

from trl_diversity.diversity import DiversityMeasure, NgramDiversity, PartitionDiversity, UnlikelinessDiversity
from trl_diversity.equivalence import JudgeEquivalence, ServerEquivalence, load_equivalence_model
from trl_diversity.trainers.config_checks import settings_that_differ
from trl_diversity.trainers.darling_config import MEASURE_SETTINGS, DarlingConfig
from trl_diversity.zero3 import outside_zero3


logger = logging.getLogger(__name__)

# How an equivalence model is used, whoever brings it; the other settings choose or shape another one.
_USE_OF_A_MODEL = ("clustering", "short_answer_rule")


def check_diversity_argument(diversity: Any, args: DarlingConfig) -> None:
    """
    Refuse an argument `diversity` that contradicts the configuration. Loads nothing.

    Raises:
        `TypeError`: if `diversity` is none of the accepted kinds.
        `ValueError`: if both name a measure, or neither does.
    """
    if diversity is None:
        if args.diversity_measure == "partition" and not _names_a_model(args):
            raise ValueError(
                "`diversity_measure: partition` needs an equivalence model. Set `partition_model` to the name or path "
                "of a pair classifier or a sentence-transformers model, `partition_server_urls` to addresses of vLLM "
                "servers of a pair classifier, or `judge_base_url` and `judge_model` to those of a chat server, pass "
                "`diversity=` to the trainer, or choose `diversity_measure: ngram`, 'unlikeliness' or 'none'."
            )
        return
    if isinstance(diversity, str) and args.judge_base_url is not None:
        raise ValueError(
            f"`diversity={diversity!r}` was given to the trainer, and the configuration sets `judge_base_url`. Give "
            "one of the two."
        )
    # A name goes before `partition_model`; how that model is used is still configured.
    others = [] if isinstance(diversity, str) else _settings_of_another_measure(diversity, "`diversity`")
    if conflicting := settings_that_differ(args, ["diversity_measure", *others]):
        names = ", ".join(f"`{name}`" for name in conflicting)
        raise ValueError(
            f"`diversity` was given to the trainer, and the configuration sets {names}, which would have no effect on "
            "it. Give one of the two."
        )


def _names_a_model(args: DarlingConfig) -> bool:
    return any((args.partition_model, args.partition_server_urls, args.judge_base_url))


def _settings_of_another_measure(measure: Any, what: str) -> list[str]:
    """Settings that have no effect on a measure or an equivalence model that the configuration did not build."""
    if not isinstance(measure, type):
        if hasattr(measure, "score_pairs"):
            return [name for name in MEASURE_SETTINGS if name not in _USE_OF_A_MODEL]
        if callable(measure):
            return list(MEASURE_SETTINGS)
    kind = f"the class {measure.__name__}" if isinstance(measure, type) else f"of type {type(measure).__name__}"
    raise TypeError(
        f"{what} is {kind}; accepted are a name or path, an equivalence model (an object with `score_pairs`) or a "
        "diversity measure (a callable over groups)."
    )


def resolve_diversity(diversity: Any, args: DarlingConfig, device: torch.device) -> DiversityMeasure | None:
    """
    The diversity measure of a run.

    Args:
        diversity (`str`, [`EquivalenceModel`], [`DiversityMeasure`] or `None`):
            The trainer's argument. It goes before the configuration.
        args ([`DarlingConfig`]):
            The configuration.
        device (`torch.device`):
            Where a local equivalence model goes if the configuration does not say.

    Returns:
        [`DiversityMeasure`], or `None` for plain GRPO.
    """
    if isinstance(diversity, str):
        return _partition(_load(diversity, args, device), args)
    if diversity is None:
        if args.diversity_measure == "none":
            return None
        if args.diversity_measure == "partition":
            return _partition(_load(args.partition_model, args, device), args)
        if args.diversity_measure == "ngram":
            return NgramDiversity(args.ngram_n)
        if args.diversity_measure == "unlikeliness":
            return UnlikelinessDiversity(args.beta_rank)
        diversity = _import_measure(args)
    return _partition(diversity, args) if hasattr(diversity, "score_pairs") else diversity


def _import_measure(args: DarlingConfig) -> Any:
    what = f"`diversity_measure: {args.diversity_measure}`"
    measure = import_dotted(args.diversity_measure)
    measure = measure() if isinstance(measure, type) else measure
    if conflicting := settings_that_differ(args, _settings_of_another_measure(measure, what)):
        names = ", ".join(f"`{name}`" for name in conflicting)
        raise ValueError(f"{what} is a measure of its own: {names} would have no effect on it. Remove one of the two.")
    return measure


def import_dotted(path: str) -> Any:
    """
    Import `package.module.name`; modules of the working directory are found too.

    Raises:
        `ValueError`: if the module cannot be imported or has no such name.
    """
    module_name, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{path!r} is no dotted path: give `package.module.name`.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"Nothing can be imported from the dotted path {path!r}: {error}.") from error


def _load(name_or_path: str | None, args: DarlingConfig, device: torch.device) -> Any:
    of_servers: dict[str, Any] = {
        "max_concurrency": args.server_concurrency,
        "timeout": args.server_timeout,
        "retries": args.server_retries,
    }
    if args.judge_base_url is not None:
        return JudgeEquivalence(
            args.judge_base_url,
            str(args.judge_model),
            args.judge_prompt,
            yes_means=args.judge_yes_means,
            unparsable=args.judge_unparsable,
            **of_servers,
        )
    if args.partition_server_urls is not None:
        return ServerEquivalence(
            args.partition_server_urls,
            name_or_path,
            args.partition_threshold,
            trust_remote_code=args.trust_remote_code,
            **of_servers,
        )
    with outside_zero3():
        return load_equivalence_model(
            str(name_or_path),
            threshold=args.partition_threshold,
            device=args.partition_device or str(device),
            dtype=args.partition_dtype,
            trust_remote_code=args.trust_remote_code,
        )


def _partition(model: Any, args: DarlingConfig) -> PartitionDiversity:
    measure = PartitionDiversity(model, clustering=args.clustering, short_answer_rule=args.short_answer_rule)
    logger.info(
        "Darling compares completions with %s, threshold %.4g, clustering %s.",
        type(model).__name__,
        measure.threshold,
        measure.clustering,
    )
    return measure
