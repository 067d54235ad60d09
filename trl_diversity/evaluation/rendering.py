# SPDX-License-Identifier: Apache-2.0
"""Tables with coloured clusters, for a terminal and as a page of HTML."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


# Readable as text on dark and on light terminals; as backgrounds in HTML they are lightened.
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#17a2b8", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22")
_STYLE = """
body { font-family: sans-serif; margin: 2em auto; max-width: 75em; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 0.5em 0 2em; }
th, td { border: 1px solid #ccc; padding: 0.3em 0.6em; vertical-align: top; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.text { white-space: pre-wrap; overflow-wrap: anywhere; }
p.prompt { white-space: pre-wrap; font-weight: bold; }
"""


@dataclass(frozen=True)
class Cell:
    """Text of a table's cell and, if it belongs to a cluster, the cluster's label."""

    text: str
    cluster: int | None = None


@dataclass(frozen=True)
class Section:
    """A prompt and the tables below it."""

    heading: str
    prompt: str
    tables: list["TextTable"] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TextTable:
    """A table of cells; plain texts of digits are set right."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def number_cell(value: Any, digits: int = 3, cluster: int | None = None) -> Cell:
    """A number, or nothing where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Cell("", cluster)
    return Cell(f"{value:.{digits}f}" if isinstance(value, float) else str(value), cluster)


def color_of(cluster: int) -> str:
    """Color of a cluster: the ten first ones differ."""
    return COLORS[cluster % len(COLORS)]


def shortened(text: str, characters: int | None) -> str:
    """A text cut to so many characters, its length told."""
    if characters is None or len(text) <= characters:
        return text
    return f"{text[:characters]} [... {len(text)} characters]"


def print_sections(sections: Sequence[Section], characters: int | None = 300, width: int | None = None) -> None:
    """Print sections to the terminal; texts are cut to `characters`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=width)
    for section in sections:
        console.rule(Text(section.heading), align="left")
        console.print(Text(shortened(section.prompt, characters), style="bold"))
        for table in section.tables:
            drawn = Table(show_lines=any(len(cell.text) > 40 for row in table.rows for cell in row))
            for header in table.headers:
                drawn.add_column(Text(header))
            for row in table.rows:
                drawn.add_row(
                    *(
                        Text(
                            shortened(cell.text, characters),
                            style="" if cell.cluster is None else color_of(cell.cluster),
                        )
                        for cell in row
                    )
                )
            console.print(drawn)
        for note in section.notes:
            console.print(Text(note))


def html_page(title: str, sections: Sequence[Section]) -> str:
    """The sections as one page that needs no other file. All texts are escaped."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    for section in sections:
        parts.append(f"<h2>{html.escape(section.heading)}</h2>")
        parts.append(f'<p class="prompt">{html.escape(section.prompt)}</p>')
        parts += [_html_table(table) for table in section.tables]
        parts += [f"<p>{html.escape(note)}</p>" for note in section.notes]
    return "\n".join([*parts, "</body></html>", ""])


def _html_table(table: TextTable) -> str:
    head = "".join(f"<th>{html.escape(header)}</th>" for header in table.headers)
    rows = ["<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in table.rows]
    return "\n".join([f"<table><tr>{head}</tr>", *rows, "</table>"])


def _html_cell(cell: Cell) -> str:
    kind = "number" if cell.text.replace(".", "", 1).replace("-", "", 1).isdigit() else "text"
    # Two hexadecimal digits more are the share of the color: a light background under black text
    style = "" if cell.cluster is None else f' style="background: {color_of(cell.cluster)}33"'
    return f'<td class="{kind}"{style}>{html.escape(cell.text)}</td>'
