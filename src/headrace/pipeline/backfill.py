"""Rewrite hours of history from the archive, and activate them atomically.

The rows of every tier are written with a new generation number, which readers ignore at first. Then one row switches
the whole window to the new generation. A backfill that is killed before that has changed nothing visible; the next one
uses another generation number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.model.time import format_iso_ms
from headrace.pipeline.archive import Archive
from headrace.pipeline.audit import aggregate_to_tier, describe_archive_gap
from headrace.pipeline.buckets import aggregate_environments
from headrace.pipeline.clickhouse_destination import split_into_blocks
from headrace.pipeline.replay import ArchiveIncomplete, ReplayedHour, ReplayWindow, replay
from headrace.warehouse import history_windows, tiers
from headrace.warehouse.blocks import RETRYABLE, BlockWriter, InsertFailed, to_arrow_file
from headrace.warehouse.connect import Client
from headrace.warehouse.tiers import TIERS

# A query selects its parts of the tables just before it reads which generation is active. The pause between the last
# row and the switch is longer than the time between those two steps, so no query sees the new generation without all
# its rows.
SETTLE_S = 2.0
TRIES = 4


@dataclass(frozen=True)
class BackfillResult:
    generation: int
    hours: int
    events: int
    rows: dict[str, int]  # by table


def backfill(
    session: SparkSession,
    client: Client,
    writer: BlockWriter,
    uri: str,
    window: ReplayWindow,
    *,
    now_ms: int,
    allow_empty: bool = False,
    settle_s: float = SETTLE_S,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> BackfillResult:
    """Rewrite the hours of a window. Raises ArchiveIncomplete unless `allow_empty`. `report` gets the hours done and
    the total."""
    generation = history_windows.allocate_generation(client)
    written: dict[str, int] = dict.fromkeys(tiers.TABLES, 0)
    events = 0
    archive = Archive(uri)
    for number, hour_ms in enumerate(window.list_hours):
        report(number, len(window.list_hours))
        hour = replay(session, uri, hour_ms)
        if not allow_empty and (missing := describe_archive_gap(client, archive, hour)):
            raise ArchiveIncomplete(
                f"For the hour {format_iso_ms(hour_ms)} the archive lacks {missing}, but the warehouse has rows, which "
                "would be replaced. Nothing was changed. Choose hours that the archive covers, or pass --allow-empty."
            )
        events += hour.events
        for table, rows in rows_by_table(hour, now_ms):
            _write(writer, table, rows, generation, hour_ms)
            written[table] += rows.num_rows
    time.sleep(settle_s)
    start_s, end_s = window.start_ms // 1000, window.end_ms // 1000
    history_windows.activate_generation(client, start_s, end_s, generation)
    history_windows.remove_superseded(client, start_s, end_s, generation)
    report(len(window.list_hours), len(window.list_hours))
    return BackfillResult(generation, len(window.list_hours), events, written)


def rows_by_table(hour: ReplayedHour, now_ms: int) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each table that still keeps the hour."""
    for tier in TIERS:
        if hour.start_ms // 1000 + 3600 + tier.kept_s > now_ms // 1000:
            rows = aggregate_to_tier(hour.rows, tier)
            yield tier.queues, rows
            yield tier.environments, aggregate_environments(rows)


def _write(writer: BlockWriter, table: str, rows: pa.Table, generation: int, hour_ms: int) -> None:
    for number, block in enumerate(split_into_blocks(rows)):
        marked = block.append_column("generation", pa.array([generation] * len(block), pa.uint32()))
        token = f"backfill/{generation}/{table}/{format_iso_ms(hour_ms)}/{number}"
        _insert(writer, table, marked, token)


def _insert(writer: BlockWriter, table: str, rows: pa.Table, token: str) -> None:
    """Insert rows, retrying while ClickHouse is unavailable; the token makes that safe. Raises InsertFailed."""
    data: Any = to_arrow_file(rows)
    for attempt in range(TRIES):
        try:
            return writer.insert(table, rows.schema.names, data, token)
        except InsertFailed as error:
            if error.reason not in RETRYABLE or attempt == TRIES - 1:
                raise
            time.sleep(2**attempt)
