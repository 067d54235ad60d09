# SPDX-License-Identifier: Apache-2.0
"""Asks every server of a recipe whether it is there and serves the right model, before anything is loaded."""

from collections.abc import Iterator, Sequence
from typing import Any

from trl_diversity.equivalence.judge import judge_headers
from trl_diversity.server_client import ServerClient


_SECONDS = 10.0


def check_servers(
    training_args: Any, model_name: str | None, reward_funcs: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """
    What each server of a run answers.

    Args:
        training_args ([`~trl.GRPOConfig`]):
            The recipe's.
        model_name (`str`, *optional*):
            The policy, which its server must serve.
        reward_funcs (`Sequence[str]`, *optional*):
            Rewards by name; those that are addresses are asked.

    Returns:
        `list[dict]`: one a server, with `kind`, `url`, `models` (what it serves) and `problem` (`None` if it is fine).
    """
    return [_check(kind, url, wanted) for kind, url, wanted in _servers(training_args, model_name, reward_funcs)]


def _servers(args: Any, model_name: str | None, reward_funcs: Sequence[str]) -> Iterator[tuple[str, str, str | None]]:
    if args.use_vllm and args.vllm_mode == "server":
        yield (
            "policy",
            args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}",
            model_name,
        )
    for url in getattr(args, "partition_server_urls", None) or []:
        yield "classifier", url, _full_name(args.partition_model)
    if judge := getattr(args, "judge_base_url", None):
        yield "judge", judge, args.judge_model
    for name in reward_funcs:
        if "://" in name:
            addresses, _, model = name.partition("#")
            for url in addresses.split(","):
                yield "reward", url.strip(), model or None


def _full_name(name: str | None) -> str | None:
    from trl_diversity.equivalence.loading import RELEASED_MODELS

    return RELEASED_MODELS[name].name_or_path if name in RELEASED_MODELS else name


def _check(kind: str, url: str, wanted: str | None) -> dict[str, Any]:
    report: dict[str, Any] = {"kind": kind, "url": url.rpartition("@")[2], "models": [], "problem": None}
    try:
        client = ServerClient(url, timeout=_SECONDS, retries=0, headers=judge_headers() if kind == "judge" else None)
    except ValueError as error:
        return {**report, "problem": str(error)}
    report["url"] = client.urls[0]
    try:
        models = list(client.call("GET", "/v1/models")["data"])
    except Exception as error:  # whatever it is, the server cannot be used
        return {**report, "problem": f"cannot be reached: {type(error).__name__}: {error}"}
    finally:
        client.close()
    report["models"] = sorted({name for entry in models for name in (entry.get("id"), entry.get("root")) if name})
    if wanted is not None and not any(_last(wanted) == _last(name) for name in report["models"]):
        report["problem"] = f"serves {', '.join(report['models']) or 'nothing'}, not {wanted}"
    return report


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]
