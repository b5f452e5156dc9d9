"""Histograms of durations that can be merged across time buckets, tiers and queues.

Buckets are exponential: bucket i holds values in (2^((i−1)/16), 2^(i/16)] milliseconds, so sixteen buckets double the
value. Zero has its own bucket. A value is represented by the midpoint of its bucket, which is at most 2.2 % off,
however many histograms were merged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

BUCKETS_PER_DOUBLING = 16
ZERO_BUCKET = -32768
"""Bucket of 0 ms: the smallest Int16."""

Histogram = Mapping[int, int]
"""Bucket → number of values."""


def compute_midpoint_ms(bucket: int) -> float:
    """Return the geometric midpoint of a bucket, in milliseconds."""
    return 0.0 if bucket == ZERO_BUCKET else 2.0 ** ((bucket - 0.5) / BUCKETS_PER_DOUBLING)


def count_within(histogram: Histogram, limit_ms: float) -> int:
    """Return how many values certainly do not exceed the limit: those in buckets that end at or below it.

    Values in the bucket that contains the limit are not counted, so the effective limit is up to 4.3 % lower.
    """
    return sum(
        count
        for bucket, count in histogram.items()
        if bucket == ZERO_BUCKET or 2.0 ** (bucket / BUCKETS_PER_DOUBLING) <= limit_ms
    )


def merge_histograms(histograms: Iterable[Histogram]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return total


def compute_percentile(histogram: Histogram, fraction: float) -> float | None:
    """Return the value, in milliseconds, that at least this fraction of all values does not exceed (nearest rank). None
    if the histogram is empty."""
    rank = math.ceil(sum(histogram.values()) * fraction)
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= max(rank, 1):
            return compute_midpoint_ms(bucket)
    return None
