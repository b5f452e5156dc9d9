"""Decoded metric events for tests, alike but for what each says."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from headrace.model.histogram import BUCKETS_PER_DOUBLING, ZERO_BUCKET
from headrace.pipeline.decode import SCHEMA

_PLAIN: dict[str, Any] = {
    **{field.name: None for field in SCHEMA},
    **{"shard": 0, "at_ms": 1_800_000_000_000, "at_seq": 0, "version": 1, "seq": 1},
    **{"org": "o", "project": "p", "env": "e", "queue": "q"},
    **{"op": "enqueue", "n": 1, "odometer": 1, "epoch": 1},
    **{"depth": 0, "scheduled": 0, "running": 0, "env_depth": 0, "env_running": 0, "bytes": 0},
}


def event_table(*changes: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([_PLAIN | change for change in changes], schema=SCHEMA)


def find_bucket(milliseconds: float) -> int:
    """Return the bucket of a duration. Negative durations (clock skew) count as 0."""
    return ZERO_BUCKET if milliseconds <= 0 else math.ceil(BUCKETS_PER_DOUBLING * math.log2(milliseconds))
