# SPDX-License-Identifier: Apache-2.0
"""JSON lines: read strictly, and written row by row so that an interrupted run is taken up where it stopped."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """
    The objects of a file of JSON lines, or the rows of a Parquet file, one after the other.

    Empty lines are passed over.

    Raises:
        `ValueError`: naming file and line, if a line is no JSON object.
    """
    if str(path).endswith(".parquet"):
        from pyarrow.parquet import ParquetFile

        for batch in ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
        return
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: expected an object, got {type(row).__name__}")
            yield row


def write_rows(path: str | Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a file of JSON lines that appears once it is complete."""
    partial = f"{path}.partial"
    try:
        with open(partial, "w", encoding="utf-8") as output:
            for row in rows:
                output.write(json.dumps(row, ensure_ascii=False) + "\n")
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


class Journal:
    """
    Results of a long run, one line each, kept as they come.

    Settings are written beside the file. Whoever opens it with other settings gets an error instead of a mixture. A
    last line that was cut off when the run ended is removed.

    Args:
        path (`str` or `pathlib.Path`):
            The file of JSON lines. Its rows carry their key as `key_name`.
        settings (`dict`):
            What the results depend on; values that JSON can hold.
        key_name (`str`, *optional*, defaults to `"id"`):
            Name of the key of a row.

    Attributes:
        rows (`dict`):
            The rows so far by key.

    Raises:
        `ValueError`: if the file was made with other settings.
    """

    def __init__(self, path: str | Path, settings: dict[str, Any], key_name: str = "id"):
        self.path = Path(path)
        self.key_name = key_name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._check_settings(json.loads(json.dumps(settings)))
        if self.path.exists():
            _remove_torn_line(self.path)
        self.rows = {row[key_name]: row for row in read_rows(self.path)} if self.path.exists() else {}

    def __contains__(self, key: Any) -> bool:
        return key in self.rows

    def append(self, row: dict[str, Any]) -> None:
        """Add a row; it is on disk when this returns."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[row[self.key_name]] = row

    def _check_settings(self, settings: dict[str, Any]) -> None:
        path = self.path.with_name(self.path.stem + ".settings.json")
        if not (path.exists() and self.path.exists()):
            path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            return
        stored = json.loads(path.read_text(encoding="utf-8"))
        names = sorted(stored.keys() | settings.keys())
        changed = [name for name in names if stored.get(name) != settings.get(name)]
        if changed:
            differences = ", ".join(
                f"{name} was {stored.get(name)!r:.80}, is {settings.get(name)!r:.80}" for name in changed
            )
            raise ValueError(
                f"{self.path} was made with other settings ({differences}). Use the same ones, or another output "
                "directory."
            )


def _remove_torn_line(path: Path) -> None:
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with open(path, "r+b") as file:
            file.truncate(whole)
