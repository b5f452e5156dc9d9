"""Keep all processes from maintaining the shards of a Valkey, for tests and benchmarks that count every event."""

from __future__ import annotations

import time
from typing import Any, cast

from headrace.queue import keys
from headrace.valkey.connect import Valkey

OWNERSHIP_MS = 3_600_000


def own_maintenance(valkey: Valkey, shards: int) -> None:
    """Become the maintenance owner of every shard for an hour, so that no other process adds an event (a tick)."""
    until_ms = time.time_ns() // 1_000_000 + OWNERSHIP_MS
    owner = {"maintainer": "counting", "maintainer_until": until_ms, "maintainer_ms": OWNERSHIP_MS}
    for shard in range(shards):
        valkey.hset(keys.meta(shard), mapping=cast(Any, owner))
