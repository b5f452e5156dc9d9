"""The page about metric events repeats model/event.py word for word."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.model.event import COLUMNS, COUNT_COLUMN

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "events.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    section = re.split(rf"^## {heading}$", PAGE, flags=re.MULTILINE)[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_column_is_documented_in_its_place() -> None:
    assert rows("Columns") == [[f"`{column.name}`", column.kind, column.meaning] for column in COLUMNS]


def test_every_verb_and_its_column_of_history_is_documented() -> None:
    assert rows("Verbs") == [[f"`{op}`", f"`{column}`"] for op, column in COUNT_COLUMN.items()]
