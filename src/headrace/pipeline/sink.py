"""Store micro-batches in the spool, exactly once.

A batch becomes records: its rows, samples of unreadable entries, and the batch's statistics. They are on disk when this
returns, together with a mark per shard: up to which entry and event number the spool has stored it. Spark may run a
batch again after a crash, and may even plan the same batch id over other events; entries up to the mark are then
skipped, so each event is stored once. Because events are numbered, the mark also shows how many are missing.

Records have a token derived from *what was read*. The spool may send a record again when it does not know whether
ClickHouse has it; ClickHouse recognises the token.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame

from headrace.errors import HeadraceError
from headrace.model.entry_id import START, EntryId
from headrace.pipeline.clickhouse_destination import Coverage, attach_coverage, build_records
from headrace.pipeline.offsets import Offsets, parse_position
from headrace.pipeline.partition import collect_summaries
from headrace.pipeline.summary import PartitionSummary, count_gap_between, merge_by_shard, merge_rows
from headrace.spool.spool import Spool
from headrace.warehouse import pipeline_batches, queue_metrics, unreadable_entries
from headrace.warehouse.pipeline_batches import PipelineBatch
from headrace.warehouse.pipeline_coverage import CoverageInterval

SHARD = "shard/"
ENTRY = "entry/"  # exact entry id beside SHARD, which has room for 2^20 entries in a millisecond
GAP = "gap/"  # prefix of shards with lost events whose queues were not resynced yet


@dataclass(frozen=True)
class ShardMark:
    """Last entry of a shard that is in the spool."""

    at: EntryId
    seq: int  # event number of the entry


NOTHING_STORED = ShardMark(START, 0)


@dataclass(frozen=True)
class StoredBatch:
    batch: PipelineBatch
    gap_shards: frozenset[int]  # shards with lost events


class SpoolSink:
    """Callback for `foreachBatch`. The rows of a batch are partition summaries."""

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
        self._start_marks = start_marks  # start of shards without a mark
        self._extra_marks = extra_marks  # additional marks for every batch
        self._before_put = before_put
        self._after_put = after_put
        self._now_ms = now_ms

    def __call__(self, found: DataFrame, batch_id: int) -> None:
        started = self._now_ms()
        if parts := collect_summaries(found):
            self.store(parts, batch_id, started)

    def store(self, parts: Sequence[PartitionSummary], batch_id: int, started_ms: int) -> None:
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
        # The record with the watermark is last: it must not arrive before the rows.
        last = build_records(pipeline_batches.TABLE, pipeline_batches.to_arrow(batch), token)
        coverage = Coverage(now, [_build_interval(read, previous[shard]) for shard, read in sorted(shards.items())])
        if counted:  # each record covers its own rows
            counted = attach_coverage(counted, coverage)
        else:
            last = attach_coverage(last, coverage)
        gap_shards = frozenset(shard for shard, loss in losses.items() if any(loss))
        self._before_put()
        self._spool.put_many(
            [*counted, *unreadable, *last],
            marks={
                **self._extra_marks(),
                **dict.fromkeys((f"{GAP}{shard}" for shard in gap_shards), "1"),
                **format_shard_marks({shard: mark for shard, mark in after.items() if mark.at > START}),
            },
        )
        self._after_put(StoredBatch(batch, gap_shards))


def parse_shard_marks(marks: Mapping[str, str]) -> dict[int, ShardMark]:
    found = {name.removeprefix(SHARD): text.split("/") for name, text in marks.items() if name.startswith(SHARD)}
    return {
        int(shard): ShardMark(_parse_entry_id(int(at), marks.get(f"{ENTRY}{shard}")), int(seq))
        for shard, (at, seq) in found.items()
    }


def _parse_entry_id(linear: int, exact: str | None) -> EntryId:
    """Return the exact entry id if it belongs to the packed one. Releases before 0.2 wrote no exact id, and leave an
    outdated one."""
    found = EntryId.parse(exact) if exact else None
    return found if found is not None and found.linear == linear else EntryId.from_linear(linear)


def parse_gap_shards(marks: Mapping[str, str]) -> set[int]:
    return {int(name.removeprefix(GAP)) for name, text in marks.items() if name.startswith(GAP) and text}


def format_shard_marks(marks: Mapping[int, ShardMark]) -> dict[str, str]:
    return {
        **{f"{SHARD}{shard}": f"{mark.at.linear}/{mark.seq}" for shard, mark in marks.items()},
        **{f"{ENTRY}{shard}": str(mark.at) for shard, mark in marks.items()},
    }


def marks_from_offsets(offsets: Offsets) -> dict[int, ShardMark]:
    return {int(shard): ShardMark(parse_position(offset), offset["seq"]) for shard, offset in offsets.items()}


def compute_watermark_ms(marks: Mapping[int, ShardMark]) -> int:
    """Return the time in ms up to which every shard was read; 0 if none was. Shards that never had an entry are
    ignored."""
    return min((mark.at for mark in marks.values() if mark.at > START), default=START).ms


def compute_token(shards: Mapping[int, PartitionSummary]) -> str:
    """Return a token that depends only on the entries that were read, not on how they were split among partitions."""
    read = [(shard, str(each.first_at), str(each.last_at), each.events) for shard, each in sorted(shards.items())]
    return hashlib.sha256(json.dumps(read).encode()).hexdigest()


def _reject_stored_entries(shards: Mapping[int, PartitionSummary], before: Mapping[int, ShardMark]) -> None:
    """Raise HeadraceError if entries that are already in the spool were read again. The query skips them by the marks
    it started with; if an offset goes back within a query, the batch fails, and the next query uses new marks."""
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
    """Return lost events and rewinds up to the last entry that was read."""
    if before.at == START:  # read from the beginning: events are numbered from 1
        return max(read.first_seq - 1, 0) + read.lost, read.rewinds
    lost, rewinds = count_gap_between(before.seq, read.first_seq)
    return lost + read.lost, rewinds + read.rewinds
