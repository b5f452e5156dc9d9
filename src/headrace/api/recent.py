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

MAX_KEPT = 256
PATIENCE_S = 5.0


@dataclass
class _Kept:
    lock: Any = field(default_factory=Lock)
    at: float = float("-inf")
    value: Any = None


class Recent(Generic[V]):
    def __init__(self, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    def get(self, question: Hashable, ask: Callable[[], V]) -> V:
        with self._lock:
            kept = self._kept.setdefault(question, _Kept())
            self._kept.move_to_end(question)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        if not kept.lock.acquire(timeout=PATIENCE_S):
            raise ServiceUnavailable("An identical request is in progress; retry shortly.")
        try:
            if self._clock() - kept.at >= self._keep_s:
                kept.value = ask()  # errors are not cached
                kept.at = self._clock()
            return kept.value
        finally:
            kept.lock.release()
