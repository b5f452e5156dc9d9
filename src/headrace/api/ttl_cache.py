"""Cache expensive results per key for a short time.

Concurrent callers of one key share a single computation and wait for it at most MAX_WAIT_S, because each holds a
request thread.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar

from headrace.errors import ServiceUnavailable

V = TypeVar("V")

MAX_ENTRIES = 256
MAX_WAIT_S = 5.0


@dataclass
class _CacheEntry:
    lock: Any = field(default_factory=Lock)
    at: float = float("-inf")
    value: Any = None


class TtlCache(Generic[V]):
    def __init__(self, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, _CacheEntry] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], V]) -> V:
        with self._lock:
            kept = self._entries.setdefault(key, _CacheEntry())
            self._entries.move_to_end(key)
            if len(self._entries) > MAX_ENTRIES:
                self._entries.popitem(last=False)
        if not kept.lock.acquire(timeout=MAX_WAIT_S):
            raise ServiceUnavailable("An identical request is in progress; retry shortly.")
        try:
            if self._clock() - kept.at >= self._keep_s:
                kept.value = compute()  # errors are not cached
                kept.at = self._clock()
            return kept.value
        finally:
            kept.lock.release()
