"""The part of `headrace doctor` that asks whether jobs that wait in PostgreSQL come back."""

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


def database(tiers: Tiers, shards: int) -> Finding:
    """Whether jobs wait in this PostgreSQL and in no other."""
    if {tiers.known_postgres(shard) for shard in range(shards)} - {"", tiers.store.identity()}:
        return Finding("postgres identity", False, "another PostgreSQL than Valkey knows", str(WrongDatabase()))
    return Finding("postgres identity", True, "the one that Valkey knows")


def recent_events(events: Sequence[ServerEvent]) -> Iterator[Finding]:
    """What happened to servers within the last week, one finding each."""
    recent = [event for event in events if datetime.now(UTC) - event.noticed_at < RECENT]
    if not recent:
        yield Finding("server events", True, "none in the last 7 days")
    for event in recent:
        queues = ", ".join(f"{'/'.join(vars(loss.ref).values())}: {loss.missing}" for loss in event.losses[:10])
        when = event.noticed_at.isoformat(timespec="seconds")
        found = f"{event.server} of shard {event.shard} {event.kind}, noticed {when}, {event.missing} jobs missing"
        advice = f"{event.description} Missing: {queues or 'nothing that counters know of'}."
        yield Finding("server events", not event.missing, found, f"{advice} `headrace tiers events` shows all.")


def quarantine(count: int) -> Finding:
    if count:
        advice = "SELECT job_id, reason FROM cold_quarantine: these jobs cannot be moved and wait for you."
        return Finding("quarantine", False, f"{count} jobs", advice)
    return Finding("quarantine", True, "empty")
