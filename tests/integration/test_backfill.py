"""Compare history with the archive, and rewrite it from the archive, on a real ClickHouse."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from headrace.cli.main import headrace
from headrace.errors import MigrationError
from headrace.history.reconcile import read_totals, reconcile
from headrace.model.event import COUNT_COLUMN, RESYNC, TICK
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.model.time import format_iso_ms
from headrace.pipeline import clickhouse_destination
from headrace.pipeline.archive import HOUR_MS, Archive, compact_and_expire
from headrace.pipeline.audit import HistoryAudit, audit, compare_hour
from headrace.pipeline.backfill import SETTLE_S, BackfillResult, backfill
from headrace.pipeline.buckets import bucketize, merge
from headrace.pipeline.decode import decode
from headrace.pipeline.replay import ArchiveIncomplete, ReplayedHour, ReplayWindow, replay, validate_window
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.queue.scripts import Stubs
from headrace.queue.state import read_states
from headrace.settings import Settings
from headrace.valkey import streams
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from headrace.warehouse import history_windows, pipeline_batches, queue_metrics
from headrace.warehouse.blocks import BlockWriter
from headrace.warehouse.connect import Client, connect
from headrace.warehouse.migrate import migrate, render_schema
from headrace.warehouse.pipeline_batches import PipelineBatch
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.tiers import TABLES, TIERS, read_environment_rows, read_queue_rows
from tests.conftest import wait_until
from tests.events import event_table
from tests.warehouse import insert_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = time.time_ns() // 1_000_000
START = NOW_MS // HOUR_MS * HOUR_MS - 2 * HOUR_MS
WINDOW = ReplayWindow(START, START + 2 * HOUR_MS)
OPS = [*map(str, COUNT_COLUMN), RESYNC, TICK]


def shard_events(shard: int, count: int, seed: int) -> pa.Table:
    """Return events of two hours, numbered from 1, with odometers that add up."""
    dice = random.Random(seed)
    odometers: dict[tuple[str, str], int] = {}
    found: list[dict[str, Any]] = []
    moments = sorted(dice.sample(range(2 * HOUR_MS), count))
    for seq, moment in enumerate(moments, 1):
        queue, op, n = f"q{dice.randrange(3)}-{shard}", dice.choice(OPS), dice.randrange(1, 5)
        counted = op in COUNT_COLUMN
        odometers[queue, op] = odometers.get((queue, op), 0) + n
        found.append(
            {
                **{"shard": shard, "seq": seq, "at_ms": START + moment, "at_seq": seq % 3, "op": op, "queue": queue},
                **{"n": n if counted else 0, "odometer": odometers[queue, op] if counted else None},
                **{"org": "" if op == TICK else "acme", "epoch": 1 + (dice.random() < 0.1)},
                **{"depth": dice.randrange(50), "env_depth": dice.randrange(90), "env_running": dice.randrange(9)},
                **{"limit": dice.choice([None, 4]), "oldest_ms": dice.choice([None, START])},
                **{"waits": [dice.randrange(5000) for _ in range(n)] if op == "dequeue" else None},
                **{"runs": [dice.randrange(99)] if op == "ack" else None, "bytes": dice.randrange(999)},
            }
        )
    return event_table(*found)


EVENTS = [shard_events(0, 400, 1), shard_events(1, 300, 2)]


@dataclass
class Place:
    """A warehouse with two hours of history, and the archive of its events."""

    session: SparkSession
    client: Client
    writer: BlockWriter
    uri: str
    clickhouse_url: str

    def connect(self) -> Client:
        return connect(self.clickhouse_url, str(self.client.database))

    def audit(self, window: ReplayWindow = WINDOW) -> HistoryAudit:
        return audit(self.session, self.client, self.uri, window, NOW_MS)

    def backfill(self, window: ReplayWindow = WINDOW, **options: Any) -> BackfillResult:
        chosen: dict[str, Any] = {"now_ms": NOW_MS, "settle_s": 0.0, **options}
        return backfill(self.session, self.client, self.writer, self.uri, window, **chosen)


@pytest.fixture
def place(spark: SparkSession, clickhouse_url: str, warehouse: Client, tmp_path: Path) -> Iterator[Place]:
    uri = str(tmp_path / "archive")
    for events in EVENTS:
        stream(warehouse, uri, events)
        follow(uri, events)
    writer = BlockWriter(lambda: connect(clickhouse_url, str(warehouse.database)))
    yield Place(spark, warehouse, writer, uri, clickhouse_url)
    writer.close()


def follow(uri: str, events: pa.Table, end_ms: int = WINDOW.end_ms) -> None:
    """Archive events after the window, so that the archive is known to be complete."""
    tick = {"shard": events["shard"][0].as_py(), "seq": events["seq"][-1].as_py() + 1, "at_ms": end_ms, "op": TICK}
    Archive(uri).write(event_table(tick))


def stream(client: Client, uri: str, events: pa.Table, batches: int = 5) -> None:
    """Store events as the pipeline does: in batches, each in the archive and in the 5 s table."""
    size = -(-len(events) // batches)
    for start in range(0, len(events), size):
        batch = events.slice(start, size)
        Archive(uri).write(batch)
        insert_rows(client, bucketize(batch), f"{batch['shard'][0]}/{start}")


def corrupt(client: Client) -> None:
    """Insert wrong rows into the 5 s table, which the views pass on, and delete rows in one tier each. In generation
    0."""
    junk = event_table(
        {"at_ms": START + 1000, "queue": "junk", "n": 7}, {"at_ms": START, "queue": "q0-0", "org": "acme"}
    )
    insert_rows(client, bucketize(junk), "junk")
    client.command("DELETE FROM queue_metrics_by_minute_v1 WHERE generation = 0 AND queue_name = 'q1-0'")
    client.command("DELETE FROM environment_metrics_by_hour_v1 WHERE generation = 0")


def answers(client: Client) -> dict[str, Any]:
    """Return the results of all read queries."""
    refs = [QueueRef("acme", "p", "e", f"q{number}-{shard}") for number in range(3) for shard in range(2)]
    start_s, end_s = WINDOW.start_ms // 1000, WINDOW.end_ms // 1000
    found: dict[str, Any] = {}
    for tier in TIERS:
        found[f"totals {tier.name}"] = queue_metrics.read_totals(client, tier)
        asked = (start_s, end_s, tier.seconds)
        found[f"points {tier.name}"] = [
            queue_metrics.read_points(QueryRunner(client), tier, ref, *asked) for ref in refs
        ]
        for name, rows in (("queues", read_queue_rows), ("environments", read_environment_rows)):
            found[f"{name} {tier.name}"] = sorted(map(str, rows(client, tier, start_s, end_s).to_pylist()))
    return found


def optimize(client: Client) -> None:
    for table in TABLES:
        client.command(f"OPTIMIZE TABLE {table} FINAL")


def generations(client: Client) -> dict[str, list[int]]:
    query = "SELECT DISTINCT generation FROM {} ORDER BY generation"
    return {table: [row[0] for row in client.query(query.format(table)).result_rows] for table in TABLES}


@pytest.mark.slow
def test_the_views_make_what_the_pure_functions_make(place: Place) -> None:
    """Compares coarser buckets and environments, before and after parts are merged."""
    rows = merge([bucketize(events) for events in EVENTS])
    starts = rows["bucket_start"].cast(pa.int64()).to_numpy()
    for _ in range(2):
        for start_ms in WINDOW.list_hours:
            inside = (starts >= start_ms // 1000) & (starts < (start_ms + HOUR_MS) // 1000)
            hour = ReplayedHour(start_ms, rows.filter(pa.array(inside)), 0, 0, {})
            for tier, found in compare_hour(place.client, hour, NOW_MS).items():
                assert found.equal, (tier, found.examples)
                assert found.rows > 0, tier
        optimize(place.client)


@pytest.mark.slow
def test_a_replay_makes_the_rows_of_the_stream(place: Place) -> None:
    hours = [replay(place.session, place.uri, hour_ms) for hour_ms in WINDOW.list_hours]
    assert merge([hour.rows for hour in hours]) == merge([bucketize(events) for events in EVENTS])
    assert sum(hour.events for hour in hours) == 700
    assert [hour.lost for hour in hours] == [0, 0]
    assert {shard: first for shard, (first, _) in hours[0].seqs.items()} == {0: 1, 1: 1}
    compact_and_expire(place.uri, NOW_MS, 30, WINDOW.end_ms)
    assert [replay(place.session, place.uri, hour.start_ms) for hour in hours] == hours


def test_history_that_was_damaged_is_found_and_put_right(place: Place) -> None:
    right = answers(place.client)
    assert place.audit().equal
    corrupt(place.client)
    found = place.audit()
    assert not found.equal
    assert (found.tiers["queue 5s"].extra, found.tiers["queue 1h"].difference) == (2, 8)
    assert found.tiers["queue 1m"].missing > 0
    assert found.tiers["environment 1h"].missing == 2
    assert any("junk" in example for example in found.tiers["queue 5s"].examples)
    done = place.backfill()
    assert (done.generation, done.hours, done.events) == (1, 2, 700)
    assert place.audit().equal
    assert answers(place.client) == right
    optimize(place.client)
    assert place.audit().equal
    assert answers(place.client) == right
    assert generations(place.client) == {table: [0, 1] if table != TABLES[5] else [1] for table in TABLES}


@pytest.mark.slow
def test_what_is_streamed_after_a_backfill_counts_beside_it(place: Place) -> None:
    """In other hours; views do not pass on rows of the backfill."""
    place.backfill(ReplayWindow(START, START + HOUR_MS))
    later: list[dict[str, Any]] = [
        {**events.slice(0, 1).to_pylist()[0], "at_ms": WINDOW.end_ms, "seq": 1000, "op": "ack"} for events in EVENTS
    ]
    insert_rows(place.client, bucketize(event_table(*later)), "later")
    assert place.audit().equal
    [before, after] = [sum(read_totals(place.client)[tier].values()) for tier in ("5s", "1h")]
    assert before == after == sum(merged_counts()) + sum(event["n"] for event in later)


def merged_counts() -> list[int]:
    return [
        sum(merge([bucketize(events) for events in EVENTS])[column].to_pylist()) for column in COUNT_COLUMN.values()
    ]


@pytest.mark.slow
def test_readers_see_the_old_numbers_or_the_new_ones(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    corrupt(place.client)
    old = answers(place.client)
    flip = history_windows.activate_generation
    seen: list[dict[str, Any]] = []

    def look_then_flip(client: Client, *window: int) -> None:
        assert all(max(known) > 0 for known in generations(client).values()), "all is written"
        seen.append(answers(client))
        flip(client, *window)
        seen.append(answers(client))

    with watching(place) as totals:

        def another_round() -> None:
            now = len(totals)
            wait_until(lambda: len(totals) >= now + 2 * len(TIERS), "the other reader has looked again")

        def settle(seconds: float) -> None:
            """Wait until queries that started before the last row have finished."""
            assert seconds == SETTLE_S
            another_round()

        monkeypatch.setattr(history_windows, "activate_generation", look_then_flip)
        monkeypatch.setattr("headrace.pipeline.backfill.time", SimpleNamespace(sleep=settle))
        place.backfill(settle_s=SETTLE_S)
        another_round()
    assert seen[0] == old
    assert seen[1] == answers(place.client) != old
    assert set(totals) <= {*sums(old), *sums(seen[1])}
    assert {*sums(old), *sums(seen[1])} <= set(totals)


@contextmanager
def watching(place: Place) -> Generator[list[tuple[str, int]]]:
    """Read the totals of each tier repeatedly inside this context."""
    client = place.connect()
    stop = threading.Event()
    found: list[tuple[str, int]] = []

    def watch() -> None:
        while not stop.is_set():
            found.extend((tier.name, sum(queue_metrics.read_totals(client, tier).values())) for tier in TIERS)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
        client.close()


def sums(found: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [(tier.name, sum(found[f"totals {tier.name}"].values())) for tier in TIERS]


@pytest.mark.slow
def test_killed_before_the_flip_a_backfill_has_changed_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    right = answers(place.client)
    corrupt(place.client)
    wrong = answers(place.client)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(history_windows, "activate_generation", die)
        with pytest.raises(KeyboardInterrupt):
            place.backfill()
    assert answers(place.client) == wrong
    assert place.backfill().generation == 2
    assert answers(place.client) == right
    assert 1 not in generations(place.client)[TABLES[0]], "what the first one wrote is removed"


@pytest.mark.slow
def test_a_later_backfill_replaces_an_earlier_one_and_leaves_its_other_hours(place: Place) -> None:
    right = answers(place.client)
    corrupt(place.client)
    place.backfill()
    second = ReplayWindow(START + HOUR_MS, START + 2 * HOUR_MS)
    assert place.backfill(second).generation == 2
    assert answers(place.client) == right
    query = (
        f"SELECT DISTINCT toStartOfHour(bucket_start), generation FROM {TABLES[0]} WHERE generation > 0 ORDER BY ALL"
    )
    hours = [
        (when.replace(tzinfo=UTC).timestamp() * 1000, number) for when, number in place.client.query(query).result_rows
    ]
    assert hours == [(START, 1), (START + HOUR_MS, 2)]


@pytest.mark.slow
def test_no_two_backfills_have_the_same_generation(place: Place, clickhouse_url: str) -> None:
    taken: list[int] = []

    def take() -> None:
        client = connect(clickhouse_url, str(place.client.database))
        taken.extend(history_windows.allocate_generation(client) for _ in range(5))
        client.close()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 21))


@pytest.mark.slow
def test_an_insert_that_is_sent_again_counts_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    insert = place.writer.insert

    def twice(*arguments: Any) -> None:
        insert(*arguments)
        insert(*arguments)

    monkeypatch.setattr(place.writer, "insert", twice)
    monkeypatch.setattr(clickhouse_destination, "MAX_BLOCK_ROWS", 50)
    right = answers(place.client)
    done = place.backfill()
    assert done.rows[TABLES[0]] > 100, "it was several blocks"
    assert answers(place.client) == right


@pytest.mark.slow
def test_overlapping_files_count_each_event_once(place: Place) -> None:
    """Simulates batches that Spark planned again, longer."""
    for events in EVENTS:
        for start, end in ((0, 90), (30, 200), (100, 250)):
            Archive(place.uri).write(events.slice(start, end - start))
    assert place.audit().equal
    compact_and_expire(place.uri, NOW_MS, 30, WINDOW.end_ms)
    assert place.audit().equal


@pytest.mark.slow
def test_history_that_the_archive_does_not_hold_is_not_erased(place: Place, tmp_path: Path) -> None:
    right = answers(place.client)
    empty = replace(place, uri=str(tmp_path / "empty"))
    with pytest.raises(ArchiveIncomplete, match="every event"):
        empty.backfill()
    late = replace(place, uri=str(tmp_path / "late"))
    Archive(late.uri).write(EVENTS[0].slice(50))
    with pytest.raises(ArchiveIncomplete, match="events before the first one of shard 0"):
        late.backfill()
    torn = replace(place, uri=str(tmp_path / "torn"))
    for part in (EVENTS[0].slice(0, 50), EVENTS[0].slice(60), EVENTS[1]):
        Archive(torn.uri).write(part)
    with pytest.raises(ArchiveIncomplete, match="10 events within it"):
        torn.backfill()
    gone = replace(place, uri=str(tmp_path / "gone"))
    hour_of = EVENTS[0]["at_ms"].to_numpy() // HOUR_MS
    second = int((hour_of == hour_of[0]).sum())
    for part in (EVENTS[0].slice(0, second - 3), EVENTS[0].slice(second), EVENTS[1]):
        Archive(gone.uri).write(part)
    with pytest.raises(ArchiveIncomplete, match="events after the last one of shard 0"):
        gone.backfill(ReplayWindow(START + HOUR_MS, START + 2 * HOUR_MS))  # archiving ended within this hour
    for events in EVENTS:
        follow(gone.uri, events)
    for hour in (START, START + HOUR_MS):
        with pytest.raises(ArchiveIncomplete, match="3 events of shard 0 next to the hour before or after"):
            gone.backfill(ReplayWindow(hour, hour + HOUR_MS))
    assert gone.audit().lacking
    assert answers(place.client) == right
    empty.backfill(allow_empty=True)
    assert not any(read_totals(place.client).values())


@pytest.mark.slow
def test_tiers_past_their_retention_are_not_written_again(place: Place) -> None:
    now_ms = NOW_MS + 20 * 86_400_000
    done = place.backfill(now_ms=now_ms)
    assert [bool(done.rows[table]) for table in TABLES] == [False, False, True, True, True, True]
    found = audit(place.session, place.client, place.uri, WINDOW, now_ms)
    assert found.equal
    assert (found.tiers["queue 5s"].rows, found.tiers["queue 1m"].rows > 0) == (0, True)


@pytest.mark.slow
def test_a_backfill_of_real_streams_agrees_with_the_queues(
    spark: SparkSession, valkey: Valkey, valkey_url: str, clickhouse_url: str, warehouse: Client, tmp_path: Path
) -> None:
    stubs = Stubs(2, 1_000_000)
    producer = SyncClient(valkey_url)
    for org in ("acme", "ünitech:*"):
        producer.enqueue_many(QueueRef(org, "p", "e", "q"), [NewJob("t", b"x") for _ in range(20)])
    for shard in range(2):
        while leased := run(valkey, stubs.dequeue(shard, 7, HOUR_MS)):
            run(valkey, stubs.ack(shard, [(job, 3) for job in leased]))
    uri = str(tmp_path)
    archived: list[pa.Table] = []
    for shard in range(2):
        entries = streams.read_entries_between(valkey, keys.metrics(shard), "0-0", "+", 10_000)
        if entries:
            events = pa.Table.from_batches([decode(shard, entries)])
            archived.append(events)
            insert_rows(warehouse, bucketize(events.slice(0, len(events) // 2)), f"half of {shard}")

    first = min(events["at_ms"][0].as_py() for events in archived)
    last = max(events["at_ms"][-1].as_py() for events in archived)
    window = ReplayWindow(first // HOUR_MS * HOUR_MS, (last // HOUR_MS + 1) * HOUR_MS)
    for events in archived:
        Archive(uri).write(events)
        follow(uri, events, window.end_ms)

    def difference() -> int:
        return reconcile(read_states(valkey, 2), read_totals(warehouse), last).difference

    assert difference() > 0
    writer = BlockWriter(lambda: connect(clickhouse_url, str(warehouse.database)))
    place = Place(spark, warehouse, writer, uri, clickhouse_url)
    assert not place.audit(window).equal
    place.backfill(window)
    assert difference() == 0
    assert place.audit(window).equal
    place.writer.close()


def batch_up_to(client: Client, watermark_ms: int) -> None:
    batch = PipelineBatch(datetime.now(UTC), 1, 1, 1, 1, 1, watermark_ms, watermark_ms=watermark_ms)
    client.insert_arrow(pipeline_batches.TABLE, pipeline_batches.to_arrow(batch))


def test_the_watermark_is_the_highest_of_all_batches(warehouse: Client) -> None:
    assert pipeline_batches.read_watermark_ms(warehouse) is None
    for watermark_ms in (5, 9, 7):
        batch_up_to(warehouse, watermark_ms)
    assert pipeline_batches.read_watermark_ms(warehouse) == 9
    assert validate_window(0, HOUR_MS, HOUR_MS).list_hours == range(0, HOUR_MS, HOUR_MS)


@pytest.fixture
def environ(place: Place, clickhouse_url: str, tmp_path: Path) -> dict[str, str]:
    return {
        "HEADRACE_CLICKHOUSE_URL": clickhouse_url,
        "HEADRACE_WAREHOUSE_DATABASE": str(place.client.database),
        "HEADRACE_ARCHIVE_PATH": place.uri,
        "HEADRACE_EMBEDDED_DATA_DIR": str(tmp_path / "data"),
    }


@pytest.mark.slow
def test_the_commands(place: Place, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    batch_up_to(place.client, WINDOW.end_ms)
    corrupt(place.client)
    wrong = answers(place.client)
    hours = ["--from", format_iso_ms(WINDOW.start_ms), "--to", format_iso_ms(WINDOW.end_ms)]

    def shared(_: Settings) -> AbstractContextManager[SparkSession]:
        return nullcontext(place.session)

    monkeypatch.setattr("headrace.cli.backfill.open_spark_session", shared)

    def command(*arguments: str) -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(headrace, [*arguments, "--json"], env=environ, catch_exceptions=False)
        return done.exit_code, json.loads(done.stdout.splitlines()[-1])

    code, found = command("backfill", *hours, "--dry-run")
    assert (code, found["equal"], found["tiers"]["queue 1h"]["difference"]) == (0, False, 8)
    assert answers(place.client) == wrong
    code, done = command("backfill", *hours)
    assert (code, done["generation"], done["events"]) == (0, 1, 700)
    corrupt(place.client)  # in generation 0, which is not read any more
    assert place.audit().equal


@pytest.mark.slow
def test_an_audit_in_a_process_of_its_own_exits_with_what_it_found(place: Place, environ: dict[str, str]) -> None:
    batch_up_to(place.client, WINDOW.end_ms)
    corrupt(place.client)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "headrace",
            "audit",
            "--from",
            format_iso_ms(WINDOW.start_ms),
            "--to",
            format_iso_ms(WINDOW.end_ms),
        ],
        env={**os.environ, **environ},
        capture_output=True,
        check=False,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1, done.stderr
    assert "queue 5s: extra o/p/e/junk" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 hours, 700 events: differences found"


def test_the_commands_refuse_hours_that_are_not_whole_or_not_over(place: Place, environ: dict[str, str]) -> None:
    for name in ("audit", "backfill"):
        for start, end, told in ((START + 1, START + HOUR_MS, "nearest"), (START, START + HOUR_MS, "Wait")):
            refused = CliRunner().invoke(
                headrace, [name, "--from", format_iso_ms(start), "--to", format_iso_ms(end)], env=environ
            )
            assert (refused.exit_code, told in refused.output) == (1, True), refused.output
        refused = CliRunner().invoke(headrace, [name, "--from", "monday", "--to", format_iso_ms(START)], env=environ)
        assert (refused.exit_code, "Invalid time" in refused.output) == (2, True)
        without = {**environ, "HEADRACE_ARCHIVE_PATH": ""}
        refused = CliRunner().invoke(
            headrace, [name, "--from", format_iso_ms(START), "--to", format_iso_ms(START)], env=without
        )
        assert (refused.exit_code, "archive.path" in refused.output) == (3, True)


def test_clickhouse_understands_the_schema_of_a_cluster(warehouse: Client) -> None:
    for statement in render_schema(str(warehouse.database), "prod"):
        assert warehouse.query(f"EXPLAIN AST {statement}").result_rows


def test_tables_of_one_server_are_not_mixed_with_those_of_a_cluster(warehouse: Client) -> None:
    with pytest.raises(MigrationError, match="were created for one server"):
        migrate(warehouse, str(warehouse.database), "prod")
    assert migrate(warehouse, str(warehouse.database)) == []
