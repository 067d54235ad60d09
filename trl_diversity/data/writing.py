# SPDX-License-Identifier: Apache-2.0
"""Writes prepared rows as Parquet with a data card, the same bytes for the same rows."""

import json
import os
from pathlib import Path
from typing import Any

from trl_diversity.data.preparation import Preparation
from trl_diversity.data.sources import Source


def write_prepared(directory: str | os.PathLike, prepared: Preparation, source: Source, made: dict[str, Any]) -> None:
    """
    Write `train.parquet`, `counts.json` and the card `README.md`. Nothing in them is of this machine or day.

    Args:
        directory (`str`):
            Folder, which is made.
        prepared ([`Preparation`]):
            Rows and counts.
        source ([`Source`]):
            Where the rows come from.
        made (`dict[str, Any]`):
            Settings for the card: `command`, `model`, `max_prompt_tokens`, `num_samples`, `seed`, `language`.

    Raises:
        `ValueError`: if there are no rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not prepared.rows:
        raise ValueError(f"no row of {source.name} is left: {counts_of(prepared)}")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "train.parquet.partial"
    pq.write_table(pa.Table.from_pylist(prepared.rows), partial, compression="zstd")
    os.replace(partial, folder / "train.parquet")
    (folder / "counts.json").write_text(json.dumps(counts_of(prepared), indent=2) + "\n")
    (folder / "README.md").write_text(data_card(prepared, source, made))


def counts_of(prepared: Preparation) -> dict[str, Any]:
    """Rows that were read, dropped by reason, left out of the sample and written: the first is the sum of the rest."""
    return {
        "read": prepared.read,
        "dropped": prepared.dropped,
        "not_sampled": prepared.not_sampled,
        "written": len(prepared.rows),
    }


def data_card(prepared: Preparation, source: Source, made: dict[str, Any]) -> str:
    """The card in Markdown, with the header that the Hub reads."""
    columns = list(prepared.rows[0])
    counted = [("read", prepared.read), *((f"dropped: {reason}", n) for reason, n in prepared.dropped.items())]
    counted += [("not sampled", prepared.not_sampled), ("written", len(prepared.rows))]
    rules = [*source.rules, "of rows with the same prompt, up to case and white space, the first is kept"]
    if made["max_prompt_tokens"] is not None:
        rules.append(
            f"at most {made['max_prompt_tokens']} tokens with the tokenizer and chat template of {made['model']}; "
            "longer prompts are dropped, not cut"
        )
    return "\n".join(
        [
            "---",
            f"license: {source.licence}",
            "configs:",
            "- config_name: default",
            "  data_files:",
            "  - split: train",
            "    path: train.parquet",
            "tags:",
            "- trl",
            "- trl-diversity",
            "---",
            "",
            f"# {source.name}, prepared for training",
            "",
            f"Prompts from [{source.hub_name}](https://huggingface.co/datasets/{source.hub_name}), split "
            f"`{source.split}`. Licence and terms are those of the source.",
            "",
            f"Columns: {', '.join(f'`{column}`' for column in columns)}. A prompt is one user message.",
            "",
            "## How it was made",
            "",
            f"    {made['command']}",
            "",
            *(f"- {rule}" for rule in rules),
            f"- a sample with the seed {made['seed']}, in the order of its hashes",
            "",
            "| rows | |",
            "|---|---|",
            *(f"| {name} | {count} |" for name, count in counted),
            "",
        ]
    )
