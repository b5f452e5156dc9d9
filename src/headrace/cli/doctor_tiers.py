"""Checks of `headrace doctor` on the tiers: whether movers bring jobs back from PostgreSQL, and what is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from headrace.cli.findings import Finding
from headrace.cold.status import RECENT, ServerEvent, ShardTiers, quarantined, read_server_events, read_tiers
from headrace.cold.tiers import Tiers
from headrace.errors import HeadraceError, WrongDatabase
from headrace.queue.queue import QueueOptions, read_shards
from headrace.valkey.connect import connect

SILENT_MS = 60_000


def examine_tiers(redis_url: str, postgres_url: str, given_shards: int | None) -> Iterator[Finding]:
    try:
        with connect(redis_url) as client:
            shards = read_shards(client, given_shards)
        for status in read_tiers(redis_url, shards):
            yield mover(status, time.time_ns() // 1_000_000)
            yield drift(status)
        yield quarantine(quarantined(postgres_url))
        tiers = Tiers(redis_url, postgres_url, QueueOptions(shards=shards))
        try:
            yield database(tiers, shards)
            yield from recent_events(read_server_events(tiers.store))
        finally:
            tiers.close()
    except HeadraceError as error:
        yield Finding("tiers", False, "unknown", str(error))


def mover(status: ShardTiers, now_ms: int) -> Finding:
    check = f"mover, shard {status.shard}"
    if status.error:
        return Finding(check, False, status.error, "Jobs in PostgreSQL stay there until this is fixed.")
    if status.said_ms is None or now_ms - status.said_ms > SILENT_MS:
        idle = not status.cold_queues
        found = "none" if status.said_ms is None else f"no heartbeat for {(now_ms - status.said_ms) // 1000} s"
        advice = "Run a worker or `headrace mover`: both move waiting jobs from PostgreSQL back to Valkey."
        return Finding(check, idle, f"{found}, {status.cold_queues} queues in cold mode", advice)
    return Finding(check, True, f"{status.name}, {status.cold_queues} queues in cold mode")


def drift(status: ShardTiers) -> Finding:
    check = f"counter drift, shard {status.shard}"
    if status.drift:
        return Finding(
            check,
            True,
            f"{status.drift} repaired",
            "Counters had drifted and were corrected. See the mover's log for details.",
        )
    return Finding(check, True, "none")


def database(tiers: Tiers, shards: int) -> Finding:
    """Check that Valkey's jobs wait in the configured PostgreSQL and in no other."""
    if {tiers.known_postgres(shard) for shard in range(shards)} - {"", tiers.store.identity()}:
        return Finding("postgres identity", False, "not the PostgreSQL recorded in Valkey", str(WrongDatabase()))
    return Finding("postgres identity", True, "the PostgreSQL recorded in Valkey")


def recent_events(events: Sequence[ServerEvent]) -> Iterator[Finding]:
    """Report each failover, restore and replacement of a server within the last 7 days."""
    recent = [event for event in events if datetime.now(UTC) - event.noticed_at < RECENT]
    if not recent:
        yield Finding("server events", True, "none in the last 7 days")
    for event in recent:
        queues = ", ".join(f"{'/'.join(vars(loss.ref).values())}: {loss.missing}" for loss in event.losses[:10])
        when = event.noticed_at.isoformat(timespec="seconds")
        found = f"{event.server} of shard {event.shard} {event.kind}, noticed {when}, {event.missing} jobs missing"
        advice = f"{event.description} Missing according to the counters: {queues or 'none'}."
        yield Finding("server events", not event.missing, found, f"{advice} `headrace tiers events` shows all events.")


def quarantine(count: int) -> Finding:
    if count:
        advice = "These jobs cannot be moved and need manual action: SELECT job_id, reason FROM cold_quarantine."
        return Finding("quarantine", False, f"{count} jobs", advice)
    return Finding("quarantine", True, "empty")
