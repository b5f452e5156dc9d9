"""Active generation of the tiers, by hour: `history_windows_v1` and `history_generations_v1`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import uuid4

from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.errors import ServiceUnavailable
from headrace.warehouse.connect import INSERT_SETTINGS, Client, query_rows, translate_errors
from headrace.warehouse.sql import render_query
from headrace.warehouse.tiers import TABLES

log = logging.getLogger(__name__)

WINDOWS = "history_windows_v1"
GENERATIONS = "history_generations_v1"
ATTEMPTS = 20

_SUPERSEDED = (
    "generation > 0 AND generation < {generation:UInt32} AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC') "
    "AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')"
)


def allocate_generation(client: Client) -> int:
    """Allocate a new highest generation number for one backfill. Raises ServiceUnavailable.

    The number is allocated by inserting a row whose token contains it. Of two rows with the same token ClickHouse keeps
    the first, on one server and across replicas, so the process that reads back its own name owns the number. A lock
    file would work on one machine only.
    """
    me = uuid4().hex
    for _ in range(ATTEMPTS):
        [[highest]] = query_rows(client, render_query("highest_generation"))
        number = int(highest) + 1
        _insert(client, GENERATIONS, {"generation": number, "taken_by": me}, f"generation/{number}")
        if _read_owner(client, number) == me:
            return number
    raise ServiceUnavailable(
        f"Could not allocate a backfill generation in {ATTEMPTS} attempts. Nothing was changed. If another backfill is "
        "running, try again when it is done."
    )


def activate_generation(client: Client, start_s: int, end_s: int, generation: int) -> None:
    """Make this generation the one that is read for the hours in [start, end)."""
    row = {"start": start_s, "end": end_s, "generation": generation}
    _insert(client, WINDOWS, row, f"backfill/{generation}/flip")


def remove_superseded(client: Client, start_s: int, end_s: int, generation: int) -> None:
    """Delete rows that earlier backfills wrote in [start, end). Errors are only logged: these rows are not read any
    more."""
    bound = {"start_s": start_s, "end_s": end_s, "generation": generation}
    try:
        for table in TABLES:
            if client.query(f"SELECT 1 FROM {table} WHERE {_SUPERSEDED} LIMIT 1", parameters=bound).result_rows:
                client.command(f"DELETE FROM {table} WHERE {_SUPERSEDED}", parameters=bound)
    except ClickHouseError:
        log.exception(
            "could not delete rows of earlier backfills; they are not read", extra={"action": "superseded_rows_stay"}
        )


def _read_owner(client: Client, generation: int) -> str | None:
    rows = query_rows(client, render_query("generation_owner"), {"generation": generation})
    return str(rows[0][0]) if rows else None


def _insert(client: Client, table: str, row: Mapping[str, int | str], token: str) -> None:
    settings = {**INSERT_SETTINGS, "insert_deduplication_token": token}
    with translate_errors(client.url):
        client.insert(table, [list(row.values())], column_names=list(row), settings=settings)
