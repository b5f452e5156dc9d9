"""The queries, each in a file of its own; shared parts are included by name, as `{bucket}` and `{current}`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

SHARED = ("bucket", "current", "counters", "durations", "percentiles")


@cache
def query_text(name: str, table: str) -> str:
    query = _read(name)
    for part in SHARED:
        query = query.replace(f"{{{part}}}", _read(part))
    return query.replace("{table}", table)


def _read(name: str) -> str:
    return (files("headrace.warehouse") / "queries" / f"{name}.sql").read_text("utf-8")
