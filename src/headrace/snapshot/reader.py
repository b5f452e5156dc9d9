"""Serve the newest snapshot to scrapes. Reads Valkey only, and each version once.

A scrape gets the page of an earlier one while that page is current (`find_page`): it was rendered at most 250 ms ago,
and Valkey last answered at most 250 ms ago. Otherwise one thread asks Valkey for the newest version and renders a page,
and all scrapes that arrive meanwhile share it (`submit_page`). If Valkey is unreachable or the newest version is
damaged, the last good version is served with its true age, computed from Valkey's clock as last read plus the time
since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeAlias

from headrace.snapshot.exposition import OPENMETRICS_END, RenderedFamily, filter_samples, render_family, render_page
from headrace.snapshot.gzip_page import EMPTY_PART, CompressedPart, compress_part, gzip_page
from headrace.snapshot.payload import SnapshotDamaged, SnapshotMeta
from headrace.snapshot.status_families import DAMAGED, MISSING, SHADOW, STALE, UNREACHABLE, build_status_families
from headrace.snapshot.store import SnapshotStatus, SnapshotStore

log = logging.getLogger(__name__)

PAGE_CACHE_S = 0.25
RETRY_S = 1.0
POLL_WAIT_S = 1.0
"""How long the page that starts a poll waits for it; others show the loaded version, unless there is none yet."""


MAX_FILTERS_KEPT = 64
"""Label filters whose results are kept in memory with a version."""

Labels: TypeAlias = tuple[tuple[str, str], ...]
PageFormat: TypeAlias = tuple[bool, bool]
"""Whether a page is in OpenMetrics format, and whether it is compressed."""


@dataclass(frozen=True)
class SnapshotReaderOptions:
    max_staleness_s: float = 120.0
    shadow: bool = False
    convoy: bool = False
    poll_every_s: float = 0.25


@dataclass(frozen=True)
class CachedPage:
    """A rendered page; valid until the next poll, at most PAGE_CACHE_S."""

    body: bytes
    made_at: float


@dataclass(frozen=True)
class PolledStatus:
    """Status read by the last poll, with the local time of that poll."""

    status: SnapshotStatus
    polled_at: float


@dataclass
class LoadedSnapshot:
    meta: SnapshotMeta
    families: Sequence[RenderedFamily]
    _compressed: dict[bool, CompressedPart] = field(default_factory=dict[bool, CompressedPart])
    _filtered: dict[Labels, Sequence[RenderedFamily]] = field(default_factory=dict[Labels, Sequence[RenderedFamily]])

    def compress_fixed_part(self, openmetrics: bool) -> CompressedPart:
        if openmetrics not in self._compressed:
            text = render_page((each for each in self.families if not each.aged), 0.0, openmetrics)
            self._compressed[openmetrics] = compress_part(text.encode())
        return self._compressed[openmetrics]

    def filter_by_labels(self, labels: Labels) -> Sequence[RenderedFamily]:
        families = self._filtered.get(labels)
        if families is None:
            families = [filter_samples(family, labels) for family in self.families]
            if len(self._filtered) >= MAX_FILTERS_KEPT:
                self._filtered.clear()
            self._filtered[labels] = families
        return families

    def render_ages(self, now_s: float, openmetrics: bool) -> str:
        return render_page((each for each in self.families if each.aged), now_s, openmetrics)


class SnapshotReader:
    """Serves snapshots from memory. `open_store` is called at the first scrape, and again while it fails."""

    def __init__(
        self,
        open_store: Callable[[], SnapshotStore],
        options: SnapshotReaderOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_store = open_store
        self._store: SnapshotStore | None = None
        self._options = options or SnapshotReaderOptions()
        self._clock = clock
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(1, "snapshot-reader")
        self._polling: Future[None] | None = None
        self._renderer = ThreadPoolExecutor(1, "snapshot-renderer")
        self._rendering: dict[PageFormat, Future[bytes]] = {}  # pages in progress; only with `_lock`
        self._pages: dict[PageFormat, CachedPage] = {}
        self._loaded: LoadedSnapshot | None = None
        self._status: PolledStatus | None = None
        self._polled_at = self._due = float("-inf")
        self._unreachable = False
        self._damaged = 0  # the unreadable version; 0: none

    def find_page(self, *, openmetrics: bool, gzip: bool) -> bytes | None:
        """Return the page of an earlier scrape if it is current, or else None. Never waits."""
        cached, now = self._pages.get((openmetrics, gzip)), self._clock()
        is_current = cached is not None and now - cached.made_at < PAGE_CACHE_S and now < self._due
        return cached.body if cached is not None and is_current else None

    def submit_page(self, own: Callable[[], bytes], *, openmetrics: bool, gzip: bool) -> Future[bytes]:
        """Return the page in progress, or begin one: the snapshot, the families about it, then `own`, this process's
        metrics in the same format. Several callers may get the same future, so none may cancel it."""
        key = (openmetrics, gzip)
        with self._lock:
            pending = self._rendering.get(key)
            if pending is None or pending.done():
                pending = self._renderer.submit(self._make_page, own, key)
                self._rendering[key] = pending
            return pending

    def render_body(self, own: Callable[[], bytes], *, openmetrics: bool, gzip: bool) -> bytes:
        """Return a page as `find_page` or `submit_page` does, and wait for it."""
        body = self.find_page(openmetrics=openmetrics, gzip=gzip)
        return self.submit_page(own, openmetrics=openmetrics, gzip=gzip).result() if body is None else body

    def _make_page(self, own: Callable[[], bytes], key: PageFormat) -> bytes:
        self.refresh()
        pages = self._pages  # a poll that ends meanwhile replaces them, and this page with them
        cached = pages.get(key)
        if cached is None or self._clock() - cached.made_at >= PAGE_CACHE_S:
            cached = pages[key] = CachedPage(self._render(own(), *key), self._clock())
        return cached.body

    def render_filtered_body(self, labels: Labels, *, openmetrics: bool, gzip: bool) -> bytes:
        """Return a page of only the snapshot's samples that have these labels."""
        self.refresh()
        held, now_s = self._loaded, self._now_s()
        trouble = self._find_troubles(held, self._status and self._status.status, now_s)
        families = () if held is None or trouble & {STALE, SHADOW} else held.filter_by_labels(labels)
        body = render_page(families, now_s, openmetrics).encode() + (OPENMETRICS_END if openmetrics else b"")
        return gzip_page(EMPTY_PART, body) if gzip else body

    def _render(self, own: bytes, openmetrics: bool, gzip: bool) -> bytes:
        large, small = self._render_parts(openmetrics)
        if openmetrics:
            own = own.removesuffix(OPENMETRICS_END) + OPENMETRICS_END
        return gzip_page(large, small + own) if gzip else large.text + small + own

    def refresh(self) -> None:
        with self._lock:
            first = self._polling is None and self._clock() >= self._due
            if first:
                self._polled_at = self._clock()
                self._polling = self._threads.submit(self._poll)
            asking = self._polling
        if asking is None or not (first or self._status is None):
            return
        done, _ = wait([asking], POLL_WAIT_S)
        if not done and (self._status is None or self._status.polled_at < self._polled_at):
            self._unreachable, self._pages = True, {}

    def close(self) -> None:
        self._threads.shutdown(wait=False)
        self._renderer.shutdown(wait=False)

    def _poll(self) -> None:
        try:
            store = self._store = self._store or self._open_store()
            look = store.read_status()
            self._status = PolledStatus(look, self._polled_at)
            self._load(store, look.version)
            self._unreachable = False
        except Exception as error:  # after any failure the last good version is served
            if not self._unreachable:
                log.warning("could not read the snapshot from Valkey: %s", error, extra={"action": "snapshot_unread"})
            self._unreachable = True
        with self._lock:
            self._due = self._clock() + (RETRY_S if self._unreachable else self._options.poll_every_s)
            self._polling = None
            self._pages = {}

    def _load(self, store: SnapshotStore, version: int) -> None:
        held = self._loaded
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
            new = LoadedSnapshot(*snapshot)
            # Render the formats in use before the version is served; scrapes use the previous version meanwhile.
            for openmetrics in {wanted for wanted, _ in list(self._pages)}:
                new.compress_fixed_part(openmetrics)
            self._loaded = new
        else:
            self._load_older(store, version, held.meta.version if held else 0)

    def _load_older(self, store: SnapshotStore, than: int, but_newer_than: int) -> None:
        """Load the newest intact version older than `than`, if it is newer than the loaded one."""
        for version in store.list_versions():
            try:
                snapshot = store.read(version) if but_newer_than < version < than else None
            except SnapshotDamaged:
                snapshot = None
            if snapshot is not None:
                self._loaded = LoadedSnapshot(*snapshot)
                return

    def _render_parts(self, openmetrics: bool) -> tuple[CompressedPart, bytes]:
        held, seen = self._loaded, self._status
        now_s = self._now_s()
        look = seen and seen.status
        trouble = self._find_troubles(held, look, now_s)
        families = build_status_families(
            held and held.meta, look and look.attempts, now_s, trouble, convoy=self._options.convoy
        )
        about = render_page(map(render_family, families), now_s, openmetrics)
        if held is None or trouble & {STALE, SHADOW}:
            return EMPTY_PART, about.encode()
        return held.compress_fixed_part(openmetrics), (held.render_ages(now_s, openmetrics) + about).encode()

    def _now_s(self) -> float:
        """Return Valkey's time: as last read plus the time since; 0 if never read."""
        seen = self._status
        return 0.0 if seen is None else seen.status.now_s + self._clock() - seen.polled_at

    def _find_troubles(self, held: LoadedSnapshot | None, look: SnapshotStatus | None, now_s: float) -> frozenset[str]:
        troubles = {
            STALE: held is not None and now_s - held.meta.generated_at_unix > self._options.max_staleness_s,
            MISSING: held is None or look is None or not look.version,
            UNREACHABLE: self._unreachable,
            DAMAGED: look is not None and look.version == self._damaged > 0,
            SHADOW: self._options.shadow,
        }
        return frozenset(reason for reason, is_active in troubles.items() if is_active)
