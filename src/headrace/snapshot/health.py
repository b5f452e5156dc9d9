"""Metric families about the snapshot itself: age, refresh outcomes, and why it is not served. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.snapshot.families import COUNTER, Described, Family, Series
from headrace.snapshot.payload import Meta
from headrace.snapshot.store import Attempts

AGE = Described("headrace_queue_metrics_snapshot_age_seconds", "Age of the served snapshot.")
DURATION = Described("headrace_queue_metrics_refresh_duration_seconds", "Duration of the last refresh.")
REFRESHES = Described(
    "headrace_queue_metrics_refresh_total",
    "Refreshes by outcome: published (ok), failed (error), or overtaken by a newer one (superseded).",
    ("status",),
    COUNTER,
)
LAST_SUCCESS = Described(
    "headrace_queue_metrics_snapshot_last_success_timestamp_seconds", "Time of the last published snapshot."
)
LAST_FAILURE = Described(
    "headrace_queue_metrics_snapshot_last_failure_timestamp_seconds",
    "Time of the last failed refresh; absent if none failed.",
)
VERSION = Described("headrace_queue_metrics_snapshot_version", "Version of the served snapshot.")
SERIES = Described("headrace_queue_metrics_snapshot_series", "Series in the served snapshot.")
ROWS = Described("headrace_queue_metrics_snapshot_rows", "Rows and queues that the served snapshot was built from.")
SIZE = Described("headrace_queue_metrics_snapshot_bytes", "Size of the served snapshot in Valkey.")
SERVED = Described("headrace_queue_metrics_snapshot_served", "1 while the snapshot is served.")
TROUBLE = Described(
    "headrace_queue_metrics_snapshot_trouble",
    "1 per active problem: stale, missing (never created), unreachable (Valkey), damaged (newest version unreadable), "
    "shadow (compared only, not served).",
    ("reason",),
)
PARITY = Described(
    "headrace_queue_metrics_shadow_series",
    "Shadow mode: series of the newest snapshot compared with the servers, by result.",
    ("result",),
)

STALE, MISSING, UNREACHABLE, DAMAGED, SHADOW = REASONS = ("stale", "missing", "unreachable", "damaged", "shadow")
ALL = (AGE, DURATION, REFRESHES, LAST_SUCCESS, LAST_FAILURE, VERSION, SERIES, ROWS, SIZE, SERVED, TROUBLE, PARITY)
CONVOY = (AGE, DURATION, REFRESHES, LAST_SUCCESS)
"""Families that the preset `convoy` serves also under names that begin with `convoy_`."""


def health(
    meta: Meta | None, attempts: Attempts | None, now_s: float, trouble: frozenset[str], *, convoy: bool
) -> list[Family]:
    """Build the families about the snapshot. Families whose value is unknown are omitted."""
    families = [_one(SERVED, float(meta is not None and not trouble & {STALE, SHADOW}))]
    families.append(Family(TROUBLE, [Series((reason,), float(reason in trouble)) for reason in REASONS]))
    if meta is not None:
        families.append(_one(AGE, max(0.0, now_s - meta.generated_at_unix)))
        families += [_one(VERSION, meta.version), _one(SERIES, meta.series_total)]
        families += [_one(ROWS, meta.rows_total), _one(SIZE, meta.bytes)]
    if attempts is not None:
        families += _attempts(attempts)
    if convoy:
        known = {each.name: each for each in CONVOY}
        families += [_renamed(family) for family in families if family.described.name in known]
    return families


def _attempts(attempts: Attempts) -> list[Family]:
    counts = {"ok": attempts.ok, "error": attempts.error, "superseded": attempts.superseded}
    families = [_by_label(REFRESHES, counts)]
    if attempts.duration_ms is not None:
        families.append(_one(DURATION, attempts.duration_ms / 1000))
    if attempts.ok_at_unix is not None:
        families.append(_one(LAST_SUCCESS, attempts.ok_at_unix))
    if attempts.error_at_unix is not None:
        families.append(_one(LAST_FAILURE, attempts.error_at_unix))
    if attempts.parity is not None:
        families.append(_by_label(PARITY, attempts.parity))
    return families


def _one(described: Described, value: float) -> Family:
    return Family(described, [Series((), value)])


def _by_label(described: Described, values: Mapping[str, float]) -> Family:
    return Family(described, [Series((label,), value) for label, value in values.items()])


def _renamed(family: Family) -> Family:
    name = family.described.name.replace("headrace_", "convoy_", 1)
    return Family(replace(family.described, name=name), family.series)
