"""Store micro-batches in the spool, exactly once.

A batch becomes several records: its rows, samples of unreadable entries, and the batch's statistics. `SpoolSink.store`
returns when all of them are on disk, together with one mark per shard: the last entry and event number of the shard
that the spool has. Because events are numbered, the mark also shows how many are missing before the next batch. A full
spool may be configured to drop records instead; the marks are stored nevertheless, so that the coverage of the next
batch (`warehouse.pipeline_coverage`) begins after the dropped one, and history shows a gap.

Spark may run a batch again after a crash, and may even plan the same batch id over other events. Each event is still
stored once: the query skips the entries up to the marks with which it was started (`partition.py`), and the sink
rejects a batch that contains an entry up to the current mark.

The token of a record is derived from the entries that were read. If the spool does not know whether ClickHouse has a
record, it sends it again; ClickHouse recognises the token and ignores the repetition.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import DataFrame

from headrace.errors import HeadraceError
from headrace.model.entry_id import START, EntryId
from headrace.pipeline.clickhouse_destination import Coverage, attach_coverage, build_records
from headrace.pipeline.offsets import Offsets, parse_position
from headrace.pipeline.partition import collect_summaries
from headrace.pipeline.summary import PartitionSummary, count_gap_between, merge_by_shard, merge_rows
from headrace.spool.spool import Spool
from headrace.warehouse import pipeline_batches, pipeline_coverage, queue_metrics, unreadable_entries
from headrace.warehouse.pipeline_batches import PipelineBatch
from headrace.warehouse.pipeline_coverage import CoverageInterval

# Prefixes of the names of marks; each is followed by the number of a shard.
SHARD = "shard/"  # "<EntryId.linear>/<event number>" of the last stored entry
ENTRY = "entry/"  # exact id of that entry: `linear` is exact only up to 2^20 entries in a millisecond
GAP = "gap/"  # "1" if events were lost and the queues of the shard were not resynced yet, else empty


@dataclass(frozen=True)
class ShardMark:
    """Last entry of a shard that is in the spool."""

    at: EntryId
    seq: int  # number of its event; 0: no stored entry had one


NOTHING_STORED = ShardMark(START, 0)


@dataclass(frozen=True)
class StoredBatch:
    """A batch that is in the spool."""

    batch: PipelineBatch
    gap_shards: frozenset[int]  # shards that lost events in or before this batch, since the previous one
    rows: pa.Table  # rows of history, in the order of queues and buckets
    dropped_records: int = 0  # by a full spool: of this batch (`drop_newest`) or of earlier ones (`drop_oldest`)


class SpoolSink:
    """Callback for Spark's `foreachBatch`. The rows of a batch are partition summaries (`summary.py`).

    `before_put` is called before anything is stored and may raise, `after_put` when everything is on disk.
    """

    def __init__(
        self,
        spool: Spool,
        start_marks: Mapping[int, ShardMark],
        *,
        extra_marks: Callable[[], Mapping[str, str]] = dict,
        before_put: Callable[[], None] = lambda: None,
        after_put: Callable[[StoredBatch], None] = lambda stored: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._spool = spool
        self._start_marks = start_marks  # where shards start that have no mark in the spool
        self._extra_marks = extra_marks  # called for each batch: marks to store with it
        self._before_put = before_put
        self._after_put = after_put
        self._now_ms = now_ms

    def __call__(self, found: DataFrame, batch_id: int) -> None:
        started = self._now_ms()
        if parts := collect_summaries(found):
            self.store(parts, batch_id, started)

    def store(self, parts: Sequence[PartitionSummary], batch_id: int, started_ms: int) -> None:
        """Store the batch that these summaries describe, and its marks. Raises HeadraceError if a part of it is already
        stored, or if the spool does not accept it."""
        before = {**self._start_marks, **parse_shard_marks(self._spool.read_marks())}
        shards, rows = merge_by_shard(parts), merge_rows(parts)
        _reject_stored_entries(shards, before)
        previous = {shard: before.get(shard, NOTHING_STORED) for shard in shards}
        after = before | {  # keep the event number if no entry read has one
            shard: ShardMark(read.last_at, read.last_seq or previous[shard].seq) for shard, read in shards.items()
        }
        losses = {shard: _count_loss(read, previous[shard]) for shard, read in shards.items()}
        now = self._now_ms()
        batch = PipelineBatch(
            finished_at=datetime.fromtimestamp(now / 1000, UTC),
            batch_id=batch_id,
            events=sum(read.events for read in shards.values()),
            rows=rows.num_rows,
            duration_ms=max(now - started_ms, 0),  # the clock may have been set back, and the column is unsigned
            oldest_event_ms=min(read.first_at for read in shards.values()).ms,
            newest_event_ms=max(read.last_at for read in shards.values()).ms,
            lost_events=sum(lost for lost, _ in losses.values()),
            rewinds=sum(rewinds for _, rewinds in losses.values()),
            set_aside=sum(read.set_aside for read in shards.values()),
            watermark_ms=compute_watermark_ms(after),
        )
        samples = [sample for read in shards.values() for sample in read.samples]
        token = compute_token(shards)
        counted = build_records(queue_metrics.TABLE, rows, token)
        unreadable = (
            build_records(unreadable_entries.TABLE, unreadable_entries.to_arrow(samples), token) if samples else []
        )
        # The record with the watermark is last: it is sent when all earlier records are finished.
        last = build_records(pipeline_batches.TABLE, pipeline_batches.to_arrow(batch), token)
        coverage = Coverage(now, [_build_interval(read, previous[shard]) for shard, read in sorted(shards.items())])
        gap_shards = frozenset(shard for shard, loss in losses.items() if any(loss))
        if batch.has_losses:  # the batch's record reports them, so without it the interval is a gap too
            *counted, reporting = attach_coverage([*counted, *last], coverage)
            last = [reporting]
        elif counted:  # each record covers its own rows
            counted = attach_coverage(counted, coverage)
        else:  # in a record of its own, so that the records of several batches can be sent at once
            intervals = pipeline_coverage.to_arrow(coverage.intervals, coverage.finished_ms)
            counted = build_records(pipeline_coverage.TABLE, intervals, f"{token}/coverage")
        self._before_put()
        dropped_before = self._count_dropped()
        ids = self._spool.put_many(
            [*counted, *unreadable, *last],
            marks={
                **self._extra_marks(),
                **dict.fromkeys((f"{GAP}{shard}" for shard in gap_shards), "1"),
                **format_shard_marks({shard: mark for shard, mark in after.items() if mark.at > START}),
            },
        )
        if not ids:
            self._verify_dropped(after)
        dropped = self._count_dropped() - dropped_before
        self._after_put(StoredBatch(batch, frozenset(after) if dropped else gap_shards, rows, dropped))

    def _count_dropped(self) -> int:
        return sum(self._spool.stats().dropped.values())

    def _verify_dropped(self, after: Mapping[int, ShardMark]) -> None:
        """Raise HeadraceError if the spool dropped the batch without storing its marks. The next batch would then seem
        to cover the dropped events; so this one is repeated."""
        stored = parse_shard_marks(self._spool.read_marks())
        if any(stored.get(shard) != mark for shard, mark in after.items() if mark.at > START):
            raise HeadraceError(
                "The spool's disk is full, and not even the loss of a batch can be recorded. The batch is repeated;"
                " nothing is lost while its events are in the streams. Free disk space."
            )


def parse_shard_marks(marks: Mapping[str, str]) -> dict[int, ShardMark]:
    """Return the mark of each shard that has one, from the marks of the spool."""
    found = {name.removeprefix(SHARD): text.split("/") for name, text in marks.items() if name.startswith(SHARD)}
    return {
        int(shard): ShardMark(_parse_entry_id(int(at), marks.get(f"{ENTRY}{shard}")), int(seq))
        for shard, (at, seq) in found.items()
    }


def _parse_entry_id(linear: int, exact: str | None) -> EntryId:
    """Return the entry id of a shard's mark. `linear` is the id in SHARD, `exact` the one in ENTRY.

    Releases before 0.2 write only SHARD and leave an ENTRY of a later release unchanged, so `exact` counts only if it
    belongs to `linear`.
    """
    found = EntryId.parse(exact) if exact else None
    return found if found is not None and found.linear == linear else EntryId.from_linear(linear)


def parse_gap_shards(marks: Mapping[str, str]) -> set[int]:
    """Return the shards that lost events and whose queues were not resynced yet, from the marks of the spool."""
    return {int(name.removeprefix(GAP)) for name, text in marks.items() if name.startswith(GAP) and text}


def format_shard_marks(marks: Mapping[int, ShardMark]) -> dict[str, str]:
    """Return the marks of the spool for these marks of shards; the reverse of `parse_shard_marks`."""
    return {
        **{f"{SHARD}{shard}": f"{mark.at.linear}/{mark.seq}" for shard, mark in marks.items()},
        **{f"{ENTRY}{shard}": str(mark.at) for shard, mark in marks.items()},
    }


def marks_from_offsets(offsets: Offsets) -> dict[int, ShardMark]:
    return {int(shard): ShardMark(parse_position(offset), offset["seq"]) for shard, offset in offsets.items()}


def compute_watermark_ms(marks: Mapping[int, ShardMark]) -> int:
    """Return the time in ms up to which all shards were read; 0 if none was. Shards of which no entry was stored are
    ignored."""
    return min((mark.at for mark in marks.values() if mark.at > START), default=START).ms


def compute_token(shards: Mapping[int, PartitionSummary]) -> str:
    """Return a token that depends only on the entries that were read, not on how they were split among partitions."""
    read = [(shard, str(each.first_at), str(each.last_at), each.events) for shard, each in sorted(shards.items())]
    return hashlib.sha256(json.dumps(read).encode()).hexdigest()


def _reject_stored_entries(shards: Mapping[int, PartitionSummary], before: Mapping[int, ShardMark]) -> None:
    """Raise HeadraceError if a batch contains entries that are already in the spool.

    The query skips entries up to the marks with which it was started, so this happens only if an offset goes back while
    the query runs. The batch then fails, and the next query starts with the current marks.
    """
    for shard, read in shards.items():
        if shard in before and read.first_at <= before[shard].at:
            raise HeadraceError(
                f"Shard {shard} was read again from an entry that is already in the spool. The batch was rejected;"
                " nothing was counted twice."
            )


def _build_interval(read: PartitionSummary, before: ShardMark) -> CoverageInterval:
    ends = (before.at.packed, read.last_at.packed)
    return CoverageInterval(read.shard, *ends, *ends, before.seq, read.last_seq or before.seq)


def _count_loss(read: PartitionSummary, before: ShardMark) -> tuple[int, int]:
    """Return how many events were lost, and how often the event number went backwards (a rewind: Valkey lost events),
    from the mark `before` to the last entry that was read."""
    if before.at == START:  # read from the beginning: events are numbered from 1
        return max(read.first_seq - 1, 0) + read.lost, read.rewinds
    lost, rewinds = count_gap_between(before.seq, read.first_seq)
    return lost + read.lost, rewinds + read.rewinds
