"""Metric families about stream groups: undelivered and pending entries, and whether they are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.snapshot.families import FamilyDescriptor, SnapshotFamily
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
        families = {described.name: SnapshotFamily(described) for described in STREAM_FAMILIES}
        with self.connect() as client:
            for stream, group in dict.fromkeys(self.groups):
                depth = _read_depth(client, stream, group)
                families[KNOWN.name].add(float(depth is not None and depth.undelivered is not None), stream, group)
                if depth is not None:
                    _add_samples(families, depth)
        return list(families.values())


def _read_depth(client: Valkey, stream: str, group: str) -> GroupDepth | None:
    try:
        return read_depth(client, stream, group)
    except HeadraceError:
        return None


def _add_samples(families: dict[str, SnapshotFamily], depth: GroupDepth) -> None:
    labels = (depth.stream, depth.group)
    families[PENDING.name].add(depth.pending, *labels)
    if depth.undelivered is not None:
        families[UNDELIVERED.name].add(depth.undelivered, *labels)
    for described, at_ms in (
        (OLDEST_UNDELIVERED, depth.oldest_undelivered_ms),
        (OLDEST_PENDING, depth.oldest_pending_ms),
    ):
        if at_ms is not None:
            families[described.name].add(at_ms / 1000, *labels)
