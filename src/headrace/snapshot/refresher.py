"""One refresh: claim a version, read the sources, stage, verify, switch. On any failure the current version stays.

The version is claimed before reading and compared at the switch, so a refresher that outlived its lease publishes
nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.snapshot.exposition import RenderedFamily, render_family
from headrace.snapshot.parity import compare
from headrace.snapshot.payload import SnapshotMeta, compute_checksum, encode
from headrace.snapshot.sources import SnapshotSources
from headrace.snapshot.store import RefreshClaim, SnapshotStore, SnapshotSuperseded
from headrace.valkey.connect import ScriptError

log = logging.getLogger(__name__)

STEPS = ("begun", "read", "staged", "verified", "switched")


@dataclass(frozen=True)
class RefreshResult:
    meta: SnapshotMeta
    took_s: float


class Refresher:
    """Refreshes the snapshot. `after` is called with the name of each completed step (see STEPS), for tests."""

    def __init__(
        self,
        store: SnapshotStore,
        sources: SnapshotSources,
        *,
        shadow: bool = False,
        owner: str | None = None,
        after: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.lease = store.create_lease(owner)
        self._store = store
        self._sources = sources
        self._shadow = shadow
        self._after = after

    def run_once(self) -> RefreshResult | None:
        """Refresh the snapshot; None if another process holds the lease. Failures are recorded in Valkey and raised.

        The duration of a refresh is recorded, whatever its outcome. If only the comparison of the shadow mode fails,
        the version stays published.
        """
        began = time.monotonic()
        if not self.lease.acquire():
            return None
        begun = self.lease.claim
        try:
            self._after("begun")
            meta = self._publish(begun, began)
            if self._shadow:
                self._compare(meta)
        except SnapshotSuperseded:
            self._record_duration(began)
            raise  # not a failure, and already counted by the switch
        except Exception as error:
            self._record_failure(begun.number, error, began)
            raise
        self._record_duration(began)
        return RefreshResult(meta, time.monotonic() - began)

    def _publish(self, begun: RefreshClaim, began: float) -> SnapshotMeta:
        reading = self._sources.read()
        self._after("read")
        data = encode([render_family(family) for family in reading.families])
        meta = SnapshotMeta(
            version=begun.number,
            generated_at_unix=begun.now_s,
            source=self._sources.source,
            aggregation_duration_ms=_measure_ms(began),
            rows_total=reading.rows,
            series_total=sum(len(family.samples) for family in reading.families),
            checksum=compute_checksum(data),
            bytes=len(data),
            owner=self.lease.holder,
            token=begun.number,
        )
        self._store.stage(meta, data)
        self._after("staged")
        self._store.verify(meta)
        self._after("verified")
        self._store.switch(meta)
        self._after("switched")
        return meta

    def _compare(self, meta: SnapshotMeta) -> None:
        """Compare the published version with a direct reading of the servers, and record the result (shadow mode)."""
        published = self._store.read(meta.version)
        if published is None:
            return  # superseded meanwhile
        self._store.record_parity(compare(published[1], read_direct(self._sources)).counts())

    def _record_failure(self, number: int, error: Exception, began: float) -> None:
        with _log_unrecorded("failure"):
            self._store.record_failure(self.lease.holder, number, str(error), _measure_ms(began))

    def _record_duration(self, began: float) -> None:
        with _log_unrecorded("duration"):
            self._store.record_duration(_measure_ms(began))


@contextmanager
def _log_unrecorded(what: str) -> Generator[None]:
    """Log an error of Valkey instead of raising it: the outcome of the refresh does not depend on this record."""
    try:
        yield
    except (HeadraceError, ScriptError) as error:
        log.debug("could not record the %s of a refresh: %s", what, error, extra={"action": "note_failed"})


def _measure_ms(began: float) -> int:
    return int((time.monotonic() - began) * 1000)


def read_direct(sources: SnapshotSources) -> list[RenderedFamily]:
    """Read the servers and render the families, without a snapshot."""
    return [render_family(family) for family in sources.read().families]
