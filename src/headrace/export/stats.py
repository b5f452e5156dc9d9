"""Counters and statistics of an exporter: the values behind the metrics `headrace_export_*`."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.export.adaptive import MovingAverage
from headrace.export.breaker import BreakerStats

LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True)
class ExporterStats:
    destination: str
    healthy: bool
    sent: int
    sent_bytes: int
    retries: int
    retry_successes: int
    failures: Mapping[str, int]  # by kind of error, including first attempts
    retry_failures: Mapping[str, int]
    rejected: Mapping[str, int]  # dead letters, by kind of error
    splits: int
    released: int
    errors: int  # internal errors: each is a bug or a broken disk, with a traceback in the log
    workers: int
    senders: int
    preparers_active: int
    senders_active: int
    sending: int
    unclear: int
    passed_blocks: int
    backoff_s: float
    latency_s: float | None
    latency_counts: tuple[int, ...]  # per bound of LATENCY_BOUNDS_S, then one for longer requests
    latency_sum_s: float
    breaker: BreakerStats


class ExportCounters:
    """Counters of an exporter, under one lock. They are read together, so that a scrape never sees half of an event."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.retry_failures: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.latency = MovingAverage()
        self.service = MovingAverage()
        self.latency_counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.latency_sum_s = 0.0

    def add(self, what: str, count: int = 1) -> None:
        with self.lock:
            self.counts[what] += count

    @contextmanager
    def track_active(self, what: str) -> Generator[None]:
        """Count a thread as active inside the context."""
        self.add(what)
        try:
            yield
        finally:
            self.add(what, -1)

    def record_sent(self, size: int, retried: bool, service_s: float) -> None:
        with self.lock:
            self.counts["sent"] += 1
            self.counts["sent_bytes"] += size
            self.counts["retry_successes"] += retried
            self.service.add(service_s)

    def record_response(self, seconds: float) -> None:
        """Record the duration of a request, successful or not."""
        with self.lock:
            self.latency.add(seconds)
            self.latency_counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
            self.latency_sum_s += seconds

    def record_failure(self, kind: str, retried: bool) -> None:
        with self.lock:
            self.failures[kind] += 1
            self.retry_failures[kind] += retried

    def record_rejection(self, kind: str) -> None:
        with self.lock:
            self.rejected[kind] += 1

    def stats(
        self,
        *,
        destination: str,
        healthy: bool,
        workers: int,
        senders: int,
        sending: int,
        unclear: int,
        passed_blocks: int,
        backoff_s: float,
        breaker: BreakerStats,
    ) -> ExporterStats:
        with self.lock:
            return ExporterStats(
                destination=destination,
                healthy=healthy,
                sent=self.counts["sent"],
                sent_bytes=self.counts["sent_bytes"],
                retries=self.counts["retries"],
                retry_successes=self.counts["retry_successes"],
                failures=dict(self.failures),
                retry_failures=dict(self.retry_failures),
                rejected=dict(self.rejected),
                splits=self.counts["splits"],
                released=self.counts["released"],
                errors=self.counts["errors"],
                workers=workers,
                senders=senders,
                preparers_active=self.counts["preparers_active"],
                senders_active=self.counts["senders_active"],
                sending=sending,
                unclear=unclear,
                passed_blocks=passed_blocks,
                backoff_s=backoff_s,
                latency_s=self.latency.value,
                latency_counts=tuple(self.latency_counts),
                latency_sum_s=self.latency_sum_s,
                breaker=breaker,
            )
