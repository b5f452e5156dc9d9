"""One refresh: take a number, read, write beside, check, switch. Whatever goes wrong, what is served stays.

The number comes before the reading and decides at the end (store.py), so a refresher that was paused for longer than
its lease finds that a newer number was given out, and publishes nothing.
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
    """`after` is called with the name of each step that was done; tests die there."""

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
        """None: another process refreshes. Raises what went wrong, once it is noted in Valkey."""
        began = time.monotonic()
        begun = self._store.begin(self.owner)
        if not begun.number:
            return None
        try:
            self._after("begun")
            meta = self._publish(begun, began)
        except Superseded:
            raise  # counted by the switch itself, and no failure: another was quicker
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
            pass  # it ends by itself

    def _publish(self, begun: Begun, began: float) -> Meta:
        reading = self._sources.read()
        self._after("read")
        written = [write(family) for family in reading.families]
        data = encode(written)
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
        """Shadow mode: what was published, as a reader finds it, beside what the servers say now."""
        found = self._store.read(meta.version)
        if found is None:
            return  # superseded meanwhile
        self._store.note_parity(compare(found[1], direct(self._sources)).counts())

    def _note(self, number: int, error: Exception) -> None:
        try:
            self._store.fail(self.owner, number, str(error))
        except HeadraceError:
            log.debug("the failure could not be noted: Valkey does not answer", extra={"action": "note_failed"})


def direct(sources: Sources) -> list[Written]:
    """What a scrape that asks the servers itself would tell."""
    return [write(family) for family in sources.read().families]
