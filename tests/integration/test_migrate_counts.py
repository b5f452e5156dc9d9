"""The migration that adds a counter: rows of before read 0, and a record sent again after it is counted once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest

from headrace.model.event import COUNT_COLUMN
from headrace.pipeline.buckets import bucketize, merge
from headrace.pipeline.decode import decode
from headrace.warehouse import migrate as migration
from headrace.warehouse.blocks import BlockWriter, to_arrow_file
from headrace.warehouse.connect import Client, connect
from headrace.warehouse.queue_metrics import TABLE
from headrace.warehouse.tiers import TABLES

ADDED = "007_defer_count.sql"
OLD_COLUMN = "defer_count"
NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture
def database(clickhouse_url: str) -> Iterator[str]:
    name = f"counts_{uuid4().hex}"
    yield name
    connect(clickhouse_url).command(f"DROP DATABASE IF EXISTS {name} SYNC")


def make_rows(op: str, seq: int) -> pa.Table:
    texts = ["1", str(seq), "acme", "shop", "prod", "mail", op, "3", "3", "1700000000000", *["1"] * 11, "", "", ""]
    entries = [(f"{NOW_MS + seq}-0".encode(), [b"e", "\t".join(texts).encode()])]
    return merge([bucketize(pa.Table.from_batches([decode(0, entries)]))])


def read_sums(client: Client, column: str) -> dict[str, int]:
    return {table: int(client.query(f"SELECT sum({column}) FROM {table}").result_rows[0][0]) for table in TABLES}


def test_rows_and_tokens_of_before_are_valid_after(
    clickhouse_url: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = migration.load_migrations()
    monkeypatch.setattr(migration, "load_migrations", lambda: [each for each in every if each.name < ADDED])
    server = connect(clickhouse_url)
    migration.migrate(server, database)
    writer = BlockWriter(lambda: connect(clickhouse_url, database))
    rows = make_rows("enqueue", 1)
    before = rows.drop_columns([OLD_COLUMN])  # as a pipeline of the release before writes it
    send(writer, before, "record-1")
    client = connect(clickhouse_url, database)
    assert set(read_sums(client, "enqueue_count").values()) == {3}

    monkeypatch.setattr(migration, "load_migrations", lambda: every)
    assert migration.migrate(server, database) == [each.name for each in every if each.name >= ADDED]
    assert set(read_sums(client, "defer_count").values()) == {0}
    send(writer, before, "record-1")  # sent again from the spool, because its answer was lost
    assert read_sums(client, "enqueue_count") == dict.fromkeys(TABLES, 3)
    for _ in range(2):
        send(writer, make_rows("defer", 2), "record-2")
        send(writer, merge([make_rows("defer", 3), make_rows("enqueue", 4), make_rows("ack", 5)]), "record-3")
    for column in COUNT_COLUMN.values():
        expected = {"enqueue_count": 6, "defer_count": 6, "ack_count": 3}.get(column, 0)
        assert read_sums(client, column) == dict.fromkeys(TABLES, expected), column
    writer.close()


def send(writer: BlockWriter, rows: pa.Table, token: str) -> None:
    writer.insert(TABLE, rows.schema.names, to_arrow_file(rows), token)
