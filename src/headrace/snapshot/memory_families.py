"""Metric families about the memory of the Valkey servers. Unknown values have no series."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.queue.server_memory import ServerMemory
from headrace.snapshot.families import FamilyDescriptor, MetricSample, SnapshotFamily

USED = FamilyDescriptor(
    "headrace_valkey_used_memory_bytes",
    "gauge",
    "Memory that a Valkey server uses (used_memory). `server` is the shards that it holds.",
    ("server",),
)
MAXIMUM = FamilyDescriptor(
    "headrace_valkey_max_memory_bytes",
    "gauge",
    "Limit of that memory (maxmemory); absent without a limit.",
    ("server",),
)
PAYLOADS = FamilyDescriptor(
    "headrace_valkey_payload_bytes", "gauge", "Payloads of waiting and running jobs of a shard in Valkey.", ("shard",)
)
PAYLOADS_MAXIMUM = FamilyDescriptor(
    "headrace_valkey_max_payload_bytes",
    "gauge",
    "Cap of these payloads (queue.shard_max_bytes); further jobs wait in PostgreSQL. Absent without a cap.",
    ("shard",),
)
FULL_IN = FamilyDescriptor(
    "headrace_valkey_full_in_seconds",
    "gauge",
    "Time until the first limit is reached (maxmemory or shard_max_bytes) if memory grows as in the last hour; absent "
    "without a limit, without growth, or if it is measured for less than two minutes.",
    ("server", "limit"),
)
MEMORY_FAMILIES = (USED, MAXIMUM, PAYLOADS, PAYLOADS_MAXIMUM, FULL_IN)


def build_memory_families(servers: Sequence[ServerMemory]) -> list[SnapshotFamily]:
    shards = [each for server in servers for each in server.shards]
    return [
        SnapshotFamily(USED, [MetricSample((s.name,), s.used_bytes) for s in servers if s.used_bytes is not None]),
        SnapshotFamily(MAXIMUM, [MetricSample((s.name,), s.max_bytes) for s in servers if s.max_bytes is not None]),
        SnapshotFamily(PAYLOADS, [MetricSample((str(each.shard),), each.payload_bytes) for each in shards]),
        SnapshotFamily(
            PAYLOADS_MAXIMUM,
            [MetricSample((str(each.shard),), each.max_bytes) for each in shards if each.max_bytes is not None],
        ),
        SnapshotFamily(
            FULL_IN,
            [
                MetricSample((s.name, s.forecast.limit), s.forecast.full_in_s)
                for s in servers
                if s.forecast.limit is not None and s.forecast.full_in_s is not None
            ],
        ),
    ]
