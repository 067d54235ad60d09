# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a vLLM server of a classifier or reward model: a tiny model behind the replies that vLLM was seen to
send. Real servers are in tests/servers."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.loopback import Answer, Asked, Loopback, serving


class PoolingDouble:
    """
    What such a server does. `before(asked)` may answer in its place; `change(reply)` may change a reply.

    Like vLLM it gives every token of `/classify` the type 0, refuses what is too long, and has `/score` only for one
    label.
    """

    def __init__(self, path: str, name: str | None = None, max_model_len: int | None = 128) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
        self.labels = self.model.config.num_labels
        self.max_model_len = max_model_len
        self.models = [{"id": name or path, "root": path, "parent": None, "max_model_len": max_model_len}]
        self.before: Callable[[Asked], Answer | None] = lambda asked: None
        self.change: Callable[[dict[str, Any]], Any] = lambda reply: None
        self.honours_activation = True
        self.lock = threading.Lock()

    def __call__(self, asked: Asked) -> Answer:
        special = self.before(asked)
        if special is not None:
            return special
        if asked.path == "/v1/models":
            return Answer({"object": "list", "data": self.models})
        if asked.path == "/score" and self.labels != 1 or asked.path not in ("/score", "/classify"):
            return _error(404, "Not Found")
        if asked.body["model"] not in [model["id"] for model in self.models]:
            return _error(404, f"The model `{asked.body['model']}` does not exist.")
        inputs = self._inputs(asked)
        limit = self.max_model_len
        if any(limit is not None and len(ids) > limit for ids, _ in inputs):
            return _error(400, f"This model's maximum context length is {limit} tokens.")
        with self.lock:
            values = [self._values(*one, asked.body.get("use_activation", True)) for one in inputs]
        kind = "score" if asked.path == "/score" else "probs"
        data = [{"index": place, kind: row[0] if kind == "score" else row} for place, row in enumerate(values)]
        random.Random(0).shuffle(data)
        tokens = sum(len(ids) for ids, _ in inputs)
        reply = {"object": "list", "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        self.change(reply)
        return Answer(json.dumps(reply))  # writes NaN as it is

    def _inputs(self, asked: Asked) -> list[tuple[list[int], list[int]]]:
        if asked.path == "/classify":
            rows = [row if isinstance(row, list) else self.tokenizer(row)["input_ids"] for row in asked.body["input"]]
            return [(row, [0] * len(row)) for row in rows]
        pairs = zip(asked.body["text_1"], asked.body["text_2"], strict=True)
        encoded = [self.tokenizer(first, second) if second else self.tokenizer(first) for first, second in pairs]
        return [(one["input_ids"], one.get("token_type_ids", [0] * len(one["input_ids"]))) for one in encoded]

    def _values(self, ids: list[int], types: list[int], with_activation: bool) -> list[float]:
        features = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if "token_type_ids" in self.tokenizer.model_input_names:
            features["token_type_ids"] = torch.tensor([types])
        backbone_output = self.model.base_model(**features)
        with torch.no_grad():
            if hasattr(self.model, "score"):  # a decoder: vLLM pools the last token, whatever it is
                logits = self.model.score(backbone_output.last_hidden_state[0, -1])
            else:
                logits = self.model(**features).logits[0]
        if not with_activation and self.honours_activation:
            return logits.tolist()
        return (logits.sigmoid() if self.labels == 1 else logits.softmax(-1)).tolist()


def _error(status: int, message: str) -> Answer:
    return Answer({"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}, status)


@contextmanager
def serving_model(path: str, **settings: Any) -> Iterator[tuple[Loopback, PoolingDouble]]:
    """A running stand-in, and what it does."""
    double = PoolingDouble(path, **settings)
    with serving(double) as loopback:
        yield loopback, double


def pairs_asked(loopback: Loopback) -> list[Any]:
    """Every pair that was asked, after the known ones of the start (which are not counted twice)."""
    asked = []
    for request in loopback.asked:
        body = request.body or {}
        asked += [tuple(ids) for ids in body.get("input", [])]
        asked += list(zip(body.get("text_1", []), body.get("text_2", []), strict=True))
    return asked
