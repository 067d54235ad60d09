# SPDX-License-Identifier: Apache-2.0
"""What both configurations refuse, and which of their settings were changed."""

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from trl import GRPOConfig

from trl_diversity.server_address import parse_address


def settings_that_differ(args: GRPOConfig, names: Iterable[str]) -> list[str]:
    """Those of the named arguments that were changed from their defaults."""
    defaults = {field.name: field.default for field in fields(args)}
    return [name for name in names if getattr(args, name) != defaults[name]]


def check_aggregation(args: GRPOConfig) -> None:
    """
    Refuse an aggregation that would treat the columns of the rewards as equals.

    Raises:
        `ValueError`: if `multi_objective_aggregation="normalize_then_sum"`.
    """
    if args.multi_objective_aggregation == "normalize_then_sum":
        raise ValueError(
            "`multi_objective_aggregation='normalize_then_sum'` would normalise the combined reward again. Use "
            "'sum_then_normalize', and `reward_weights` to weigh the rewards."
        )


def generation_period(args: GRPOConfig) -> int:
    """Optimizer steps from one boundary between generations to the next one that is a boundary between steps too."""
    micro_steps = int(args.steps_per_generation or 1) * args.num_iterations  # TRL has set it by now
    return micro_steps // math.gcd(micro_steps, args.gradient_accumulation_steps)


def check_save_steps(args: GRPOConfig, save_steps: float | None = None) -> None:
    """
    Refuse checkpoints that cut a generation batch, from which a run cannot be resumed exactly.

    Args:
        args ([`~trl.GRPOConfig`]):
            Arguments of the run.
        save_steps (`int`, *optional*):
            Optimizer steps between checkpoints, where it is known better than from `args` (a share of the run was
            configured).

    Raises:
        `ValueError`: with the nearest valid values.
    """
    save_steps = args.save_steps if save_steps is None else save_steps
    if args.save_strategy != "steps" or save_steps < 1:
        return
    period = generation_period(args)
    below, rest = divmod(int(save_steps), period)
    if rest:
        nearest = max(round(save_steps / period), 1) * period
        raise ValueError(
            f"`save_steps={int(save_steps)}` cuts a generation batch, which spans {period} optimizer steps "
            f"(steps_per_generation={args.steps_per_generation} x num_iterations={args.num_iterations}, "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}). A run resumes exactly only between "
            f"generations: the nearest valid value is {nearest}, as is any multiple of {period}."
        )


JUDGE_VERDICTS = ("same", "different")
UNPARSABLE = ("error", "different")


def check_partition_source(args: Any) -> None:
    """
    Refuse settings of servers and judges that contradict each other or would have no effect.

    Args:
        args ([`DarlingConfig`]):
            Arguments of the run.

    Raises:
        `ValueError`: naming the settings and what to change.
    """
    servers, judge = args.partition_server_urls, args.judge_base_url
    if isinstance(servers, str):
        raise ValueError(
            f"`partition_server_urls` is a list of addresses, got the text {servers!r}: write [{servers}]."
        )
    if servers is not None and not servers:
        raise ValueError("`partition_server_urls` is empty: give at least one address, or leave it out.")
    for name, urls in (("partition_server_urls", servers or []), ("judge_base_url", [judge] if judge else [])):
        for url in urls:
            try:
                parse_address(url)
            except ValueError as error:
                raise ValueError(f"`{name}`: {error}.") from None
    if servers and judge:
        raise ValueError(
            "`partition_server_urls` and `judge_base_url` are both given. Only one can judge: remove one."
        )
    if (judge is None) != (args.judge_model is None):
        raise ValueError(
            "`judge_base_url` and `judge_model` belong together: give the address of a chat server and the name of "
            "the model there."
        )
    _check_effects_of_servers(args)
    for name, accepted in (("judge_yes_means", (None, *JUDGE_VERDICTS)), ("judge_unparsable", UNPARSABLE)):
        if getattr(args, name) not in accepted:
            choices = ", ".join(repr(value) for value in accepted if value is not None)
            raise ValueError(f"`{name}` is {getattr(args, name)!r}; accepted are {choices}.")
    for name, least in (("server_concurrency", 1), ("server_retries", 0)):
        if getattr(args, name) < least:
            raise ValueError(f"`{name}` is at least {least}; got {getattr(args, name)}.")
    if not 0 < args.server_timeout < math.inf:
        raise ValueError(f"`server_timeout` is a number of seconds above 0; got {args.server_timeout}.")


def _check_effects_of_servers(args: Any) -> None:
    of_a_judge = ("judge_prompt", "judge_yes_means", "judge_unparsable")
    of_servers = ("server_concurrency", "server_timeout", "server_retries")
    of_a_local_model = ("partition_device", "partition_dtype")
    servers, judge = args.partition_server_urls, args.judge_base_url
    for names, has_effect, why in (
        (of_a_judge, bool(judge), "without `judge_base_url`"),
        (of_servers, bool(servers or judge), "without `partition_server_urls` or `judge_base_url`"),
        (of_a_local_model, not (servers or judge), "where servers judge"),
        (("partition_model", "partition_threshold"), not judge, "with `judge_base_url`: the judge says yes or no"),
    ):
        changed = settings_that_differ(args, names)
        if changed and not has_effect:
            raise ValueError(f"`{changed[0]}` has no effect {why}. Remove one of the two.")
