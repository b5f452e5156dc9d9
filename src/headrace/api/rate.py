"""How often: a bucket of tokens per key or address, in this process. Pure but for the clock that it is given."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from headrace.api.problems import Problem

MAX_BUCKETS = 10_000
"""Who comes under ever new names (addresses) must not fill the memory; the one that was seen longest ago goes."""


@dataclass(frozen=True)
class Spent:
    """What a bucket answered: whether there was a token, and what is left."""

    allowed: bool
    limit: int
    remaining: int
    retry_s: int  # until there is a token
    reset_s: int  # until it is full

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset_s),
        }

    def refuse_excess(self, who: str) -> None:
        if not self.allowed:
            raise Problem(
                429,
                f"{who} sends too many requests. Nothing was done. Try again in {self.retry_s} s.",
                {"Retry-After": str(self.retry_s), **self.headers},
            )


@dataclass
class _Bucket:
    tokens: float
    at: float


class Buckets:
    """`per_s` tokens come into each bucket, up to `burst`; a request takes one."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._lock = Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def spend(self, name: str) -> Spent:
        with self._lock:
            bucket = self._filled(name)
            allowed = bucket.tokens >= 1
            bucket.tokens -= allowed
            return self._spent(bucket, allowed)

    def look(self, name: str) -> Spent:
        """Would there be a token? Takes none."""
        with self._lock:
            bucket = self._filled(name)
            return self._spent(bucket, bucket.tokens >= 1)

    def _filled(self, name: str) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.setdefault(name, _Bucket(self._burst, now))
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._per_s)
        bucket.at = now
        self._buckets.move_to_end(name)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket

    def _spent(self, bucket: _Bucket, allowed: bool) -> Spent:
        retry_s = math.ceil(max(0.0, 1 - bucket.tokens) / self._per_s)
        reset_s = math.ceil((self._burst - bucket.tokens) / self._per_s)
        return Spent(allowed, self._burst, int(bucket.tokens), max(1, retry_s), reset_s)
