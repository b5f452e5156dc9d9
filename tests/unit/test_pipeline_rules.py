"""Decisions of the sink, the checkpoint check and the monitor, with a real spool and without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from headrace.errors import CheckpointMismatch, HeadraceError
from headrace.model.entry_id import START, EntryId
from headrace.pipeline.arrow import from_payload
from headrace.pipeline.checkpoint import QUERY, move_away, verify_checkpoint
from headrace.pipeline.job import BETWEEN_QUERIES
from headrace.pipeline.monitor import PipelineMonitor, health_response
from headrace.pipeline.partition import PartitionPlan, summarise
from headrace.pipeline.published_status import InsertRateMeter, InsertRates
from headrace.pipeline.sink import (
    ShardMark,
    SpoolSink,
    StoredBatch,
    compute_token,
    compute_watermark_ms,
    format_shard_marks,
    parse_shard_marks,
)
from headrace.pipeline.summary import PartitionSummary, count_gaps, merge_by_shard, summary_from_row
from headrace.runtime.prometheus import build_registry
from headrace.settings import Settings
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool
from headrace.warehouse import pipeline_batches, queue_metrics
from headrace.warehouse.unreadable_entries import TABLE as SET_ASIDE
from tests.events import event_table

MS = 1_800_000_000_000


def summaries(*changes: dict[str, Any], plan: PartitionPlan | None = None) -> list[PartitionSummary]:
    rows = summarise(event_table(*changes).to_batches(), plan or PartitionPlan())
    return [summary_from_row(row) for batch in rows for row in batch.to_pylist()]


def numbered(*seqs: int, shard: int = 0) -> list[PartitionSummary]:
    """Return events with these numbers, one entry each."""
    return summaries(*({"shard": shard, "at_ms": MS + at, "seq": seq} for at, seq in enumerate(seqs)))


@pytest.mark.parametrize(
    ("seqs", "lost", "rewinds"),
    [([1, 2, 3], 0, 0), ([1, 3, 7], 4, 0), ([5, 6, 2, 3], 0, 1), ([5, 5], 0, 1), ([9], 0, 0), ([], 0, 0)],
)
def test_missing(seqs: list[int], lost: int, rewinds: int) -> None:
    assert count_gaps(np.array(seqs, np.int64)) == (lost, rewinds)


def test_a_gap_between_partitions_is_seen() -> None:
    one = summaries({"at_ms": MS, "seq": 1}, {"at_ms": MS + 1, "seq": 2})
    two = summaries({"at_ms": MS + 5, "seq": 6}, {"at_ms": MS + 9, "seq": 8})
    found = merge_by_shard([*two, *one])[0]
    assert (found.first_seq, found.last_seq, found.events, found.lost) == (1, 8, 4, 4)


def test_entries_are_put_in_the_order_of_the_stream() -> None:
    [found] = summaries(
        {"at_ms": MS + 1, "seq": 2}, {"at_ms": MS, "seq": 1}, plan=PartitionPlan({0: EntryId(MS - 1, 9)})
    )
    assert (found.first_seq, found.last_seq, found.lost, found.rewinds) == (1, 2, 0, 0)
    assert summaries({"at_ms": MS}, plan=PartitionPlan({0: EntryId(MS, 0)})) == []


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool.open(SpoolOptions(tmp_path / "spool")) as spool:
        yield spool


class Sink:
    def __init__(self, spool: Spool, begun: dict[int, ShardMark]) -> None:
        self.taken: list[StoredBatch] = []
        self._sink = SpoolSink(spool, begun, extra_marks=lambda: {QUERY: "q1"}, after_put=self.taken.append)

    def take(self, parts: list[PartitionSummary]) -> StoredBatch:
        self._sink.store(parts, len(self.taken), MS)
        return self.taken[-1]


def test_losses_are_counted_against_the_mark(spool: Spool) -> None:
    sink = Sink(spool, {0: ShardMark(START, 0), 1: ShardMark(START, 0)})
    first = sink.take([*numbered(3, 4), *numbered(1, 2, shard=1)])
    assert (first.batch.lost_events, first.gap_shards) == (
        2,
        {0},
    )  # 1 and 2 of shard 0 were trimmed before the first read
    assert parse_shard_marks(spool.read_marks()) == {
        0: ShardMark(EntryId(MS + 1, 0), 4),
        1: ShardMark(EntryId(MS + 1, 0), 2),
    }
    assert spool.read_marks()[QUERY] == "q1"
    second = sink.take(later(5, 6, 7, after_ms=10))
    assert (second.batch.lost_events, second.batch.rewinds, second.gap_shards) == (0, 0, frozenset())
    third = sink.take(later(10, 11, after_ms=20))
    assert (third.batch.lost_events, third.gap_shards) == (2, {0})
    fourth = sink.take(later(2, 3, after_ms=30))
    assert (fourth.batch.lost_events, fourth.batch.rewinds, fourth.gap_shards) == (0, 1, {0})


def test_a_new_shard_begins_at_its_first_event(spool: Spool) -> None:
    assert Sink(spool, {}).take(numbered(77)).batch.lost_events == 76
    # A group with a position but without an event number.
    assert Sink(spool, {5: ShardMark(EntryId(1, 0), 0)}).take(numbered(77, shard=5)).batch.lost_events == 0


def test_where_a_quiet_shard_began_is_kept(spool: Spool) -> None:
    """Otherwise the next start would treat it as unread from its beginning, and report all of it as lost."""
    sink = Sink(
        spool, {0: ShardMark(EntryId(MS, 0), 8), 1: ShardMark(EntryId(7, 0), 10_000_000), 2: ShardMark(START, 0)}
    )
    sink.take(later(9))
    assert parse_shard_marks(spool.read_marks()) == {
        0: ShardMark(EntryId(MS + 50, 0), 9),
        1: ShardMark(EntryId(7, 0), 10_000_000),
    }
    assert Sink(spool, {}).take(numbered(10_000_001, shard=1)).batch.lost_events == 0


def test_a_stored_batch_is_not_stored_again(spool: Spool) -> None:
    sink = Sink(spool, {0: ShardMark(START, 0)})
    sink.take(later(1))
    with pytest.raises(HeadraceError, match="read again"):
        sink.take(later(1, 2))
    assert sink.take(later(2, 3, after_ms=100)).batch.lost_events == 0


def test_a_clock_set_back_hides_no_later_events(spool: Spool) -> None:
    """Regression: three million events got the same millisecond; those of the next ones were skipped as already
    stored."""
    frozen = [{"at_ms": MS, "at_seq": 3 * 2**20 + number, "seq": 1 + number} for number in range(3)]
    sink = Sink(spool, {0: ShardMark(START, 0)})
    sink.take(summaries(*frozen))
    for number in range(4, 7):
        marks = parse_shard_marks(spool.read_marks())
        plan = PartitionPlan.from_json(PartitionPlan({shard: mark.at for shard, mark in marks.items()}).to_json())
        assert summaries(*frozen, plan=plan) == []
        later = summaries({"at_ms": MS + number - 3, "at_seq": 0, "seq": number}, plan=plan)
        assert sum(part.events for part in later) == 1
        assert sink.take(later).batch.lost_events == 0


def test_batches_within_one_millisecond_have_tokens_of_their_own(spool: Spool) -> None:
    """ClickHouse drops a record with a known token."""
    sink = Sink(spool, {0: ShardMark(START, 0)})
    for number in range(3):
        sink.take(summaries({"at_ms": MS, "at_seq": 2**39 + number, "seq": number + 1}))
    tokens = [record.token for record in spool.lease_many(9)]
    assert len(set(tokens)) == 3


def test_marks_of_an_older_release_are_read() -> None:
    """The older release wrote no exact id, and left an outdated one unchanged."""
    assert parse_shard_marks({"shard/3": f"{(MS << 20) + 7}/9"}) == {3: ShardMark(EntryId(MS, 7), 9)}
    assert parse_shard_marks({"shard/3": f"{(MS << 20) + 7}/9", "entry/3": f"{MS - 5}-1"}) == {
        3: ShardMark(EntryId(MS, 7), 9)
    }


def test_a_weekend_without_clickhouse_fits_into_the_spool() -> None:
    """By the number of records. Regression: it was full after eighty minutes, with most of its gigabyte unused."""
    defaults = Settings()
    seconds = defaults.spool.max_size // 2 * defaults.pipeline.trigger
    assert seconds > 60 * 3600


def test_no_batch_takes_less_than_no_time(spool: Spool) -> None:
    """Regression: a clock set back during a batch gave a duration of half a billion years in ClickHouse."""
    found: list[StoredBatch] = []
    SpoolSink(spool, {}, after_put=found.append, now_ms=lambda: MS - 5).store(numbered(1), 0, MS)
    assert found[0].batch.duration_ms == 0


def later(*seqs: int, after_ms: int = 50) -> list[PartitionSummary]:
    return summaries(*({"at_ms": MS + after_ms + at, "seq": seq} for at, seq in enumerate(seqs)))


def test_a_batch_of_many_rows_fits_into_the_spool(tmp_path: Path) -> None:
    """It is stored as blocks that are split once, here: the destination does not split them differently."""
    many = [{"at_ms": MS, "at_seq": number, "seq": number + 1, "queue": f"q{number}"} for number in range(120_000)]
    with Spool.open(SpoolOptions(tmp_path / "many")) as spool:
        Sink(spool, {}).take(summaries(*many))
        records = spool.lease_many(9)
    rows, batch = records[:-1], records[-1]
    tables = [from_payload(record.payload) for record in rows]
    assert len(tables) > 1
    assert max(len(record.payload) for record in rows) < 40 * 2**20
    assert sum(table.num_rows for table in tables) == 120_000
    assert [record.token for record in rows] == [f"{batch.token}/{number}" for number in range(len(rows))]
    assert all(record.meta["uncut"] for record in rows)


def test_samples_of_unreadable_entries_are_stored(spool: Spool) -> None:
    odd = {"at_ms": MS, "seq": 2, "aside": "malformed", "sample": b"\xff", "op": None, "n": None}
    parts = summaries({"at_ms": MS - 1, "seq": 1}, odd, {"at_ms": MS + 1, "seq": 3})
    taken = Sink(spool, {0: ShardMark(START, 0)}).take(parts)
    assert (taken.batch.events, taken.batch.set_aside, taken.batch.lost_events) == (2, 1, 0)
    tables = [record.meta["table"] for record in spool.lease_many(9)]
    assert tables == [queue_metrics.TABLE, SET_ASIDE, pipeline_batches.TABLE]


def test_only_garbage_moves_the_mark(spool: Spool) -> None:
    sink = Sink(spool, {0: ShardMark(START, 0)})
    sink.take(numbered(1))
    sink.take(summaries({"at_ms": MS + 9, "seq": None, "aside": "not an event", "sample": b"x"}))
    assert parse_shard_marks(spool.read_marks())[0] == ShardMark(EntryId(MS + 9, 0), 1)


def test_the_watermark_is_that_of_the_slowest_shard(spool: Spool) -> None:
    assert (
        compute_watermark_ms({0: ShardMark(EntryId(9, 0), 3), 1: ShardMark(EntryId(7, 0), 1), 2: ShardMark(START, 0)})
        == 7
    )
    assert compute_watermark_ms({}) == 0
    sink = Sink(spool, {0: ShardMark(START, 0), 1: ShardMark(START, 0)})
    sink.take(numbered(1, 2, 3))
    assert sink.take(numbered(1, shard=1)).batch.watermark_ms == MS


def test_records_can_be_read_back(spool: Spool) -> None:
    Sink(spool, {}).take(numbered(1, 2))
    rows, batch = (pyarrow.ipc.open_stream(record.payload).read_all() for record in spool.lease_many(9))
    assert pa.compute.sum(rows["enqueue_count"]).as_py() == 2  # type: ignore[attr-defined]
    assert batch["events"].to_pylist() == [2]


def test_marks_survive_being_written() -> None:
    marks = {0: ShardMark(EntryId(5, 1), 6), 12: ShardMark(EntryId(7, 2**20 + 3), 8)}
    assert parse_shard_marks(format_shard_marks(marks) | {"query": "x"}) == marks


def test_the_token_depends_on_what_was_read() -> None:
    assert compute_token(merge_by_shard(numbered(1, 2))) != compute_token(merge_by_shard(numbered(1, 2, 3)))
    assert compute_token(merge_by_shard(numbered(1))) != compute_token(merge_by_shard(numbered(1, shard=1)))


# The checkpoint --------------------------------------------------------------------------------------


def make_checkpoint(folder: Path, query: str, commits: int = 1) -> Path:
    (folder / "commits").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    for number in range(commits):
        (folder / "commits" / str(number)).touch()
    return folder


def test_a_matching_checkpoint_is_accepted(tmp_path: Path) -> None:
    verify_checkpoint(tmp_path / "none", {}, group_exists=False)  # a first start
    made = make_checkpoint(tmp_path / "made", "a")
    verify_checkpoint(made, {QUERY: "a"}, group_exists=True)
    verify_checkpoint(
        make_checkpoint(tmp_path / "begun", "b", commits=0), {}, group_exists=False
    )  # died before its first batch


@pytest.mark.parametrize(
    ("query", "marks", "group_exists", "what"),
    [
        (None, {QUERY: "a"}, True, "is missing"),
        ("a", {}, True, "spool is new"),
        ("a", {QUERY: "b"}, True, "to query b"),
        (None, {}, True, "another checkpoint"),
        ("a", {QUERY: "a"}, "another", "Another pipeline"),
    ],
)
def test_a_mismatched_checkpoint_is_refused(
    tmp_path: Path, query: str | None, marks: dict[str, str], group_exists: bool | str, what: str
) -> None:
    folder = tmp_path / "checkpoint"
    if query:
        make_checkpoint(folder, query)
    with pytest.raises(CheckpointMismatch, match=what) as caught:
        verify_checkpoint(folder, marks, bool(group_exists), group_exists if isinstance(group_exists, str) else None)
    assert "--from group" in str(caught.value)


def test_a_replaced_checkpoint_is_renamed_not_deleted(tmp_path: Path) -> None:
    assert move_away(tmp_path / "none") is None
    made = make_checkpoint(tmp_path / "made", "a")
    aside = move_away(made)
    assert aside
    assert not made.exists()
    assert (aside / "metadata").exists()


# Monitor ----------------------------------------------------------------------------------------------


def test_three_failures_in_a_row_are_unhealthy(spool: Spool) -> None:
    monitor = PipelineMonitor()
    for number in range(3):
        assert health_response(monitor.read())[0] == 200, number
        monitor.record_failure("Valkey is away")
    status, body = health_response(monitor.read())
    assert (status, body["last_error"], body["state"]) == (503, "Valkey is away", "retrying")
    monitor.record_batch(Sink(spool, {}).take(numbered(1)).batch)
    assert health_response(monitor.read())[0] == 200


def test_pauses_between_queries_double() -> None:
    assert [BETWEEN_QUERIES.delay_s(failures, 0.0) for failures in range(7)] == [1, 1, 2, 4, 8, 16, 30]


def test_metrics_for_prometheus(spool: Spool) -> None:
    monitor = PipelineMonitor()
    registry = build_registry(monitor.families)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"headrace_pipeline_{name}", labels)

    assert value("watermark_timestamp_seconds") is None  # unknown is not zero
    assert value("last_batch_timestamp_seconds") is None
    monitor.record_batch(Sink(spool, {0: ShardMark(START, 0)}).take(numbered(4, 5)).batch)
    monitor.record_lag({"0": 7})
    monitor.record_phases({"addBatch": 1500})
    monitor.record_inserted(4)
    monitor.record_inserted(3)

    assert (value("events_total"), value("lost_events_total"), value("batches_total")) == (2, 3, 1)
    assert value("inserted_rows_total") == 7
    assert (value("lag_events", shard="0"), value("phase_seconds", phase="addBatch")) == (7, 1.5)
    assert value("watermark_timestamp_seconds") == (MS + 1) / 1000
    monitor.record_lag({})
    assert value("lag_events", shard="0") is None  # unknown is not zero


def test_the_page_of_metrics_says_what_is_served() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "pipeline-metrics.md").read_text("utf-8")
    written = re.findall(r"^\| `(headrace_pipeline_\w+)` \| (\w+) \| (?:`\w+`)? *\| (.+) \|$", page, re.M)
    served = [
        (family.name + ("_total" if family.type == "counter" else ""), family.type, family.documentation)
        for family in build_registry(PipelineMonitor().families).collect()
    ]
    assert written == served


def test_insert_rates_are_measured_over_a_minute() -> None:
    now = 100.0
    meter = InsertRateMeter(lambda: now)
    assert meter.update(0, 0, 0) == InsertRates()  # not zero: nothing was measured
    now += 10
    assert meter.update(50, 1000, 5) == InsertRates(5.0, 100.0, 0.5)
    for _ in range(20):  # nothing more: the rate falls to 0 when the window has passed
        now += 10
        meter.update(50, 1000, 5)
    assert meter.update(50, 1000, 5) == InsertRates(0.0, 0.0, 0.0)
