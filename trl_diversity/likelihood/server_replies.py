# SPDX-License-Identifier: Apache-2.0
"""Read what a vLLM server replies: its model, and the probabilities of the tokens of a prompt."""

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import httpx

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


def parsed_json(response: "httpx.Response", url: str) -> Any:
    """What a reply holds."""
    try:
        return response.json()
    except ValueError:
        raise ValueError(f"the server at {url} replied with no JSON: {response.text[:100]!r}") from None


def served_model(reply: Any, name: str | None, url: str) -> tuple[str, int | None]:
    """
    Name and length of the model with this name, or without a name of the only model.

    In vLLM's list adapters have a parent, and other names of the same model share its root.
    """
    try:
        models = {str(entry["id"]): entry for entry in reply["data"]}
        bases = [entry for entry in models.values() if entry.get("parent") is None]
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"the server at {url} lists its models in another form than vLLM: {reply!r:.200}") from None
    if name is None and len({entry.get("root") or entry["id"] for entry in bases}) == 1:
        name = str(bases[0]["id"])
    if name not in models:
        raise ValueError(
            f"the server at {url} serves {', '.join(models) or 'no model'}; give the `model` to score with"
        )
    lengths = [entry.get("max_model_len") for entry in (models[name], *bases)]
    return name, next((length for length in lengths if isinstance(length, int)), None)


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
