"""The queries of this package; queries.sql describes them and the fragments that they include by name, as `{name}`."""

from __future__ import annotations

import re
from functools import cache

from headrace.model.query_file import load_queries

QUERIES = load_queries("headrace.warehouse")


@cache
def render_query(name: str, **parts: str) -> str:
    """Return a query in which each `{part}` is replaced by the text of `parts`, else by the fragment of that name."""
    texts = {**QUERIES, **parts}
    return re.sub(r"\{(\w+)\}", lambda part: texts[part[1]], QUERIES[name])
