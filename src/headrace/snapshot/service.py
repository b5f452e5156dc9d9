"""The service `headrace snapshot run`: refresh periodically, renew the lease, back off after failures."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, field
from functools import partial
from threading import Event

from headrace.errors import MigrationError, ServiceUnavailable
from headrace.runtime.backoff import Backoff
from headrace.runtime.loop import (
    ERROR,
    OK,
    STANDBY,
    SUPERSEDED,
    ErrorPolicy,
    Loop,
    LoopStats,
    ServiceMetrics,
    run_in_thread,
)
from headrace.snapshot.families import InvalidFamily
from headrace.snapshot.refresher import Refresher
from headrace.snapshot.sources import SnapshotSources
from headrace.snapshot.store import SnapshotSuperseded

log = logging.getLogger(__name__)

STOP_S = 15.0
STUCK_LEASES = 10
"""The lease of a refresh that takes this many lease times is no longer renewed, so that another process may try."""

ERROR_POLICY = ErrorPolicy(
    superseded=SnapshotSuperseded,
    log_superseded=partial(log.info, "%s", extra={"action": "superseded"}),
    log_failed=partial(log.warning, "could not refresh the snapshot: %s", extra={"action": "refresh_failed"}),
    log_unexpected=partial(log.exception, "could not refresh the snapshot", extra={"action": "refresh_failed"}),
    fatal=(InvalidFamily, MigrationError),
)


@dataclass(frozen=True)
class SnapshotServiceOptions:
    refresh_interval_s: float = 15.0
    lock_ttl_s: float = 30.0
    backoff: Backoff = field(default=Backoff(base_s=1.0, longest_s=60.0))


class SnapshotService:
    def __init__(
        self, refresher: Refresher, sources: SnapshotSources, options: SnapshotServiceOptions | None = None
    ) -> None:
        self._refresher = refresher
        self._lease = refresher.lease
        self._sources = sources
        self._options = options or SnapshotServiceOptions()
        self._failures = 0
        self._began: float | None = None  # start of the refresh in progress
        stats = LoopStats("snapshot", lambda: self._lease.is_held)
        self._loop = Loop(stats, self._refresh_now, ERROR_POLICY)
        self.metrics = ServiceMetrics([stats])

    def run_forever(self, stop: Event) -> None:
        """Refresh until `stop`. Raises InvalidFamily if PostgreSQL rejects a family's SQL; retries while it is down."""
        self._validate()
        try:
            with run_in_thread(self._renew_lease_loop, "snapshot-lease", STOP_S, stop):
                while not stop.is_set():
                    stop.wait(self._compute_wait_s(self._refresh(), time.monotonic()))
        finally:
            self._lease.release()

    def _validate(self) -> None:
        """Validate the families, also on standby, so that errors appear at start. A missing server is only logged."""
        try:
            self._sources.validate()
        except ServiceUnavailable as error:
            log.warning("could not validate families yet: %s", error, extra={"action": "not_validated"})

    def _refresh(self) -> float:
        """Refresh once and return its start time (monotonic seconds). Failures are logged and counted."""
        self._began = began = time.monotonic()
        try:
            status = self._loop.run_once()
            if status == ERROR:
                self._failures += 1
                self._lease.release()  # so that another process can try at once
            elif status == SUPERSEDED:
                self._lease.mark_lost()
            else:
                self._failures = 0
        finally:
            self._began = None
        return began

    def _refresh_now(self) -> str:
        done = self._refresher.run_once()
        if done is None:
            return STANDBY
        log.debug(
            "published version %s: %s series from %s rows in %.2f s",
            *(done.meta.version, done.meta.series_total, done.meta.rows_total, done.took_s),
            extra={"action": "refreshed"},
        )
        return OK

    def _compute_wait_s(self, began: float, now: float) -> float:
        if self._failures:
            return self._options.backoff.delay_s(self._failures, random.random())
        # A refresh that exceeds the interval skips the next one, so that the servers always get a pause.
        return self._options.refresh_interval_s - (now - began) % self._options.refresh_interval_s

    def _renew_lease_loop(self, stop: Event) -> None:
        every_s = self._options.lock_ttl_s / 3
        while not stop.wait(every_s):
            began = self._began
            if began is not None and time.monotonic() - began > STUCK_LEASES * self._options.lock_ttl_s:
                continue
            try:
                self._lease.renew()
            except Exception as error:
                log.warning("could not renew the lease: %s", error, extra={"action": "renew_failed"})
