"""Durations as histograms that can be added up: over buckets, tiers, queues and any range.

Buckets are exponential: bucket i holds values in (2^((i−1)/16), 2^(i/16)] milliseconds, so that sixteen of them double.
Zero has a bucket of its own. A value is told by the middle of its bucket, which is at most 2.2 % off, at every tier and
however many histograms were added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

PER_DOUBLING = 16
ZERO = -32768
"""The key of 0 ms: the smallest that an Int16 can hold."""

Histogram = Mapping[int, int]
"""Bucket → how many."""


def bucket_of(milliseconds: float) -> int:
    """What is negative (clocks) counts as 0."""
    return ZERO if milliseconds <= 0 else math.ceil(PER_DOUBLING * math.log2(milliseconds))


def value_of(bucket: int) -> float:
    """The middle of a bucket, as ratios go."""
    return 0.0 if bucket == ZERO else 2.0 ** ((bucket - 0.5) / PER_DOUBLING)


def added(histograms: Iterable[Histogram]) -> dict[int, int]:
    total: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def percentile(histogram: Histogram, share: float) -> float | None:
    """The value that at least `share` of all do not exceed (nearest rank). None: nothing was measured."""
    rank = math.ceil(sum(histogram.values()) * share)
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= max(rank, 1):
            return value_of(bucket)
    return None
