"""One refresh: claim a version, read the sources, stage, verify, switch. On any failure the current version stays.

The version is claimed before reading and compared at the switch, so a refresher that outlived its lease publishes
nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from headrace.errors import HeadraceError
from headrace.snapshot.families import series_total
from headrace.snapshot.lines import Written, write
from headrace.snapshot.parity import compare
from headrace.snapshot.payload import Meta, checksum_of, encode
from headrace.snapshot.sources import Sources
from headrace.snapshot.store import Begun, Store, Superseded

log = logging.getLogger(__name__)

STEPS = ("begun", "read", "staged", "verified", "switched")


def nothing(_step: str) -> None:
    pass


@dataclass(frozen=True)
class Refreshed:
    meta: Meta
    took_s: float


class Refresher:
    """Refreshes the snapshot. `after` is called with the name of each completed step (see STEPS), for tests."""

    def __init__(
        self,
        store: Store,
        sources: Sources,
        *,
        shadow: bool = False,
        owner: str | None = None,
        after: Callable[[str], None] = nothing,
    ) -> None:
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._store = store
        self._sources = sources
        self._shadow = shadow
        self._after = after

    def run_once(self) -> Refreshed | None:
        """Refresh the snapshot; None if another process holds the lease. Failures are recorded in Valkey and raised."""
        began = time.monotonic()
        begun = self._store.begin(self.owner)
        if not begun.number:
            return None
        try:
            self._after("begun")
            meta = self._publish(begun, began)
        except Superseded:
            raise  # not a failure, and already counted by the switch
        except Exception as error:
            self._note(begun.number, error)
            raise
        if self._shadow:
            self._compare(meta)
        return Refreshed(meta, time.monotonic() - began)

    def renew(self) -> bool:
        return self._store.renew(self.owner)

    def leave(self) -> None:
        try:
            self._store.leave(self.owner)
        except HeadraceError:
            pass  # the lease expires by itself

    def _publish(self, begun: Begun, began: float) -> Meta:
        reading = self._sources.read()
        self._after("read")
        data = encode([write(family) for family in reading.families])
        meta = Meta(
            version=begun.number,
            generated_at_unix=begun.now_s,
            source=self._sources.source,
            aggregation_duration_ms=int((time.monotonic() - began) * 1000),
            rows_total=reading.rows,
            series_total=series_total(reading.families),
            checksum=checksum_of(data),
            bytes=len(data),
            owner=self.owner,
            token=begun.number,
        )
        self._store.stage(meta, data)
        self._after("staged")
        self._store.verify(meta)
        self._after("verified")
        self._store.switch(meta)
        self._after("switched")
        return meta

    def _compare(self, meta: Meta) -> None:
        """Compare the published version with a direct reading of the servers, and record the result (shadow mode)."""
        published = self._store.read(meta.version)
        if published is None:
            return  # superseded meanwhile
        self._store.note_parity(compare(published[1], direct(self._sources)).counts())

    def _note(self, number: int, error: Exception) -> None:
        try:
            self._store.fail(self.owner, number, str(error))
        except HeadraceError:
            log.debug("could not record the failure: Valkey does not answer", extra={"action": "note_failed"})


def direct(sources: Sources) -> list[Written]:
    """Read the servers and render the families, without a snapshot."""
    return [write(family) for family in sources.read().families]
