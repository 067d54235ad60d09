# SPDX-License-Identifier: Apache-2.0
"""Files of the schemas that the data sets have on the Hub, with made-up rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


_TURN = pa.struct(
    [
        ("content", pa.string()),
        ("country", pa.string()),
        ("language", pa.string()),
        ("redacted", pa.bool_()),
        ("role", pa.string()),
        ("toxic", pa.bool_()),
        ("turn_identifier", pa.int64()),
    ]
)
_SCORES = pa.struct([("harassment", pa.float64()), ("violence", pa.float64())])
WILDCHAT = pa.schema(
    [
        ("conversation_hash", pa.string()),
        ("model", pa.string()),
        ("conversation", pa.list_(_TURN)),
        ("turn", pa.int64()),
        ("language", pa.string()),
        ("openai_moderation", pa.list_(pa.struct([("category_scores", _SCORES), ("flagged", pa.bool_())]))),
        ("toxic", pa.bool_()),
        ("redacted", pa.bool_()),
        ("state", pa.string()),
    ]
)


def turn(content: str, role: str = "user", toxic: bool = False) -> dict[str, Any]:
    return {
        "content": content,
        "country": "France",
        "language": "English",
        "redacted": False,
        "role": role,
        "toxic": toxic,
        "turn_identifier": 1,
    }


def conversation(
    first: str, language: str = "English", toxic: bool = False, role: str = "user", answer: str = "An answer."
) -> dict[str, Any]:
    """A row of WildChat-1M."""
    return {
        "conversation_hash": first[:8],
        "model": "gpt-4",
        "conversation": [turn(first, role), turn(answer, "assistant"), turn("And then?")],
        "turn": 2,
        "language": language,
        "openai_moderation": [
            {"category_scores": {"harassment": 0.1, "violence": 0.2}, "flagged": False} for _ in range(3)
        ],
        "toxic": toxic,
        "redacted": False,
        "state": None,
    }


def write_wildchat(path: Path, rows: Iterator[dict[str, Any]], rows_per_group: int = 1000) -> None:
    """Write rows as WildChat's own Parquet files hold them, a row group at a time."""
    with pq.ParquetWriter(path, WILDCHAT) as writer:
        group: list[dict[str, Any]] = []
        for row in rows:
            group.append(row)
            if len(group) == rows_per_group:
                writer.write_table(pa.Table.from_pylist(group, schema=WILDCHAT))
                group = []
        if group:
            writer.write_table(pa.Table.from_pylist(group, schema=WILDCHAT))
