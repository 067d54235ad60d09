# SPDX-License-Identifier: Apache-2.0
"""Addresses of servers: what is sent to them and what may be shown of them."""

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class ServerAddress:
    """A URL without user and password, and these two apart: libraries show URLs in logs and errors."""

    url: str
    user: str | None = None
    password: str = ""

    @property
    def auth(self) -> tuple[str, str] | None:
        """For basic authentication."""
        return None if self.user is None else (self.user, self.password)

    def __repr__(self) -> str:
        return f"ServerAddress({self.url!r})"


def parse_address(url: str) -> ServerAddress:
    """
    Take a URL apart. A final `/v1` is dropped: paths such as `/v1/models` are put after it.

    Raises:
        `ValueError`: if the URL has no scheme or host.
    """
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_complete = False
    if not is_complete:
        shown = url.rpartition("@")[2]
        raise ValueError(f"the URL {shown!r} is not complete; expected one such as 'http://localhost:8000'")
    path = parts.path.rstrip("/").removesuffix("/v1")
    user = None if parts.username is None else unquote(parts.username)
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
    return ServerAddress(address, user, unquote(parts.password or ""))
