"""The part of `headrace doctor` that asks whether jobs that wait in PostgreSQL come back."""

from __future__ import annotations

import time
from collections.abc import Iterator

from headrace.cli.findings import Finding
from headrace.cold.status import ShardTiers, quarantined, read_tiers
from headrace.errors import HeadraceError

SILENT_MS = 60_000


def examine_tiers(redis_url: str, postgres_url: str, shards: int) -> Iterator[Finding]:
    try:
        for status in read_tiers(redis_url, shards):
            yield mover(status, time.time_ns() // 1_000_000)
            yield drift(status)
        yield quarantine(quarantined(postgres_url))
    except HeadraceError as error:
        yield Finding("tiers", False, "not known", str(error))


def mover(status: ShardTiers, now_ms: int) -> Finding:
    check = f"mover of shard {status.shard}"
    if status.error:
        return Finding(check, False, status.error, "Jobs that wait in PostgreSQL stay there until this is mended.")
    if status.said_ms is None or now_ms - status.said_ms > SILENT_MS:
        idle = not status.cold_queues
        found = "none" if status.said_ms is None else f"silent for {(now_ms - status.said_ms) // 1000} s"
        advice = "Run a worker or `headrace mover`: they bring back jobs that wait in PostgreSQL."
        return Finding(check, idle, f"{found}, {status.cold_queues} queues in cold mode", advice)
    return Finding(check, True, f"{status.name}, {status.cold_queues} queues in cold mode")


def drift(status: ShardTiers) -> Finding:
    check = f"drift of shard {status.shard}"
    if status.drift:
        return Finding(
            check, True, f"{status.drift} mended", "Counters were off and were set right. The log says which."
        )
    return Finding(check, True, "none")


def quarantine(count: int) -> Finding:
    if count:
        advice = "SELECT job_id, reason FROM cold_quarantine: these jobs cannot be moved and wait for you."
        return Finding("quarantine", False, f"{count} jobs", advice)
    return Finding("quarantine", True, "empty")
