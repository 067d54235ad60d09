# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between a client and its servers."""

import json
import math
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any


SERVER_ERROR = 500
_LONGEST_RETRY_AFTER = 60.0  # seconds; a server that asks for more is asked again after this


@dataclass(frozen=True)
class Failure:
    """Why a server gave no answer that can be used: the HTTP status, if it sent one, and the cause in words."""

    status: int | None
    cause: str


class NoReplyError(ConnectionError):
    """No server gave an answer that can be used; the message names every URL and the cause."""

    def __init__(self, failures: dict[str, Failure]) -> None:
        super().__init__("; ".join(f"{url}: {failure.cause}" for url, failure in failures.items()))
        self.failures = failures
        self.is_server_error = any(failure.status == SERVER_ERROR for failure in failures.values())


class RefusedError(ValueError):
    """A server refuses a request, which no other attempt would change."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnusableReplyError(ValueError):
    """An answer that cannot be used. Raised by whoever reads it, it makes the client ask again."""


def parsed_json(content: bytes) -> Any:
    """What the body of an answer says."""
    try:
        return json.loads(content)
    except ValueError:
        shown = content[:100].decode(errors="replace")
        raise UnusableReplyError(f"replied with no JSON: {shown!r}") from None


def retry_after_seconds(value: str | None) -> float:
    """Seconds that a header `Retry-After` asks for, which holds seconds or a date."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError):
            return 0.0
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER) if math.isfinite(seconds) else 0.0
