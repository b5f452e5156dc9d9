"""Send the newest values of queues to Prometheus by remote write, beside the export to ClickHouse.

The pipeline passes the rows of each stored batch to `RemoteWrite.submit`, which never waits. A thread turns them into
samples (`queue_samples.py`) and puts these into a spool of their own, without waiting for the disk: if the disk fails,
they stay in memory, and if memory or the spool is full, the oldest are dropped and counted. An exporter with one worker
sends them in order (`export/remote_write.py`). Neither a slow receiver nor a full disk delays a batch or ClickHouse.

Samples can therefore be lost: by kill -9 those of the last second, and by limits the oldest. Because every sample is an
absolute value, the next one of the same queue repairs the series. For queues that have become idle, a resync of all
shards is requested at every start and after a loss: each queue then reports all its values again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.errors import SpoolError
from headrace.export.exporter import Exporter, ExporterOptions
from headrace.export.metrics import read_export_families
from headrace.export.remote_write import RemoteWriteDestination, RemoteWriteTarget
from headrace.pipeline.queue_samples import QueueSamples
from headrace.runtime.metrics import MetricDeclaration, MetricFamilies, MetricValues
from headrace.spool.failover import DRAIN_EVERY_S, Failover
from headrace.spool.metrics import read_spool_families
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool

log = logging.getLogger(__name__)

SPOOL_NAME = "remote_write"
WAITING_BATCHES = 64  # batches not yet turned into samples; more are dropped
MEMORY_BYTES = 64 * 2**20  # of samples in memory while the disk fails
RESYNC_EVERY_S = 600.0  # after a loss; a start resyncs at once
WAKE_S = 0.2

SAMPLES = MetricDeclaration(
    "headrace_remote_write_samples_total",
    "counter",
    "Samples by outcome: sent, or refused by the receiver.",
    ("outcome",),
)
LOST_BATCHES = MetricDeclaration(
    "headrace_remote_write_lost_batches_total", "counter", "Micro-batches whose samples were dropped before the spool."
)
QUEUES = MetricDeclaration("headrace_remote_write_queues", "gauge", "Queues whose newest values are kept and repeated.")
REMOTE_WRITE_METRICS = (SAMPLES, LOST_BATCHES, QUEUES)


@dataclass(frozen=True)
class RemoteWriteOptions:
    target: RemoteWriteTarget
    spool: SpoolOptions
    exporter: ExporterOptions = field(default_factory=ExporterOptions)  # whatever its workers, one is used
    labels: Mapping[str, str] = field(default_factory=dict[str, str])  # added to every series
    repeat_s: float | None = 60.0  # interval at which values of idle queues are repeated; None: never


class RemoteWrite:
    """A second destination of the pipeline. Call `start`, then `close`."""

    def __init__(
        self,
        options: RemoteWriteOptions,
        send_limit: threading.Semaphore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the spool. `send_limit` is shared with the other exporters of the process. Raises SpoolError."""
        self._clock = clock
        self.spool = Spool.open(options.spool)
        self.failover = Failover(self.spool, max_bytes=MEMORY_BYTES, keep_order=True)
        self.destination = RemoteWriteDestination(options.target)
        # One worker, so that the samples of a series arrive in order.
        one_worker = replace(options.exporter, workers=1, adaptive=False)
        self.exporter = Exporter(self.spool, self.destination, one_worker, shared=send_limit)
        self._samples = QueueSamples(options.labels, options.repeat_s)
        self._batches: queue.Queue[tuple[pa.Table, int]] = queue.Queue(WAITING_BATCHES)
        self._lost_batches = MetricValues(LOST_BATCHES, ())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remote-write-samples", daemon=True)
        self._resynced_losses: float | None = None  # None: no resync was requested yet
        self._resync_after_s = 0.0

    def start(self) -> None:
        self.exporter.start()
        self._thread.start()

    def submit(self, rows: pa.Table, watermark_ms: int) -> None:
        """Send the samples of a stored batch, whose rows are the result of `buckets.merge`. Never waits and never
        raises."""
        try:
            self._batches.put_nowait((rows, watermark_ms))
        except queue.Full:
            self._count_lost_batch("too many batches wait for remote write")

    def take_resync_request(self) -> bool:
        """Return True if all queues must report their values again: once at the start, and after a loss as soon as the
        receiver accepts samples."""
        losses, now = self._count_losses(), self._clock()
        if self._resynced_losses is not None and (
            losses == self._resynced_losses or now < self._resync_after_s or self.exporter.problem is not None
        ):
            return False
        self._resynced_losses, self._resync_after_s = losses, now + RESYNC_EVERY_S
        return True

    def wait_until_sent(self, stop: threading.Event) -> bool:
        """Wait until all samples are sent, or the receiver is unhealthy, or `stop` is set. Return True if all are
        sent."""
        while self._count_unsent() and self.exporter.problem is None:
            if stop.wait(WAKE_S):
                break
        return not self._count_unsent()

    def close(self, timeout_s: float) -> None:
        """Put what was submitted into the spool, and stop. What was not sent is sent by the next run."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self.failover.close()
        self.exporter.stop(timeout_s)
        self.destination.close()
        try:
            self.spool.close()
        except SpoolError as error:
            log.error("could not write all samples to disk: %s", error, extra={"action": "data_loss"})

    def families(self) -> MetricFamilies:
        yield from read_spool_families(SPOOL_NAME, self.spool, self.failover)
        yield from read_export_families(SPOOL_NAME, self.exporter)
        yield SAMPLES, {(outcome,): count for outcome, count in self.destination.count_samples().items()}
        yield self._lost_batches.read()
        yield QUEUES, {(): len(self._samples)}

    def health(self) -> dict[str, object]:
        """Return the part of /healthz about remote write."""
        stats, samples = self.spool.stats(), self.destination.count_samples()
        return {
            "healthy": self.exporter.problem is None,
            "problem": self.exporter.problem,
            "records": stats.size,
            **samples,
        }

    def _run(self) -> None:
        drained_at = self._clock()
        while not (self._stopping.is_set() and self._batches.empty()):
            try:
                rows, watermark_ms = self._batches.get(timeout=WAKE_S)
                try:
                    self._put_samples(rows, watermark_ms)
                finally:
                    self._batches.task_done()
            except queue.Empty:
                pass
            except Exception as error:
                log.exception("could not build or store samples", extra={"action": "remote_write_failed"})
                self._count_lost_batch(str(error) or type(error).__name__)
            if self._clock() - drained_at >= DRAIN_EVERY_S:
                self.failover.drain_once()
                drained_at = self._clock()

    def _put_samples(self, rows: pa.Table, watermark_ms: int) -> None:
        for payload in self._samples.build(rows, watermark_ms):
            self.failover.put(payload, durable=False)

    def _count_lost_batch(self, reason: str) -> None:
        self._lost_batches.add(1)
        log.error("lost the samples of a batch: %s", reason, extra={"action": "data_loss"})

    def _count_losses(self) -> float:
        """Return a number that grows with every loss that the next samples of the same queues do not repair."""
        stats, [batches] = self.spool.stats(), self._lost_batches.read()[1].values()
        assert isinstance(batches, float)
        return batches + sum(stats.dropped.values()) + stats.corrupt + sum(self.failover.stats().lost.values())

    def _count_unsent(self) -> int:
        return self._batches.unfinished_tasks + self.failover.stats().records + self.spool.stats().size
