"""Checks of `headrace doctor` on the tiers: whether movers bring jobs back from PostgreSQL, and what is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime

from headrace.cli.doctor_checks import DoctorCheck
from headrace.cold.status import (
    RECENT_PERIOD,
    ServerEvent,
    TieringStatus,
    count_quarantined,
    read_server_events,
    read_tiering_status,
)
from headrace.cold.tiers import Tiers
from headrace.errors import HeadraceError, WrongDatabase
from headrace.queue.client import QueueOptions, read_shards
from headrace.valkey.connect import connect

MOVER_TIMEOUT_MS = 60_000


def check_tiers(redis_url: str, postgres_url: str, given_shards: int | None) -> Iterator[DoctorCheck]:
    try:
        with connect(redis_url) as client:
            shards = read_shards(client, given_shards)
        for status in read_tiering_status(redis_url, shards):
            yield check_mover(status, time.time_ns() // 1_000_000)
            yield check_drift(status)
        yield check_quarantine(count_quarantined(postgres_url))
        with closing(Tiers(redis_url, postgres_url, QueueOptions(shards=shards))) as tiers:
            yield check_database(tiers, shards)
            yield from check_server_events(read_server_events(tiers.store))
    except HeadraceError as error:
        yield DoctorCheck("tiers", False, "unknown", str(error))


def check_mover(status: TieringStatus, now_ms: int) -> DoctorCheck:
    check = f"mover, shard {status.shard}"
    if status.error:
        return DoctorCheck(check, False, status.error, "Jobs in PostgreSQL stay there until this is fixed.")
    if status.reported_ms is None or now_ms - status.reported_ms > MOVER_TIMEOUT_MS:
        idle = not status.cold_queues
        found = "none" if status.reported_ms is None else f"no heartbeat for {(now_ms - status.reported_ms) // 1000} s"
        advice = "Run a worker or `headrace mover`: both move waiting jobs from PostgreSQL back to Valkey."
        return DoctorCheck(check, idle, f"{found}, {status.cold_queues} queues in cold mode", advice)
    return DoctorCheck(check, True, f"{status.mover}, {status.cold_queues} queues in cold mode")


def check_drift(status: TieringStatus) -> DoctorCheck:
    check = f"counter drift, shard {status.shard}"
    if status.drift:
        return DoctorCheck(
            check,
            True,
            f"{status.drift} repaired",
            "Counters had drifted and were corrected. See the mover's log for details.",
        )
    return DoctorCheck(check, True, "none")


def check_database(tiers: Tiers, shards: int) -> DoctorCheck:
    """Check that Valkey's jobs wait in the configured PostgreSQL and in no other."""
    if {tiers.read_known_postgres(shard) for shard in range(shards)} - {"", tiers.store.read_identity()}:
        return DoctorCheck("postgres identity", False, "not the PostgreSQL recorded in Valkey", str(WrongDatabase()))
    return DoctorCheck("postgres identity", True, "the PostgreSQL recorded in Valkey")


def check_server_events(events: Sequence[ServerEvent]) -> Iterator[DoctorCheck]:
    """Report each failover, restore and replacement of a server within the last 7 days."""
    recent = [event for event in events if datetime.now(UTC) - event.noticed_at < RECENT_PERIOD]
    if not recent:
        yield DoctorCheck("server events", True, "none in the last 7 days")
    for event in recent:
        queues = ", ".join(f"{'/'.join(vars(loss.ref).values())}: {loss.missing}" for loss in event.losses[:10])
        when = event.noticed_at.isoformat(timespec="seconds")
        found = f"{event.server} of shard {event.shard} {event.kind}, noticed {when}, {event.missing} jobs missing"
        advice = f"{event.description} Missing according to the counters: {queues or 'none'}."
        yield DoctorCheck(
            "server events", not event.missing, found, f"{advice} `headrace tiers events` shows all events."
        )


def check_quarantine(count: int) -> DoctorCheck:
    if count:
        advice = "These jobs cannot be moved and need manual action: SELECT job_id, reason FROM cold_quarantine."
        return DoctorCheck("quarantine", False, f"{count} jobs", advice)
    return DoctorCheck("quarantine", True, "empty")
