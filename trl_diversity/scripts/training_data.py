# SPDX-License-Identifier: Apache-2.0
"""Loads the data sets of a run from the Hub or from files, and gives their prompts the form that a trainer reads."""

import glob
import logging
import os
import re
from functools import partial
from typing import Any

from datasets import Dataset, IterableDataset, load_dataset, load_from_disk


logger = logging.getLogger(__name__)

FILE_TYPES = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
SAVED_TO_DISK = ("dataset_dict.json", "state.json")  # what `Dataset.save_to_disk` leaves in a directory


def load_splits(
    script_args: Any, with_eval: bool
) -> tuple[Dataset | IterableDataset, Dataset | IterableDataset | None]:
    """
    Load the data sets that a run trains and is evaluated on.

    Args:
        script_args ([`TrainingScriptArguments`]):
            Names the data, its splits and what happens to its prompts.
        with_eval (`bool`):
            Whether the run is evaluated. Without it, the test split is not looked for.

    Returns:
        `tuple`: the train set, and the test set or `None`. Both have a column `prompt`.

    Raises:
        `FileNotFoundError`: if a file is not there.
        `ValueError`: if a split or the prompt column is missing, or a set is empty.
    """
    if not script_args.dataset_name:
        raise ValueError(
            "`dataset_name` is missing: give the name of a data set on the Hub, a .jsonl, .json or .parquet file, a "
            "pattern of such files, or a directory."
        )
    train = load_split(script_args, script_args.dataset_name, "dataset_train_split")
    if not with_eval:
        return prepare_prompts(train, script_args), None
    if script_args.eval_dataset_name is None and _file_type(script_args.dataset_name) is not None:
        raise ValueError(
            f"`eval_strategy` asks for evaluation, but `dataset_name: {script_args.dataset_name}` is all of the "
            "training data. Name another file with `eval_dataset_name`, or set `eval_strategy: 'no'`."
        )
    test = load_split(script_args, script_args.eval_dataset_name or script_args.dataset_name, "dataset_test_split")
    return prepare_prompts(train, script_args), prepare_prompts(test, script_args)


def load_split(script_args: Any, name: str, setting: str) -> Dataset | IterableDataset:
    """
    Load one split.

    Args:
        script_args ([`TrainingScriptArguments`]):
            Holds `dataset_config`, `dataset_streaming` and the splits.
        name (`str`):
            Hub name, file, pattern of files, directory of files, or directory written by `save_to_disk`.
        setting (`str`):
            Name of the argument that holds the split. Of a file, the split is all of it; part of a split is written as
            `train[:100]`.
    """
    split, streaming = getattr(script_args, setting), script_args.dataset_streaming
    path = os.path.expanduser(name)
    file_type = _file_type(name)
    if file_type is None and any(os.path.isfile(os.path.join(path, marker)) for marker in SAVED_TO_DISK):
        return _from_disk(path, split, setting, streaming)
    try:
        if file_type is None:
            where = path if os.path.isdir(path) else name
            return load_dataset(where, script_args.dataset_config, split=split, streaming=streaming)
        files = sorted(glob.glob(path))
        if not files:
            raise FileNotFoundError(f"there is no file {name!r}")
        base = re.split(r"[\[+]", split)[0]
        return load_dataset(file_type, data_files={base: files}, split=split, streaming=streaming)
    except ValueError as error:
        if not re.match(r"(unknown|bad) split", str(error), re.IGNORECASE):
            raise
        raise ValueError(f"{name!r} has no split {split!r}, which `{setting}` names: {error}") from error


def prepare_prompts(dataset: Dataset | IterableDataset, script_args: Any) -> Dataset | IterableDataset:
    """
    Name the column of prompts `prompt`, and put the system prompt before each of them if there is one.

    Plain prompts become conversations of a system and a user message. A conversation that begins with a system
    message keeps its own.

    Raises:
        `ValueError`: if the column is not there, or its first value is neither a text nor a list of messages.
    """
    first = next(iter(dataset), None)
    if first is None:
        raise ValueError("the data set is empty")
    column = script_args.prompt_column
    if column not in first:
        raise ValueError(
            f"the data set has no column {column!r}, but {', '.join(map(repr, first))}. Set `prompt_column` to the "
            "one that holds the prompts."
        )
    if not is_prompt(first[column]):
        raise ValueError(f"column {column!r} holds {first[column]!r}: a prompt is a text or a list of messages.")
    if column != "prompt":
        if "prompt" in first:
            logger.warning("The column 'prompt' is dropped: `prompt_column` says that %r holds the prompts.", column)
            dataset = dataset.remove_columns("prompt")
        dataset = dataset.rename_column(column, "prompt")
    if script_args.system_prompt:
        if "{{" in script_args.system_prompt:
            logger.warning("The model sees the doubled braces of `system_prompt` as they are: nothing is filled in.")
        dataset = dataset.map(partial(with_system_prompt, system_prompt=script_args.system_prompt))
    return dataset


def is_prompt(prompt: Any) -> bool:
    """Whether a value is a plain prompt or a conversational one."""
    if isinstance(prompt, str):
        return True
    return isinstance(prompt, list) and bool(prompt) and all(isinstance(m, dict) and "role" in m for m in prompt)


def with_system_prompt(row: dict[str, Any], system_prompt: str) -> dict[str, Any]:
    """A row whose prompt begins with a system message: its own if it has one, else `system_prompt`."""
    prompt = row["prompt"]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if messages[0]["role"] in ("system", "developer"):
        return {"prompt": messages}
    # A column has one type: where contents are lists of parts, this one is too
    parts = isinstance(messages[0]["content"], list)
    content = [{"type": "text", "text": system_prompt}] if parts else system_prompt
    return {"prompt": [{"role": "system", "content": content}, *messages]}


def is_local(name: str) -> bool:
    """Whether the name of a data set means files of this machine."""
    return _file_type(name) is not None or os.path.isdir(os.path.expanduser(name))


def _file_type(name: str) -> str | None:
    return FILE_TYPES.get(os.path.splitext(name)[1].lower())


def _from_disk(path: str, split: str, setting: str, streaming: bool) -> Dataset | IterableDataset:
    saved = load_from_disk(path)
    if isinstance(saved, dict):
        if split not in saved:
            raise ValueError(f"{path!r} has no split {split!r}, which `{setting}` names, but {', '.join(saved)}.")
        saved = saved[split]
    return saved.to_iterable_dataset() if streaming else saved
