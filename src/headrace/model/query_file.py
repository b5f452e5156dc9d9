"""Files of named SQL queries, one per package.

    -- name: find_queue
    -- Return the id of a queue. No row: no job of the queue was ever stored here.
    SELECT id FROM cold_queues WHERE queue = %(queue)s

A query has a name, a description (the comment lines below the name, which servers are not sent) and SQL up to the next
blank line. Other comments between two queries are headings.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import LiteralString, cast

QUERY = re.compile(r"^-- name: (\w+)\n((?:--.*\n)*)((?:.+\n)+)", re.MULTILINE)
"""Name, description and SQL."""


def load_queries(package: str) -> dict[str, LiteralString]:
    """Return the SQL of each query in the package's queries.sql, by name. LiteralString is text that programmers wrote:
    psycopg takes nothing else."""
    text = (files(package) / "queries.sql").read_text("utf-8")
    return {name: cast(LiteralString, sql) for name, _, sql in QUERY.findall(text)}
