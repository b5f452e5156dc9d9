"""Periodic work of the pipeline beside its query: renew the lease, measure lag, resync gaps, compact the archive."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headrace.errors import HeadraceError, MemoryFull, PipelineFenced, QueueUnavailable
from headrace.pipeline import archive
from headrace.pipeline.lease import RENEW_S, PipelineLease
from headrace.pipeline.monitor import PipelineMonitor
from headrace.pipeline.options import PipelineOptions
from headrace.pipeline.positions import read_newest_offsets, read_shard_count
from headrace.pipeline.sink import GAP, NOTHING_STORED, StoredBatch, parse_gap_shards, parse_shard_marks
from headrace.queue.resync import resync_shard
from headrace.queue.scripts import Stubs
from headrace.spool.spool import Spool
from headrace.valkey.connect import Valkey, translate_errors

log = logging.getLogger(__name__)

RESYNC_EVERY_S = 60.0  # minimum interval per shard
COMPACT_EVERY_S = 600.0


class Housekeeping:
    def __init__(
        self,
        client: Valkey,
        lease: PipelineLease,
        monitor: PipelineMonitor,
        spool: Spool,
        options: PipelineOptions,
        take_resync_request: Callable[[], bool] | None = None,  # True: resync the queues of all shards
    ) -> None:
        self.lease = lease
        self._take_resync_request = take_resync_request
        self._client = client
        self._monitor = monitor
        self._spool = spool
        self._options = options
        self._lock = threading.Lock()
        self._gap_shards = parse_gap_shards(spool.read_marks())  # gaps that an earlier process did not resync
        self._resynced_shards: set[int] = set()
        self._resync_after: dict[int, float] = {}
        self._next_renewal = 0.0
        self._next_compaction = time.monotonic() + COMPACT_EVERY_S
        self._compaction: threading.Thread | None = None

    def on_batch_stored(self, stored: StoredBatch) -> None:
        """Register a batch that is in the spool. Called in the thread of the sink."""
        with self._lock:
            self._gap_shards |= stored.gap_shards
            self._resynced_shards -= stored.gap_shards
        self._log_batch(stored)

    def cleared_gap_marks(self) -> dict[str, str]:
        """Return marks that clear resynced gaps, to be stored with the next batch. If that batch is lost, the resync is
        repeated, which is harmless."""
        with self._lock:
            return dict.fromkeys((f"{GAP}{shard}" for shard in self._resynced_shards - self._gap_shards), "")

    def run_due(self) -> None:
        """Renew the lease, measure lag, resync gaps and compact the archive when due. Valkey errors are left to the
        query. Raises PipelineFenced if the lease is lost."""
        now = time.monotonic()
        if now < self._next_renewal:
            return
        self._next_renewal = now + RENEW_S
        try:
            if not self.lease.acquire():
                raise PipelineFenced
            with translate_errors():
                self._monitor.record_lag(self._measure_lag())
            self.resync_gaps(now)
        except (QueueUnavailable, MemoryFull):
            self._monitor.record_lag({})
        if (
            self._options.archive
            and now >= self._next_compaction
            and not (self._compaction and self._compaction.is_alive())
        ):
            self._next_compaction = now + COMPACT_EVERY_S
            # In a thread, because it may take long and the lease must be renewed.
            self._compaction = threading.Thread(
                target=self._compact_archive, args=[self._options.archive], name="tidy", daemon=True
            )
            self._compaction.start()

    def _measure_lag(self) -> dict[str, int]:
        marks = parse_shard_marks(self._spool.read_marks())
        newest = read_newest_offsets(self._client, self._count_shards())
        return {
            shard: max(offset["seq"] - marks.get(int(shard), NOTHING_STORED).seq, 0) for shard, offset in newest.items()
        }

    def _count_shards(self) -> int:
        return max(read_shard_count(self._client), self._options.shards)

    def resync_gaps(self, now: float | None = None) -> int:
        """Emit resync events for the queues of shards with lost events, or of all shards if that was requested; return
        the number of queues. With `now`, skip shards that were resynced within RESYNC_EVERY_S. Raises
        QueueUnavailable."""
        self._register_resync_request()
        with self._lock:
            due = [shard for shard in self._gap_shards if now is None or now >= self._resync_after.get(shard, now)]
        queues = 0
        for shard in due:
            with self._lock:
                self._gap_shards.discard(shard)  # before the resync: a gap found meanwhile is another one
            try:
                queues += resync_shard(self._client, Stubs(self._options.shards, self._options.stream_maxlen), shard)
            except HeadraceError:
                with self._lock:
                    self._gap_shards.add(shard)
                raise
            with self._lock:
                self._resynced_shards.add(shard)
            self._resync_after[shard] = time.monotonic() + RESYNC_EVERY_S
            log.info("resynced the queues of shard %d", shard, extra={"action": "resync"})
        return queues

    def _register_resync_request(self) -> None:
        if self._take_resync_request is None:
            return
        with translate_errors():
            shards = range(self._count_shards())  # first, because a request is taken only once
        if self._take_resync_request():
            with self._lock:
                self._gap_shards |= set(shards)

    def _compact_archive(self, uri: str) -> None:
        watermark = self._monitor.read().watermark_ms
        if watermark is None:
            return
        now_ms = min(
            time.time_ns() // 1_000_000, watermark
        )  # event time: this machine's clock may be wrong, and removed files are lost
        try:
            archive.compact_and_expire(uri, now_ms, self._options.archive_keep_days, watermark - archive.HOUR_MS)
        except OSError as error:
            log.warning("could not compact the archive: %s", error, extra={"action": "tidy_failed"})

    def _log_batch(self, stored: StoredBatch) -> None:
        batch, now = stored.batch, self._monitor.read()
        log.info(
            "batch %d: %d events, %d rows in %d ms, %d events/s; freshness %d ms, lag %s events, lost %d",
            *(batch.batch_id, batch.events, batch.rows, batch.duration_ms, int(now.events_per_s or 0)),
            *(now.freshness_ms or 0, sum(now.lag_events.values()) if now.lag_events else "?", batch.lost_events),
            extra={"action": "batch"},
        )
        if stored.dropped_records:
            log.error(
                "the spool is full and dropped %d records; history has a gap there. Enlarge spool.max_bytes, or set"
                " spool.full_behavior = block to wait instead",
                stored.dropped_records,
                extra={"action": "dropped"},
            )
        if batch.has_losses:
            log.warning(
                "lost %d events before they were read; %d rewinds, %d unreadable entries",
                *(batch.lost_events, batch.rewinds, batch.set_aside),
                extra={"action": "loss"},
            )
