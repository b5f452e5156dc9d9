"""Output of commands: a table on a terminal, aligned text in a pipe, or JSON.

With `--json`, the last line of standard output is one JSON object; other lines may precede it. rich is
imported only if standard output is a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

ShowTable = Callable[[Sequence[str], Sequence[Sequence[str]]], None]

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object on the last line of standard output."
)


def print_json(document: Mapping[str, object]) -> None:
    click.echo(json.dumps(document, allow_nan=False))


def print_json_or_text(as_json: bool, document: Mapping[str, object], text: str) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(text)


def print_json_or_table(
    as_json: bool, document: Mapping[str, object], columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    if as_json:
        print_json(document)
    else:
        print_table(columns, rows)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(_build_rich_table(columns, rows))
    else:
        click.echo("\n".join(align_columns([columns, *rows])))


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


@contextmanager
def live_table() -> Generator[ShowTable]:
    """Yield a function that shows a table repeatedly: updated in place on a terminal, appended in a pipe."""
    if not sys.stdout.isatty():
        yield _print_plain_table
        return

    from rich.live import Live

    with Live(auto_refresh=False) as live:
        yield lambda columns, rows: live.update(_build_rich_table(columns, rows), refresh=True)


def _print_plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    click.echo("\n".join([*align_columns([columns, *rows]), ""]))


def _build_rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE, padding=(0, 1), pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))  # as Text, because rich would parse `local[*]` as markup
    return table
