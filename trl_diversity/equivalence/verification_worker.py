# SPDX-License-Identifier: Apache-2.0
"""Child process that compares mathematical answers, one JSON line in and one out; its parent may kill it."""

import json
import logging
import math
import os
import sys
from functools import lru_cache
from typing import Any


try:
    import resource
except ImportError:  # not a POSIX system: only the time limit holds, which the parent enforces
    resource = None  # type: ignore[assignment]

# A child that its parent could not kill ends by itself after this much more computing time.
_SPARE_CPU_SECONDS = 5


@lru_cache(maxsize=4096)
def _parsed(text: str) -> list[Any]:
    from math_verify import parse

    return parse(text, parsing_timeout=None)


def _verified(gold: str, prediction: str) -> bool:
    """Whether any reading of the prediction equals any of gold; raises if one fails and none is equal."""
    from math_verify import verify

    failure: Exception | None = None
    for expected in _parsed(gold):
        for given in _parsed(prediction):
            try:
                if verify([expected], [given], timeout_seconds=None, raise_on_error=True):
                    return True
            except Exception as error:
                failure = error
    if failure is not None:
        raise failure
    return False


def _answer(task: dict[str, Any]) -> dict[str, Any]:
    """Result of one task: `{"equal": bool}`, or `{"error": name}` where a verification failed and none was equal."""
    orders = [(task["gold"], task["prediction"])]
    if task["either_direction"]:
        orders.append((task["prediction"], task["gold"]))
    error_name = None
    for gold, prediction in orders:
        try:
            if _verified(gold, prediction):
                return {"equal": True}
        except Exception as error:  # includes MemoryError and RecursionError
            error_name = type(error).__name__
    return {"equal": False} if error_name is None else {"error": error_name}


def _limit_computing_time(seconds: float) -> None:
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        end = math.ceil(usage.ru_utime + usage.ru_stime + seconds) + _SPARE_CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (end, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def main(time_limit_seconds: float, memory_limit_bytes: int) -> None:
    """Serve tasks from standard input until it ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # nothing that a library prints may get between the replies
    logging.disable(logging.ERROR)  # math-verify warns that its own time limit is off
    _verified("$1$", "$1$")  # loads everything before the limits and the clock start
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        _limit_computing_time(time_limit_seconds)
        replies.write(json.dumps(_answer(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
