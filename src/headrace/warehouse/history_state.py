"""What history as a whole holds at one moment: the newest batches, the hours that backfills rewrote, and the coverage
of each shard. One statement, which every history request needs first and none of which depends on a tenant."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headrace.model.entry_id import EntryId
from headrace.warehouse.pipeline_batches import RESYNC_MS, SKEW_MS, PipelineLosses
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.sql import render_query

NEWEST_BATCHES = 200
"""Batches that are read. At one per second they cover the minutes in which a loss may belong to an open range."""

_BATCH, _WINDOW, _SHARD = range(3)  # values of `kind` in the query `history_state`


@dataclass(frozen=True)
class RecentBatch:
    finished_ms: int
    batch_id: int
    watermark_ms: int  # 0: unknown
    newest_event_ms: int
    losses: int  # lost or unreadable events, and rewinds


@dataclass(frozen=True)
class RewrittenHours:
    """Hours [start, end) that a backfill wrote again."""

    start_s: int
    end_s: int
    generation: int


@dataclass(frozen=True)
class ShardCoverage:
    """Extent of a shard's intervals in packed entry ids, and the sum of their lengths."""

    from_at: int
    to_at: int
    length: int


@dataclass(frozen=True)
class HistoryState:
    batches: tuple[RecentBatch, ...]  # newest first, at most NEWEST_BATCHES
    rewritten: frozenset[RewrittenHours]
    shards: tuple[ShardCoverage, ...]

    @cached_property
    def watermark_ms(self) -> int | None:
        """Time up to which history is final; None: unknown."""
        return max((batch.watermark_ms for batch in self.batches), default=0) or None

    def may_have_gaps(self, start_ms: int) -> bool:
        """Return False if the intervals of every shard follow each other and begin before `start_ms`: then there is no
        gap from that time on."""
        start_at = EntryId(start_ms, 0).packed
        return any(each.from_at > max(0, start_at) or each.to_at - each.from_at != each.length for each in self.shards)

    def is_rewritten(self, start_s: int, end_s: int) -> bool:
        """Return True if a backfill wrote any hour of [start, end) again."""
        return any(each.start_s < end_s and each.end_s > start_s for each in self.rewritten)

    def find_generation(self, start_s: int, end_s: int) -> int:
        """Return the highest generation of the backfills that wrote hours of [start, end) again; 0: none."""
        overlapping = (each.generation for each in self.rewritten if each.start_s < end_s and each.end_s > start_s)
        return max(overlapping, default=0)

    def find_losses(self, start_ms: int, end_ms: int) -> PipelineLosses | None:
        """Return the losses that the batches of [start, end) reported, as the query `pipeline_losses` does; None if the
        newest batches do not reach back to its start."""
        since_ms, near_end_ms = start_ms - SKEW_MS, max(start_ms, end_ms - RESYNC_MS)
        reaches_first = len(self.batches) < NEWEST_BATCHES
        if not reaches_first and self.batches[-1].finished_ms >= since_ms:
            return None
        found = sorted(
            (each for each in self.batches if each.finished_ms >= since_ms), key=lambda each: each.finished_ms
        )
        next_ms = next((each.finished_ms for each in found if each.watermark_ms >= end_ms), None)
        covered = [each for each in found if next_ms is None or each.finished_ms <= next_ms]
        return PipelineLosses(
            events=sum(each.losses for each in covered),
            at_end=0
            if next_ms is None
            else sum(each.losses for each in covered if each.newest_event_ms >= near_end_ms),
            # If there are older batches, reports began even earlier, which makes no difference for this range.
            since_ms=min((each.finished_ms for each in self.batches), default=None),
            watermark_ms=self.watermark_ms,
        )

    def find_losses_at_end(self, start_ms: int, end_ms: int) -> PipelineLosses | None:
        """Return the losses around the end of [start, end), like `pipeline_batches.read_losses_at_end`."""
        return self.find_losses(max(start_ms, end_ms - RESYNC_MS), end_ms)


def read_history_state(queries: QueryRunner) -> HistoryState:
    found = queries.run(render_query("history_state"), {"batches": NEWEST_BATCHES}, threads=1)
    rows = list(zip(*found.values(), strict=True))
    return HistoryState(
        batches=tuple(
            sorted(
                (RecentBatch(*values) for kind, *values in rows if kind == _BATCH),
                key=lambda batch: batch.finished_ms,
                reverse=True,
            )
        ),
        rewritten=frozenset(RewrittenHours(*values[:3]) for kind, *values in rows if kind == _WINDOW),
        shards=tuple(ShardCoverage(*values[:3]) for kind, *values in rows if kind == _SHARD),
    )
