"""Cache of history responses in one API process, bounded in bytes.

An entry belongs to one subject (tenant and queue, or environment) and one set of parameters; routes look it up after
they checked that the caller may read the subject. Concurrent requests for an entry share one computation. It is valid

- while the state of history is the same: no batch arrived, no backfill ended. Its last point is open, so it is kept for
  OPEN_MS at most;
- if every point of it is final, until a backfill ends, at most FINAL_MS.

The state is read from ClickHouse, so a batch or a backfill of another process is noticed too. It is read once for all
requests, at most every STATE_S.
"""

from __future__ import annotations

import gzip
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any

from headrace.errors import ServiceUnavailable
from headrace.warehouse.history_state import HistoryState, read_history_state
from headrace.warehouse.query_runner import QueryRunner

STATE_S = 0.1
"""How long the state of history is shared by requests, if the cache is on. Responses are this much behind at most."""
OPEN_MS = 10_000
FINAL_MS = 600_000
MAX_WAIT_S = 10.0
OVERHEAD = 1000
"""Bytes of an entry besides its response."""

COMPRESSION = 4
"""Level of gzip: most of the gain, for a third of the time of level 9."""

BUSY = "An identical request is in progress; retry shortly."


@dataclass(frozen=True)
class CachedResponse:
    body: bytes
    is_final: bool  # nothing of it changes any more, except by a backfill
    etag: str | None = None  # None: not kept

    @cached_property
    def compressed(self) -> bytes:
        """Body as gzip, compressed once for all who accept it."""
        return gzip.compress(self.body, COMPRESSION, mtime=0)

    @property
    def is_compressed(self) -> bool:
        return "compressed" in self.__dict__

    def compress(self) -> CachedResponse:
        """Compute `compressed`, and return this response."""
        assert self.compressed is not None
        return self

    def tagged(self) -> CachedResponse:
        return replace(self, etag=f'"{hashlib.blake2b(self.body, digest_size=12).hexdigest()}"')


@dataclass(frozen=True)
class _KeptResponse:
    response: CachedResponse
    state: HistoryState  # as it was read before the response was computed
    at_ms: int

    def is_valid(self, state: HistoryState, now_ms: int) -> bool:
        age_ms = now_ms - self.at_ms
        if self.response.is_final:
            return self.state.rewritten == state.rewritten and 0 <= age_ms < FINAL_MS
        return self.state == state and 0 <= age_ms < OPEN_MS


@dataclass
class _HistoryEntry:
    lock: Any = field(default_factory=Lock)
    kept: _KeptResponse | None = None  # replaced as a whole, so it can be read without the lock

    @property
    def size(self) -> int:
        return OVERHEAD + (len(self.kept.response.body) * 5 // 4 if self.kept else 0)  # and its compressed form

    def get_valid(self, state: HistoryState, now_ms: int) -> CachedResponse | None:
        kept = self.kept
        return kept.response if kept is not None and kept.is_valid(state, now_ms) else None


class HistoryCache:
    """Responses by key. `max_bytes` = 0 keeps none."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, _HistoryEntry] = OrderedDict()
        self._bytes = 0
        self._state_lock = Lock()
        self._state: HistoryState | None = None
        self._state_began = float("-inf")

    @property
    def bytes(self) -> int:
        return self._bytes

    def read_state(self, queries: QueryRunner) -> HistoryState:
        """Return the state of history, read after this call, or up to STATE_S before it if the cache is on. Concurrent
        calls share one query."""
        needed = self._clock() - (STATE_S if self._max_bytes else 0.0)
        if not self._state_lock.acquire(timeout=MAX_WAIT_S):
            raise ServiceUnavailable(BUSY)
        try:
            if self._state is None or self._state_began < needed:
                began = self._clock()
                found = read_history_state(queries)
                with self._lock:
                    if found != self._state:  # the same object is compared fast
                        self._state = found
                    self._state_began = began
            assert self._state is not None
            return self._state
        finally:
            self._state_lock.release()

    def find(self, key: Hashable, now_ms: int) -> CachedResponse | None:
        """Return the valid response for a key without waiting; None if it must be computed, or the state read again."""
        with self._lock:
            state, began, entry = self._state, self._state_began, self._entries.get(key)
            if entry is None or state is None or self._clock() - began > STATE_S:
                return None
            self._entries.move_to_end(key)
        return entry.get_valid(state, now_ms)

    def get(
        self, key: Hashable, state: HistoryState, now_ms: int, compute: Callable[[], CachedResponse]
    ) -> CachedResponse:
        """Return the valid response for a key, computed if necessary. Errors are not kept."""
        if not self._max_bytes or state.watermark_ms is None:
            return compute()  # without a pipeline that reports batches, nothing tells when rows arrive
        entry = self._open(key)
        if not entry.lock.acquire(timeout=MAX_WAIT_S):
            raise ServiceUnavailable(BUSY)
        try:
            found = entry.get_valid(state, now_ms)
            if found is None:
                found = compute().tagged()
                self._store(key, entry, found, state, now_ms)
            return found
        finally:
            entry.lock.release()

    def _open(self, key: Hashable) -> _HistoryEntry:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _HistoryEntry()
                self._bytes += entry.size
            self._entries.move_to_end(key)
            return entry

    def _store(
        self, key: Hashable, entry: _HistoryEntry, response: CachedResponse, state: HistoryState, now_ms: int
    ) -> None:
        with self._lock:
            is_kept = self._entries.get(key) is entry  # it may have been evicted while it was computed
            self._bytes -= entry.size if is_kept else 0
            entry.kept = _KeptResponse(response, state, now_ms)
            self._bytes += entry.size if is_kept else 0
            while self._bytes > self._max_bytes and self._entries:
                _, evicted = self._entries.popitem(last=False)
                self._bytes -= evicted.size
