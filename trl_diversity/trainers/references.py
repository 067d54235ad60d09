# SPDX-License-Identifier: Apache-2.0
"""The references of a data set: checked before training, and a key for each prompt with its reference."""

import hashlib
import json
from typing import Any

from datasets import Dataset, IterableDataset

from trl_diversity.likelihood import reference_text


_SHOWN_ROWS = 5


def checked_references(dataset: Any, column: str, drop_empty: bool, name: str) -> Any:
    """
    A data set every row of which has a reference.

    A streamed data set is checked for its column where that is known; its rows are checked as they come
    ([`row_reference`]).

    Args:
        dataset (`Dataset`, `IterableDataset`, a dictionary of them or `None`):
            Data set to check.
        column (`str`):
            Column of the references.
        drop_empty (`bool`):
            Drop rows without a reference instead of refusing them.
        name (`str`):
            How errors call the data set.

    Returns:
        The data set, without the rows that were dropped.

    Raises:
        `ValueError`: if the column is missing, or references are empty or no text, with the first such rows.
    """
    if isinstance(dataset, dict):
        return {key: checked_references(part, column, drop_empty, f"{name}[{key!r}]") for key, part in dataset.items()}
    if not isinstance(dataset, (Dataset, IterableDataset)):
        return dataset  # TRL refuses what is no data set
    if dataset.column_names is not None and column not in dataset.column_names:
        raise ValueError(
            f"`{name}` has no column {column!r} with the references; it has {', '.join(dataset.column_names)}. Rename "
            "a column, or set `reference_column`."
        )
    if isinstance(dataset, IterableDataset):
        kept = dataset.filter(lambda row: column not in row or reference_text(row[column]) != "")
        return kept if drop_empty else dataset
    empty = []
    for index, value in enumerate(dataset[column]):
        try:
            if not reference_text(value):
                empty.append(index)
        except ValueError as error:
            raise ValueError(f"Row {index} of `{name}`, column {column!r}: {error}.") from None
    if empty and not drop_empty:
        raise ValueError(
            f"{len(empty)} of {len(dataset)} rows of `{name}` have an empty reference in the column {column!r}, "
            f"the first are {empty[:_SHOWN_ROWS]}. Remove them, or set `drop_empty_references=True`."
        )
    if not empty:
        return dataset
    dropped = set(empty)
    return dataset.select([index for index in range(len(dataset)) if index not in dropped])


def row_reference(row: dict[str, Any], column: str) -> str:
    """
    Text of the reference of a row, as it comes: the rows of a streamed data set are not known before.

    A column of numbers that holds a fraction or a gap holds 42 as 42.0: whole numbers are spelled without it.

    Raises:
        `ValueError`: if the row has none.
    """
    if column not in row:
        raise ValueError(
            f"A row has no column {column!r} with the reference; it has {', '.join(row)}. Rename a column, or set "
            "`reference_column`."
        )
    value = row[column]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = reference_text(value)
    if not text:
        raise ValueError(
            f"The reference in the column {column!r} is empty for the prompt {row['prompt']!r}. Remove the row, or "
            "set `drop_empty_references=True`."
        )
    return text


def row_key(prompt: Any, reference: str) -> str:
    """A short key for a prompt with its reference, the same in every run."""
    text = json.dumps([prompt, reference], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
