"""Metric families about stream groups: undelivered and pending entries, and whether they are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.snapshot.families import FamilyDescriptor, MetricSample, SnapshotFamily
from headrace.streams.depth import GroupDepth, read_depth
from headrace.valkey.connect import Valkey

LABELS = ("stream", "group")

KNOWN = FamilyDescriptor("headrace_stream_depth_known", "gauge", "1 if the group's depth is known.", LABELS)
UNDELIVERED = FamilyDescriptor(
    "headrace_stream_undelivered_entries", "gauge", "Entries not yet delivered to the group; absent if unknown.", LABELS
)
PENDING = FamilyDescriptor(
    "headrace_stream_pending_entries", "gauge", "Entries delivered to the group and not acknowledged.", LABELS
)
OLDEST_UNDELIVERED = FamilyDescriptor(
    "headrace_stream_oldest_undelivered_age_seconds",
    "gauge",
    "Age of the oldest undelivered entry; absent if there is none.",
    LABELS,
    is_age=True,
)
OLDEST_PENDING = FamilyDescriptor(
    "headrace_stream_oldest_pending_age_seconds",
    "gauge",
    "Age of the oldest pending entry; absent if there is none.",
    LABELS,
    is_age=True,
)
STREAM_FAMILIES = (KNOWN, UNDELIVERED, PENDING, OLDEST_UNDELIVERED, OLDEST_PENDING)


@dataclass(frozen=True)
class StreamDepthReader:
    """Reads the depth of stream groups from their server, which may differ from Headrace's own."""

    connect: Callable[[], Valkey]
    groups: Sequence[tuple[str, str]]  # stream, group

    def read(self) -> list[SnapshotFamily]:
        """Build the families of all groups. A stream that cannot be read is reported as unknown."""
        with self.connect() as client:
            depths = {group: _read_depth(client, *group) for group in dict.fromkeys(self.groups)}
        known = {group: depth for group, depth in depths.items() if depth is not None}
        is_known = {group: float(group in known and known[group].undelivered is not None) for group in depths}
        return [
            _build_family(KNOWN, is_known),
            _build_family(UNDELIVERED, {group: depth.undelivered for group, depth in known.items()}),
            _build_family(PENDING, {group: depth.pending for group, depth in known.items()}),
            _build_family(
                OLDEST_UNDELIVERED, {group: _to_seconds(depth.oldest_undelivered_ms) for group, depth in known.items()}
            ),
            _build_family(
                OLDEST_PENDING, {group: _to_seconds(depth.oldest_pending_ms) for group, depth in known.items()}
            ),
        ]


def _read_depth(client: Valkey, stream: str, group: str) -> GroupDepth | None:
    try:
        return read_depth(client, stream, group)
    except HeadraceError:
        return None


def _to_seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / 1000


def _build_family(described: FamilyDescriptor, values: Mapping[tuple[str, str], float | None]) -> SnapshotFamily:
    return SnapshotFamily(described, [MetricSample(group, each) for group, each in values.items() if each is not None])
