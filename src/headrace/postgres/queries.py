"""Named queries: one statement, one file, in the room that asks it.

    QUERIES = files("headrace.cold") / "sql"
    conn.execute(load_query(QUERIES, "spill"), {"id": …})     # `%(id)s` in spill.sql
    with conn.cursor().copy(load_query(QUERIES, "copy_in")) as copy: …

A query with parameters writes a literal `%` as `%%`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources.abc import Traversable
from typing import LiteralString, cast

from headrace.model.query_file import load_queries

QUERIES = load_queries("headrace.postgres")


@cache
def load_query(folder: Traversable, name: str) -> LiteralString:
    """The text of `NAME.sql`. Psycopg takes only text that was written by programmers, and these files are."""
    return cast(LiteralString, (folder / f"{name}.sql").read_text(encoding="utf-8"))
