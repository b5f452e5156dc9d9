"""Token-bucket rate limits per key or address, per process."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from headrace.api.problems import Problem

MAX_BUCKETS = 10_000
"""Maximum number of buckets in memory, because clients can change their address; the least recently used is dropped."""


@dataclass(frozen=True)
class RateLimitResult:
    allowed: bool
    limit: int
    remaining: int
    retry_s: int  # until a token is available
    reset_s: int  # until the bucket is full

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset_s),
        }

    def raise_if_exceeded(self, who: str) -> None:
        if not self.allowed:
            raise Problem(
                429,
                f"Too many requests from {who}. Nothing was done. Retry in {self.retry_s} s.",
                {"Retry-After": str(self.retry_s), **self.headers},
            )


@dataclass
class _TokenBucket:
    tokens: float
    at: float


class RequestRateLimiter:
    """Token buckets by name. Each is refilled with `per_s` tokens per second up to `burst`; a request takes one."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._lock = Lock()
        self._buckets: OrderedDict[str, _TokenBucket] = OrderedDict()

    def take(self, name: str) -> RateLimitResult:
        with self._lock:
            bucket = self._refill(name)
            allowed = bucket.tokens >= 1
            bucket.tokens -= allowed
            retry_s = math.ceil(max(0.0, 1 - bucket.tokens) / self._per_s)
            reset_s = math.ceil((self._burst - bucket.tokens) / self._per_s)
            return RateLimitResult(allowed, self._burst, int(bucket.tokens), max(1, retry_s), reset_s)

    def can_take(self, name: str) -> bool:
        """Return True if a token is available; it is not taken."""
        with self._lock:
            return self._refill(name).tokens >= 1

    def _refill(self, name: str) -> _TokenBucket:
        now = self._clock()
        bucket = self._buckets.setdefault(name, _TokenBucket(self._burst, now))
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._per_s)
        bucket.at = now
        self._buckets.move_to_end(name)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket
