"""How commands print: a table for a person, aligned text for a pipe, JSON for a program.

Promises that with `--json` the last line of standard output is one JSON object, whatever was printed
before it. Never imports rich unless standard output is a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

import click

json_option = click.option("--json", "as_json", is_flag=True, help="End standard output with one line of JSON.")


def print_json(document: Mapping[str, object]) -> None:
    click.echo(json.dumps(document, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if sys.stdout.isatty():
        _print_rich(columns, rows)
    else:
        click.echo("\n".join(aligned([columns, *rows])))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE)
    for row in rows:
        table.add_row(*map(Text, row))  # Text: rich would read `local[*]` as markup
    Console().print(table)
