# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the Hub on this machine: repositories, LFS uploads and commits, as huggingface_hub's client asks.

The package hf-local-hub was tried: what it installs is a client, its server is a program that it does not ship.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


# What the Hub stores in LFS, by the end of the name.
LARGE = (".safetensors", ".bin", ".parquet", ".pt", ".png")


class Hub:
    """
    Everything that was pushed.

    Attributes:
        files (`dict[str, bytes]`): committed files by their path, over all repositories.
        blobs (`dict[str, bytes]`): contents of large files by SHA-256, committed or not.
        requests (`list[str]`): method and path of every request.
        uploads (`list[str]`): SHA-256 of every large file that was sent.
        refuse_commits (`int`): so many commits from now on fail with status 500.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.uploads: list[str] = []
        self.tokens: set[str | None] = set()
        self.messages: list[str] = []
        self.refuse_commits = 0
        self.lock = threading.Lock()
        self.url = ""

    def answer(self, method: str, path: str, body: bytes, headers: Any) -> tuple[int, Any]:
        """Status, and JSON."""
        with self.lock:
            self.requests.append(f"{method} {path}")
            if not path.startswith("/blobs/"):
                self.tokens.add(headers.get("authorization"))
            if path.startswith("/api/repos/create"):
                return 200, {"url": f"{self.url}/{_repository(json.loads(body))}"}
            if path.startswith("/api/whoami-v2"):
                return 200, {"name": "someone", "type": "user", "orgs": []}
            if path.startswith("/api/validate-yaml"):
                return 200, {"errors": [], "warnings": []}
            if "/preupload/" in path:
                return 200, {"files": [_mode(entry["path"]) for entry in json.loads(body)["files"]]}
            if path.endswith(".git/info/lfs/objects/batch"):
                return 200, {"transfer": "basic", "objects": [self._action(o) for o in json.loads(body)["objects"]]}
            if method == "PUT" and path.startswith("/blobs/"):
                self.blobs[path.removeprefix("/blobs/")] = body
                self.uploads.append(hashlib.sha256(body).hexdigest())
                return 200, {}
            if method == "POST" and "/commit/" in path:
                return self._commit(body)
            if method == "GET" and path.startswith("/api/models/"):
                names = [{"rfilename": name} for name in self.files]
                return 200, {"_id": "0", "id": "someone/tiny", "sha": "0" * 40, "siblings": names}
        return 404, {"error": f"the stand-in has no {method} {path}"}

    def _action(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """The Hub asks only for what it has not got."""
        answer = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in self.blobs:
            answer["actions"] = {"upload": {"href": f"{self.url}/blobs/{wanted['oid']}", "header": {}}}
        return answer

    def _commit(self, body: bytes) -> tuple[int, Any]:
        if self.refuse_commits:
            self.refuse_commits -= 1
            return 500, {"error": "broken for a while"}
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                self.messages.append(value["summary"])
            elif entry["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                self.files[value["path"]] = self.blobs[value["oid"]]
        return 200, {"success": True, "commitUrl": f"{self.url}/someone/tiny/commit/0", "commitOid": "0" * 40}


@contextmanager
def hub_on_loopback() -> Iterator[Hub]:
    """A Hub that is there until the block ends."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, reply = hub.answer(self.command, self.path, body, self.headers)
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_HEAD = handle_any

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _repository(body: dict[str, Any]) -> str:
    return f"{body.get('organization') or 'someone'}/{body['name']}"


def _mode(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "lfs" if path.endswith(LARGE) else "regular", "shouldIgnore": False}
