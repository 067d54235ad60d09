# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a vLLM server on this machine: the replies have vLLM's form, the log-probabilities a tiny model's."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch


NAME = "policy"


class VllmDouble:
    """
    What a server knows and has been asked.

    `reply_to(body)` may return a status and a text to send instead of the reply, `change(choices, body)` may change
    the choices in place before they are sent, in any order.
    """

    def __init__(self, model: Any, max_model_len: int | None = 512) -> None:
        self.model = model
        self.models = [{"id": NAME, "object": "model", "root": "/m", "parent": None, "max_model_len": max_model_len}]
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.reply_to: Callable[[dict[str, Any]], tuple[int, str] | None] = lambda body: None
        self.change: Callable[[list[dict[str, Any]], dict[str, Any]], Any] = lambda choices, body: None
        self.running = self.most_running = 0
        self.lock = threading.Lock()

    def completions(self, body: dict[str, Any]) -> tuple[int, str]:
        with self.lock:
            self.bodies.append(body)
        special = self.reply_to(body)
        if special is not None:
            return special
        limit = self.models[0]["max_model_len"]
        if body["model"] not in [model["id"] for model in self.models]:
            return 404, error(404, f"The model `{body['model']}` does not exist.")
        if any(limit is not None and len(ids) + body["max_tokens"] > limit for ids in body["prompt"]):
            return 400, error(400, f"This model's maximum context length is {limit} tokens.")
        with self.lock:
            choices = [self._choice(place, ids) for place, ids in enumerate(body["prompt"])]
        random.Random(0).shuffle(choices)
        self.change(choices, body)
        return 200, json.dumps({"id": "cmpl-1", "object": "text_completion", "model": NAME, "choices": choices})

    def _choice(self, place: int, ids: list[int]) -> dict[str, Any]:
        with torch.no_grad():
            logprobs = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        values: list[Any] = [None]
        for position, index in enumerate(ids[1:]):
            entry = {"logprob": logprobs[position, index].item(), "rank": 2, "decoded_token": "x"}
            values.append({str(index): entry})
        return {
            "index": place,
            "text": "x",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "prompt_logprobs": values,
        }


def error(code: int, message: str) -> str:
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "param": None, "code": code}})


def _handler(double: VllmDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path != "/v1/models":
                return self._send(404, error(404, "Not Found"))
            self._send(200, json.dumps({"object": "list", "data": double.models}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            double.headers.append(dict(self.headers))
            if self.path != "/v1/completions":
                return self._send(404, error(404, "Not Found"))
            with double.lock:
                double.running += 1
                double.most_running = max(double.running, double.most_running)
            try:
                reply = double.completions(body)
            finally:
                with double.lock:
                    double.running -= 1
            self._send(*reply)

        def _send(self, status: int, text: str) -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            with suppress(ConnectionError):
                self.end_headers()
            with suppress(ConnectionError):  # the client may have given up
                self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def serving(model: Any, **kwargs: Any) -> Iterator[VllmDouble]:
    """A stand-in that serves as long as the body runs."""
    double = VllmDouble(model, **kwargs)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(double))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    double.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
