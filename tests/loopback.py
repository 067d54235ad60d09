# SPDX-License-Identifier: Apache-2.0
"""An HTTP server on this machine that a test scripts: it answers, fails, hangs, or cuts its answer short."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """
    What to send: a status, JSON or text, and headers.

    `delay` seconds pass before anything is sent. `sent` is the share of the body that is sent before the connection
    is closed, and `trickle` the seconds between its bytes.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    sent: float = 1.0
    trickle: float = 0.0

    @property
    def content(self) -> bytes:
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


@dataclass
class Asked:
    """A request as it came in."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


class Loopback:
    """What the server was asked, by whom, and how many requests it had at a time."""

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        self.answer = answer
        self.url = ""
        self.asked: list[Asked] = []
        self.connections = self.running = self.most_running = 0
        self.sockets: list[socket.socket] = []
        self.lock = threading.Lock()

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]


def _handler(loopback: Loopback) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            with loopback.lock:
                loopback.connections += 1
                loopback.sockets.append(self.connection)

        def _respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            asked = Asked(self.command, self.path, body, dict(self.headers))
            with loopback.lock:
                loopback.asked.append(asked)
                loopback.running += 1
                loopback.most_running = max(loopback.most_running, loopback.running)
            try:
                answer = loopback.answer(asked)
                time.sleep(answer.delay)
            finally:
                with loopback.lock:
                    loopback.running -= 1
            with suppress(ConnectionError):  # the client may have given up
                self._send(answer)

        do_GET = do_POST = _respond

        def _send(self, answer: Answer) -> None:
            content = answer.content
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            part = content[: int(len(content) * answer.sent)]
            if answer.trickle:
                for index in range(len(part)):
                    self.wfile.write(part[index : index + 1])
                    self.wfile.flush()
                    time.sleep(answer.trickle)
            else:
                self.wfile.write(part)
            if len(part) < len(content):
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def serving(answer: Callable[[Asked], Answer], port: int = 0) -> Iterator[Loopback]:
    """A server that answers as long as the body runs, on a free port unless one is given."""
    loopback = Loopback(answer)
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler(loopback))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    loopback.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield loopback
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for connection in loopback.sockets:  # a thread would go on answering on one that was kept
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def closed_url() -> str:
    """An address at which nothing listens."""
    with serving(lambda asked: Answer()) as loopback:
        return loopback.url
