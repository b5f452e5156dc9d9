"""Metric families about the snapshot itself: age, refresh outcomes, and why it is not served. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.snapshot.families import FamilyDescriptor, MetricSample, SnapshotFamily
from headrace.snapshot.payload import SnapshotMeta
from headrace.snapshot.store import RefreshStats

AGE = FamilyDescriptor("headrace_queue_metrics_snapshot_age_seconds", "gauge", "Age of the served snapshot.")
DURATION = FamilyDescriptor(
    "headrace_queue_metrics_refresh_duration_seconds",
    "gauge",
    "Duration of the last refresh, successful or not: reading, writing, verifying and publishing.",
)
REFRESHES = FamilyDescriptor(
    "headrace_queue_metrics_refresh_total",
    "counter",
    "Refreshes by outcome: published (ok), failed (error), or overtaken by a newer one (superseded).",
    ("status",),
)
LAST_SUCCESS = FamilyDescriptor(
    "headrace_queue_metrics_snapshot_last_success_timestamp_seconds", "gauge", "Time of the last published snapshot."
)
LAST_FAILURE = FamilyDescriptor(
    "headrace_queue_metrics_snapshot_last_failure_timestamp_seconds",
    "gauge",
    "Time of the last failed refresh; absent if none failed.",
)
VERSION = FamilyDescriptor("headrace_queue_metrics_snapshot_version", "gauge", "Version of the served snapshot.")
SERIES = FamilyDescriptor("headrace_queue_metrics_snapshot_series", "gauge", "Series in the served snapshot.")
ROWS = FamilyDescriptor(
    "headrace_queue_metrics_snapshot_rows", "gauge", "Rows and queues that the served snapshot was built from."
)
SIZE = FamilyDescriptor("headrace_queue_metrics_snapshot_bytes", "gauge", "Size of the served snapshot in Valkey.")
SERVED = FamilyDescriptor("headrace_queue_metrics_snapshot_served", "gauge", "1 while the snapshot is served.")
TROUBLE = FamilyDescriptor(
    "headrace_queue_metrics_snapshot_trouble",
    "gauge",
    "1 per active problem: stale, missing (never created), unreachable (Valkey), damaged (newest version unreadable), "
    "shadow (compared only, not served).",
    ("reason",),
)
PARITY = FamilyDescriptor(
    "headrace_queue_metrics_shadow_series",
    "gauge",
    "Shadow mode: series of the newest snapshot compared with the servers, by result.",
    ("result",),
)

STALE, MISSING, UNREACHABLE, DAMAGED, SHADOW = REASONS = ("stale", "missing", "unreachable", "damaged", "shadow")
STATUS_FAMILIES = (
    AGE,
    DURATION,
    REFRESHES,
    LAST_SUCCESS,
    LAST_FAILURE,
    VERSION,
    SERIES,
    ROWS,
    SIZE,
    SERVED,
    TROUBLE,
    PARITY,
)
CONVOY_FAMILIES = (AGE, DURATION, REFRESHES, LAST_SUCCESS)
"""Families that the preset `convoy` serves also under names that begin with `convoy_`."""


def build_status_families(
    meta: SnapshotMeta | None, attempts: RefreshStats | None, now_s: float, trouble: frozenset[str], *, convoy: bool
) -> list[SnapshotFamily]:
    """Build the families about the snapshot. Families whose value is unknown are omitted."""
    families = [
        _make_family(SERVED, float(meta is not None and not trouble & {STALE, SHADOW})),
        _make_labeled_family(TROUBLE, {reason: float(reason in trouble) for reason in REASONS}),
    ]
    if meta is not None:
        families += [
            _make_family(AGE, max(0.0, now_s - meta.generated_at_unix)),
            _make_family(VERSION, meta.version),
            _make_family(SERIES, meta.series_total),
            _make_family(ROWS, meta.rows_total),
            _make_family(SIZE, meta.bytes),
        ]
    if attempts is not None:
        families += _build_attempt_families(attempts)
    if convoy:
        families += [_rename_for_convoy(family) for family in families if family.descriptor in CONVOY_FAMILIES]
    return families


def _build_attempt_families(attempts: RefreshStats) -> list[SnapshotFamily]:
    counts = {"ok": attempts.ok, "error": attempts.error, "superseded": attempts.superseded}
    values = {
        DURATION: None if attempts.duration_ms is None else attempts.duration_ms / 1000,
        LAST_SUCCESS: attempts.ok_at_unix,
        LAST_FAILURE: attempts.error_at_unix,
    }
    families = [_make_labeled_family(REFRESHES, counts)]
    families += [_make_family(described, value) for described, value in values.items() if value is not None]
    if attempts.parity is not None:
        families.append(_make_labeled_family(PARITY, attempts.parity))
    return families


def _make_family(described: FamilyDescriptor, value: float) -> SnapshotFamily:
    return SnapshotFamily(described, [MetricSample((), value)])


def _make_labeled_family(described: FamilyDescriptor, values: Mapping[str, float]) -> SnapshotFamily:
    return SnapshotFamily(described, [MetricSample((label,), value) for label, value in values.items()])


def _rename_for_convoy(family: SnapshotFamily) -> SnapshotFamily:
    name = family.descriptor.name.replace("headrace_", "convoy_", 1)
    return SnapshotFamily(replace(family.descriptor, name=name), family.samples)
