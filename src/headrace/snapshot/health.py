"""What is said of the snapshot itself: how old it is, how refreshes end, and why none of it is served. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.snapshot.families import COUNTER, Described, Family, Series
from headrace.snapshot.payload import Meta
from headrace.snapshot.store import Attempts

AGE = Described("headrace_queue_metrics_snapshot_age_seconds", "How long ago what is served was read from the servers.")
DURATION = Described("headrace_queue_metrics_refresh_duration_seconds", "How long the newest refresh took.")
REFRESHES = Described(
    "headrace_queue_metrics_refresh_total",
    "Refreshes by how they ended: published (ok), failed (error), or passed by a newer one (superseded).",
    ("status",),
    COUNTER,
)
LAST_SUCCESS = Described(
    "headrace_queue_metrics_snapshot_last_success_timestamp_seconds", "When the newest snapshot was published."
)
LAST_FAILURE = Described(
    "headrace_queue_metrics_snapshot_last_failure_timestamp_seconds", "When a refresh failed last; absent if none did."
)
VERSION = Described("headrace_queue_metrics_snapshot_version", "Number of the snapshot that is served.")
SERIES = Described("headrace_queue_metrics_snapshot_series", "Series of that snapshot.")
ROWS = Described("headrace_queue_metrics_snapshot_rows", "Rows and queues that it was made of.")
SIZE = Described("headrace_queue_metrics_snapshot_bytes", "Its size in Valkey.")
SERVED = Described("headrace_queue_metrics_snapshot_served", "1 while its series are served.")
TROUBLE = Described(
    "headrace_queue_metrics_snapshot_trouble",
    "1 for what is wrong: older than it may be (stale), never made (missing), Valkey silent (unreachable), the newest "
    "version unreadable (damaged), or only compared (shadow).",
    ("reason",),
)
PARITY = Described(
    "headrace_queue_metrics_shadow_series",
    "Shadow mode: series of the newest snapshot beside those of the servers, by what the comparison found.",
    ("result",),
)

STALE, MISSING, UNREACHABLE, DAMAGED, SHADOW = REASONS = ("stale", "missing", "unreachable", "damaged", "shadow")
ALL = (AGE, DURATION, REFRESHES, LAST_SUCCESS, LAST_FAILURE, VERSION, SERIES, ROWS, SIZE, SERVED, TROUBLE, PARITY)
CONVOY = (AGE, DURATION, REFRESHES, LAST_SUCCESS)
"""With the preset of this name also by names that begin with `convoy_`."""


def health(
    meta: Meta | None, attempts: Attempts | None, now_s: float, trouble: frozenset[str], *, convoy: bool
) -> list[Family]:
    """What is not known is absent."""
    told = [_one(SERVED, float(meta is not None and not trouble & {STALE, SHADOW}))]
    told.append(Family(TROUBLE, [Series((reason,), float(reason in trouble)) for reason in REASONS]))
    if meta is not None:
        told.append(_one(AGE, max(0.0, now_s - meta.generated_at_unix)))
        told += [_one(VERSION, meta.version), _one(SERIES, meta.series_total)]
        told += [_one(ROWS, meta.rows_total), _one(SIZE, meta.bytes)]
    if attempts is not None:
        told += _attempts(attempts)
    if convoy:
        known = {each.name: each for each in CONVOY}
        told += [_renamed(family) for family in told if family.described.name in known]
    return told


def _attempts(attempts: Attempts) -> list[Family]:
    counts = {"ok": attempts.ok, "error": attempts.error, "superseded": attempts.superseded}
    told = [_by_label(REFRESHES, counts)]
    if attempts.duration_ms is not None:
        told.append(_one(DURATION, attempts.duration_ms / 1000))
    if attempts.ok_at_unix is not None:
        told.append(_one(LAST_SUCCESS, attempts.ok_at_unix))
    if attempts.error_at_unix is not None:
        told.append(_one(LAST_FAILURE, attempts.error_at_unix))
    if attempts.parity is not None:
        told.append(_by_label(PARITY, attempts.parity))
    return told


def _one(described: Described, value: float) -> Family:
    return Family(described, [Series((), value)])


def _by_label(described: Described, values: Mapping[str, float]) -> Family:
    return Family(described, [Series((label,), value) for label, value in values.items()])


def _renamed(family: Family) -> Family:
    name = family.described.name.replace("headrace_", "convoy_", 1)
    return Family(replace(family.described, name=name), family.series)
