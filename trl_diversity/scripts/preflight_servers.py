# SPDX-License-Identifier: Apache-2.0
"""Asks every server of a recipe whether it is there and serves the right model, before anything is loaded."""

from collections.abc import Iterator, Sequence
from typing import Any

from trl_diversity.server_address import parse_address


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
        address = parse_address(url)
    except ValueError as error:
        return {**report, "problem": str(error)}
    report["url"] = address.url
    try:
        models = _models(address)
    except Exception as error:  # whatever it is, the server cannot be used
        return {**report, "problem": f"cannot be reached: {type(error).__name__}: {error}"}
    report["models"] = sorted({name for entry in models for name in (entry.get("id"), entry.get("root")) if name})
    if wanted is not None and not any(_last(wanted) == _last(name) for name in report["models"]):
        report["problem"] = f"serves {', '.join(report['models']) or 'nothing'}, not {wanted}"
    return report


def _models(address: Any) -> list[dict[str, Any]]:
    import os

    import httpx

    # A judge may want a key; it is read where the judge reads it, and shown nowhere
    key = os.environ.get("JUDGE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key and address.auth is None else {}
    reply = httpx.get(f"{address.url}/v1/models", timeout=_SECONDS, auth=address.auth, headers=headers)
    reply.raise_for_status()
    return list(reply.json()["data"])


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]
