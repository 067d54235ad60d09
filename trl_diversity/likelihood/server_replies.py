# SPDX-License-Identifier: Apache-2.0
"""Read what a vLLM server replies: the probabilities of the tokens of a prompt."""

import logging
import math
from dataclasses import dataclass
from typing import Any


logger = logging.getLogger(__name__)

_LARGEST_LOGPROB = 1e-3  # a log-softmax exceeds 0 by rounding only


@dataclass(frozen=True)
class Text:
    """A prompt for the server; its tokens from `start` on are scored."""

    row: int
    name: str
    ids: tuple[int, ...]
    start: int

    def nan(self) -> tuple[float, ...]:
        return (math.nan,) * (len(self.ids) - self.start)


def read_reply(reply: Any, texts: list[Text], url: str) -> list[tuple[float, ...]]:
    """Probabilities of the scored tokens of each text; the choices of a reply may stand in any order."""
    try:
        choices = {choice["index"]: choice.get("prompt_logprobs") for choice in reply["choices"]}
        is_complete = len(reply["choices"]) == len(texts) and set(choices) == set(range(len(texts)))
    except (AttributeError, KeyError, TypeError):
        is_complete = False
    if not is_complete:
        raise ValueError(f"the server at {url} did not reply with one choice for each of {len(texts)} prompts")
    if all(values is None for values in choices.values()):
        raise ValueError(f"the server at {url} replied without `prompt_logprobs`; a vLLM server is needed")
    return [_probabilities(choices[place], text, url) for place, text in enumerate(texts)]


def _probabilities(values: Any, text: Text, url: str) -> tuple[float, ...]:
    """Probabilities of the scored tokens, all NaN where a log-probability is missing or not finite."""
    if values is None:
        return text.nan()
    if not isinstance(values, list) or len(values) != len(text.ids):
        raise ValueError(f"the server at {url} did not reply with one value for each of {len(text.ids)} prompt tokens")
    logprobs = []
    for place in range(text.start, len(text.ids)):
        entry = (values[place] or {}).get(str(text.ids[place]))
        logprob = None if entry is None else entry.get("logprob")
        if logprob is None or not math.isfinite(logprob):
            logger.warning("the %s of a row has no likelihood: a log-probability is %s", text.name, logprob)
            return text.nan()
        logprobs.append(logprob)
    if max(logprobs) > _LARGEST_LOGPROB:
        raise ValueError(
            f"the server at {url} gives {max(logprobs)} as a log-probability, which is above 0; start it with "
            "`--logprobs-mode` `raw_logprobs` or `processed_logprobs`"
        )
    return tuple(math.exp(min(logprob, 0.0)) for logprob in logprobs)
