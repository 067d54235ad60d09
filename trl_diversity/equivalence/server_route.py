# SPDX-License-Identifier: Apache-2.0
"""How a vLLM server must be asked about pairs so that it reads exactly what the classifier was trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trl_diversity.equivalence.pair_encoding import EncodedPair, PairEncoder, fair_lengths
from trl_diversity.pooling_servers import check_activation, logits_of, read_values
from trl_diversity.served_model import ServedModel
from trl_diversity.server_errors import RefusedError


_NOT_FOUND = 404
_ACCEPTED_ACTIVATIONS = ("Sigmoid", "Identity")


@dataclass(frozen=True)
class Route:
    """
    An endpoint for pairs, and the number of labels of the classifier behind it.

    `/classify` takes token ids, which are exactly ours, but no token types. `/score` takes texts, and gives them the
    token types of a pair.
    """

    path: str
    labels: int

    def body(self, pairs: Sequence[tuple[str, str]], encoded: Sequence[EncodedPair]) -> dict[str, Any]:
        """The request for pairs that fit, beside the name of the model."""
        if self.path == "/classify":
            return {"input": [pair.input_ids for pair in encoded], "use_activation": False}
        return {
            "text_1": [first for first, _ in pairs],
            # An empty second text would be taken for none at all; a blank has no tokens either
            "text_2": [second or " " for _, second in pairs],
            "use_activation": False,
        }


def find_route(
    config: Any,
    served: ServedModel,
    pairs: list[tuple[str, str]],
    encoded: list[EncodedPair],
    ask: Callable[..., Any],
    url: str,
) -> tuple[Route, bool, list[list[float]]]:
    """
    Find the exact route to a server, and whether it gives logits there.

    Args:
        config (`PretrainedConfig`):
            Of the classifier.
        served ([`ServedModel`]):
            What the server says it serves.
        pairs (`list[tuple[str, str]]`), encoded (`list[EncodedPair]`):
            Known pairs.
        ask (`Callable`):
            Asks the server: `ask(method, path, body)`.
        url (`str`):
            Its address, for messages.

    Returns:
        `tuple[Route, bool, list[list[float]]]`: the route, whether the values are logits (else probabilities), and
        the logits of the known pairs.

    Raises:
        `ValueError`: if the server serves no classifier, one with other labels than the checkpoint, or one that
            cannot be asked exactly.
    """
    labels = _served_labels(served, encoded, ask, url)
    if labels != config.num_labels or labels not in (1, 2):
        raise ValueError(
            f"the classifier at {url} has {labels} labels, and the checkpoint {config.num_labels}: it is another "
            "model, or no equivalence model. That has one label (the logit of 'same') or two (label 1 is 'same')"
        )
    _check_activation_function(config, labels)
    # A model with one kind of token type gives each the same vector, whatever the tokenizer says.
    reads_token_types = getattr(config, "type_vocab_size", 0) > 1 and any(any(pair.token_type_ids) for pair in encoded)
    if reads_token_types and labels == 2:
        raise ValueError(
            f"the classifier at {url} reads token types, which vLLM's /classify drops, and its /score needs one "
            "label: the scores would be wrong. `trl-diversity serve-classifier` serves its exact equivalent with one"
        )
    route = Route("/score" if reads_token_types else "/classify", labels)
    body = {"model": served.name, **route.body(pairs, encoded)}
    tokens = sum(len(pair.input_ids) for pair in encoded)
    raw, activated = (
        read_values(ask("POST", route.path, {**body, "use_activation": option}), len(pairs), tokens, url)
        for option in (False, True)
    )
    gives_logits = check_activation(raw, activated, url)
    return route, gives_logits, raw if gives_logits else [logits_of(row) for row in raw]


def fit_pairs(
    pairs: list[tuple[str, str]], encoded: list[EncodedPair], encoder: PairEncoder
) -> tuple[list[tuple[str, str]], list[EncodedPair]]:
    """Pairs of which the long ones are cut as [`PairEncoder`] cuts their tokens, and their tokens."""
    fitting = [_cut_pair(pair, encoder) if code.truncated else pair for pair, code in zip(pairs, encoded, strict=True)]
    return fitting, encoder(fitting)


def _cut_pair(pair: tuple[str, str], encoder: PairEncoder) -> tuple[str, str]:
    """The parts of two texts that the encoder keeps, as texts. They have at most as many tokens as it keeps."""
    backend = encoder.tokenizer.backend_tokenizer
    first, second = (len(backend.encode(text, add_special_tokens=False).ids) for text in pair)
    if encoder.max_side_tokens is not None:
        first, second = min(first, encoder.max_side_tokens), min(second, encoder.max_side_tokens)
    if encoder.budget is not None:
        first, second = fair_lengths(first, second, encoder.budget)
    return _cut(pair[0], first, encoder.tokenizer), _cut(pair[1], second, encoder.tokenizer)


def _cut(text: str, length: int, tokenizer: Any) -> str:
    """
    The part of a text whose tokens are the first `length` ones, or the last ones if the tokenizer cuts on the left.

    A part may be tokenised in another way than the whole; then it is cut further until it fits.
    """
    backend = tokenizer.backend_tokenizer
    encoding = backend.encode(text, add_special_tokens=False)
    if len(encoding.ids) <= length:
        return text
    for kept in range(length, 0, -1):
        encoding.truncate(kept, direction=tokenizer.truncation_side)
        start, end = encoding.offsets[0][0], encoding.offsets[-1][1]
        part = text[start:] if tokenizer.truncation_side == "left" else text[:end]
        if len(backend.encode(part, add_special_tokens=False).ids) <= length:
            return part
    return ""


def _served_labels(served: ServedModel, encoded: list[EncodedPair], ask: Callable[..., Any], url: str) -> int:
    body = {"model": served.name, "input": [encoded[0].input_ids], "use_activation": False}
    try:
        reply = ask("POST", "/classify", body)
    except RefusedError as error:
        if error.status != _NOT_FOUND:
            raise
        raise ValueError(
            f"the server at {url} serves {served.name!r}, which is no classifier there. Start it with `vllm serve "
            "MODEL --runner pooling`, or with `trl-diversity serve-classifier MODEL`"
        ) from error
    return len(read_values(reply, 1, None, url)[0])


def _check_activation_function(config: Any, labels: int) -> None:
    settings = getattr(config, "sentence_transformers", None) or {}
    name = str(settings.get("activation_fn") or "Identity").rpartition(".")[2]
    if labels == 1 and name not in _ACCEPTED_ACTIVATIONS:
        raise ValueError(
            f"the classifier's own activation is {name}, which is not supported through a server: one of "
            f"{_ACCEPTED_ACTIVATIONS} is"
        )
