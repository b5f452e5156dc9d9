"""Which generation of the tiers counts, hour by hour: `history_windows_v1` and `history_generations_v1`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import uuid4

from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.errors import ServiceUnavailable
from headrace.warehouse.connect import INSERT_SETTINGS, Client, available
from headrace.warehouse.sql import query_text
from headrace.warehouse.tiers import TABLES

log = logging.getLogger(__name__)

WINDOWS = "history_windows_v1"
GENERATIONS = "history_generations_v1"
ATTEMPTS = 20

_SUPERSEDED = (
    "generation > 0 AND generation < {generation:UInt32} AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC') "
    "AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')"
)


def take_generation(client: Client) -> int:
    """A number above all others, for one backfill and no other.

    It is taken by a row whose token is made of the number. Of two rows with the same token ClickHouse keeps the first,
    on one server as among replicas, so whoever reads its own name back has the number. A lock file would hold on one
    machine only.
    """
    me = uuid4().hex
    for _ in range(ATTEMPTS):
        number = _highest(client) + 1
        _insert(client, GENERATIONS, {"generation": number, "taken_by": me}, f"generation/{number}")
        if _owner(client, number) == me:
            return number
    raise ServiceUnavailable(
        f"ClickHouse gave no generation to this backfill in {ATTEMPTS} tries. Nothing was changed. Is another backfill "
        "running? Try again when it is done."
    )


def flip(client: Client, start_s: int, end_s: int, generation: int) -> None:
    """From now on the hours in [start, end) are read in this generation."""
    row = {"start": start_s, "end": end_s, "generation": generation}
    _insert(client, WINDOWS, row, f"backfill/{generation}/flip")


def remove_superseded(client: Client, start_s: int, end_s: int, generation: int) -> None:
    """Rows that earlier backfills wrote in [start, end), as far as it goes: nobody reads them any more."""
    bound = {"start_s": start_s, "end_s": end_s, "generation": generation}
    try:
        for table in TABLES:
            if client.query(f"SELECT 1 FROM {table} WHERE {_SUPERSEDED} LIMIT 1", parameters=bound).result_rows:
                client.command(f"DELETE FROM {table} WHERE {_SUPERSEDED}", parameters=bound)
    except ClickHouseError:
        log.exception("rows of earlier backfills stay; they are not read", extra={"action": "superseded_rows_stay"})


def _highest(client: Client) -> int:
    with available(client.url):
        return int(client.query(query_text("highest_generation")).result_rows[0][0])


def _owner(client: Client, generation: int) -> str | None:
    with available(client.url):
        rows = client.query(query_text("generation_owner"), parameters={"generation": generation}).result_rows
    return str(rows[0][0]) if rows else None


def _insert(client: Client, table: str, row: Mapping[str, int | str], token: str) -> None:
    settings = {**INSERT_SETTINGS, "insert_deduplication_token": token}
    with available(client.url):
        client.insert(table, [list(row.values())], column_names=list(row), settings=settings)
