"""Serve the newest snapshot to scrapes. Reads Valkey only, and each version once.

The status is polled at most every 250 ms, and concurrent scrapes share a page. If Valkey is unreachable or the newest
version is damaged, the last good version is served with its true age, computed from Valkey's clock as last read plus
the time since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeAlias

from headrace.snapshot.health import DAMAGED, MISSING, SHADOW, STALE, UNREACHABLE, health
from headrace.snapshot.lines import OPENMETRICS_END, Written, only, page, write
from headrace.snapshot.pages import NOTHING, Fixed, fixed, gzipped
from headrace.snapshot.payload import Meta, SnapshotDamaged
from headrace.snapshot.store import Look, Store

log = logging.getLogger(__name__)

SHARE_S = 0.25
RETRY_S = 1.0
PATIENCE_S = 1.0
"""How long the scrape that starts a poll waits for it; others serve the loaded version, unless there is none yet."""


MOST_CHOICES = 64
"""Label filters whose results are kept in memory with a version."""

Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ReaderOptions:
    max_staleness_s: float = 120.0
    shadow: bool = False
    convoy: bool = False
    look_every_s: float = 0.25


@dataclass(frozen=True)
class Made:
    """A rendered page; valid until the next poll, at most PAGE_CACHE_S."""

    body: bytes
    made_at: float


@dataclass(frozen=True)
class Seen:
    """Status read by the last poll, with the local time of that poll."""

    look: Look
    asked_at: float


@dataclass
class Held:
    """A snapshot version in memory."""

    meta: Meta
    families: Sequence[Written]
    _fixed: dict[bool, Fixed] = field(default_factory=dict[bool, Fixed])
    _within: dict[Labels, Sequence[Written]] = field(default_factory=dict[Labels, Sequence[Written]])

    def fixed(self, openmetrics: bool) -> Fixed:
        if openmetrics not in self._fixed:
            text = page((each for each in self.families if not each.aged), 0.0, openmetrics)
            self._fixed[openmetrics] = fixed(text.encode())
        return self._fixed[openmetrics]

    def within(self, labels: Labels) -> Sequence[Written]:
        """Return the families with only the samples that have these labels."""
        families = self._within.get(labels)
        if families is None:
            families = [only(family, labels) for family in self.families]
            if len(self._within) >= MOST_CHOICES:
                self._within.clear()
            self._within[labels] = families
        return families

    def ages(self, now_s: float, openmetrics: bool) -> str:
        return page((each for each in self.families if each.aged), now_s, openmetrics)


class Reader:
    """Serves snapshots from memory. `open_store` is called at the first scrape, and again while it fails."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        options: ReaderOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_store = open_store
        self._store: Store | None = None
        self._options = options or ReaderOptions()
        self._clock = clock
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(1, "snapshot-reader")
        self._asking: Future[None] | None = None
        self._making = Lock()
        self._made: dict[tuple[bool, bool], Made] = {}  # by format
        self._held: Held | None = None
        self._seen: Seen | None = None
        self._asked_at = self._due = float("-inf")
        self._unreachable = False
        self._damaged = 0  # the unreadable version; 0: none

    def body(self, own: Callable[[], bytes], *, openmetrics: bool, gzip: bool) -> bytes:
        """Return a page: the snapshot, the families about it, then `own`, this process's metrics in the same format."""
        self.refresh()
        with self._making:
            cached = self._made.get((openmetrics, gzip))
            if cached is None or self._clock() - cached.made_at >= SHARE_S:
                cached = Made(self._make(own(), openmetrics, gzip), self._clock())
                self._made[openmetrics, gzip] = cached
            return cached.body

    def body_within(self, labels: Labels, *, openmetrics: bool, gzip: bool) -> bytes:
        """Return a page of only the snapshot's samples that have these labels."""
        self.refresh()
        held, now_s = self._held, self._now_s()
        trouble = self._trouble(held, self._seen and self._seen.look, now_s)
        is_served = held is not None and not trouble & {STALE, SHADOW}
        text = page(held.within(labels), now_s, openmetrics) if held is not None and is_served else ""
        body = text.encode() + (OPENMETRICS_END if openmetrics else b"")
        return gzipped(NOTHING, body) if gzip else body

    def _make(self, own: bytes, openmetrics: bool, gzip: bool) -> bytes:
        large, small = self._parts(openmetrics)
        if openmetrics:
            own = own.removesuffix(OPENMETRICS_END) + OPENMETRICS_END
        return gzipped(large, small + own) if gzip else large.text + small + own

    def refresh(self) -> None:
        with self._lock:
            first = self._asking is None and self._clock() >= self._due
            if first:
                self._asked_at = self._clock()
                self._asking = self._threads.submit(self._ask)
            asking = self._asking
        if asking is None or not (first or self._seen is None):
            return
        done, _ = wait([asking], PATIENCE_S)
        if not done and (self._seen is None or self._seen.asked_at < self._asked_at):
            self._unreachable, self._made = True, {}

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _ask(self) -> None:
        try:
            store = self._store = self._store or self._open_store()
            look = store.look()
            self._seen = Seen(look, self._asked_at)
            self._load(store, look.version)
            self._unreachable = False
        except Exception as error:  # after any failure the last good version is served
            if not self._unreachable:
                log.warning("could not read the snapshot from Valkey: %s", error, extra={"action": "snapshot_unread"})
            self._unreachable = True
        with self._lock:
            self._due = self._clock() + (RETRY_S if self._unreachable else self._options.look_every_s)
            self._asking = None
            self._made = {}

    def _load(self, store: Store, version: int) -> None:
        held = self._held
        if version in (0, self._damaged) or (held is not None and held.meta.version == version):
            return
        try:
            snapshot = store.read(version)
        except SnapshotDamaged as error:
            log.warning("snapshot version %s is damaged: %s", version, error, extra={"action": "snapshot_damaged"})
            self._damaged = version
            snapshot = None
        else:
            self._damaged = 0
        if snapshot is not None:
            self._held = self._prepared(Held(*snapshot))
        else:
            self._load_older(store, version, held.meta.version if held else 0)

    def _prepared(self, new: Held) -> Held:
        """Render the formats in use before the version is served; scrapes use the previous version meanwhile."""
        for openmetrics in {wanted for wanted, _ in list(self._made)}:
            new.fixed(openmetrics)
        return new

    def _load_older(self, store: Store, than: int, but_newer_than: int) -> None:
        """Load the newest intact version older than `than`, if it is newer than the loaded one."""
        for version in store.versions():
            try:
                snapshot = store.read(version) if but_newer_than < version < than else None
            except SnapshotDamaged:
                snapshot = None
            if snapshot is not None:
                self._held = Held(*snapshot)
                return

    def _parts(self, openmetrics: bool) -> tuple[Fixed, bytes]:
        held, seen = self._held, self._seen
        now_s = self._now_s()
        look = seen and seen.look
        trouble = self._trouble(held, look, now_s)
        families = health(held and held.meta, look and look.attempts, now_s, trouble, convoy=self._options.convoy)
        about = page(map(write, families), now_s, openmetrics)
        if held is None or trouble & {STALE, SHADOW}:
            return NOTHING, about.encode()
        return held.fixed(openmetrics), (held.ages(now_s, openmetrics) + about).encode()

    def _now_s(self) -> float:
        """Return Valkey's time: as last read plus the time since; 0 if never read."""
        seen = self._seen
        return 0.0 if seen is None else seen.look.now_s + self._clock() - seen.asked_at

    def _trouble(self, held: Held | None, look: Look | None, now_s: float) -> frozenset[str]:
        troubles = {
            STALE: held is not None and now_s - held.meta.generated_at_unix > self._options.max_staleness_s,
            MISSING: held is None or look is None or not look.version,
            UNREACHABLE: self._unreachable,
            DAMAGED: look is not None and look.version == self._damaged > 0,
            SHADOW: self._options.shadow,
        }
        return frozenset(reason for reason, is_active in troubles.items() if is_active)
