# SPDX-License-Identifier: Apache-2.0
"""Decoding settings, and those that the papers' evaluations use."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sampling:
    """
    How completions are drawn.

    Attributes:
        num_generations (`int`, *optional*, defaults to 10):
            Completions per prompt.
        temperature (`float`, *optional*, defaults to 1.0):
            0 takes the likeliest token every time.
        top_p (`float`, *optional*, defaults to 1.0):
            Share of the probability, in `(0, 1]`, that the likeliest tokens to draw from must reach.
        top_k (`int`, *optional*, defaults to 0):
            Number of the likeliest tokens to draw from; 0 is all.
        min_p (`float`, *optional*, defaults to 0.0):
            Tokens below this share of the likeliest one's probability are not drawn, in `[0, 1)`.
        max_tokens (`int`, *optional*, defaults to 4096):
            Most tokens of a completion.
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws.

    Raises:
        `ValueError`: if a value is impossible.
    """

    num_generations: int = 10
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 4096
    seed: int = 0

    def __post_init__(self):
        accepted = {
            "num_generations": (self.num_generations >= 1, "at least 1"),
            "temperature": (0 <= self.temperature < float("inf"), "a number of at least 0"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "top_k": (self.top_k >= 0, "at least 0, which is all tokens"),
            "min_p": (0 <= self.min_p < 1, "in [0, 1)"),
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
        }
        for name, (is_possible, text) in accepted.items():
            if not is_possible:
                raise ValueError(f"`{name}` is {text}; got {getattr(self, name)}.")
        if self.temperature == 0 and self.num_generations > 1:
            raise ValueError(
                f"at `temperature` 0 all {self.num_generations} completions of a prompt are the same; draw one "
                "(`num_generations` 1) or raise the temperature."
            )


# arXiv 2509.02534, appendix; NoveltyBench's own scripts cut at 512 tokens.
PRESETS = {
    "noveltybench": Sampling(),
    "noveltybench-original": Sampling(max_tokens=512),
    "pass-at-k": Sampling(num_generations=256, temperature=0.6, top_p=0.95, max_tokens=12000),
    "alpaca-eval": Sampling(num_generations=1, temperature=0.6, top_p=0.9, max_tokens=8192),
    "arena-hard": Sampling(num_generations=1, temperature=0.6, top_p=0.9, max_tokens=8192),
    "eq-bench": Sampling(num_generations=1, temperature=1.0, min_p=0.1, max_tokens=4096),
}


def sampling_from(preset: str, **changes: float | int | None) -> Sampling:
    """
    The settings of a preset with some values replaced; `None` leaves a value as it is.

    Raises:
        `ValueError`: if there is no such preset or a value is impossible.
    """
    if preset not in PRESETS:
        raise ValueError(f"there is no decoding preset {preset!r}; accepted are {', '.join(map(repr, PRESETS))}.")
    return replace(PRESETS[preset], **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
