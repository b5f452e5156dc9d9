"""Metric families about stream groups: undelivered and pending entries, whether they are known, stuck consumers, and
the length of the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from headrace.errors import HeadraceError
from headrace.snapshot.families import FamilyDescriptor, MetricSample, SnapshotFamily
from headrace.streams.consumers import read_consumers
from headrace.streams.depth import GroupDepth, read_depth
from headrace.valkey.connect import ScriptError, Valkey

T = TypeVar("T")

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
LONGEST_IDLE = FamilyDescriptor(
    "headrace_stream_longest_idle_seconds",
    "gauge",
    "Longest time without a delivery or heartbeat of the oldest pending entries; absent if no consumer holds one.",
    LABELS,
)
STUCK = FamilyDescriptor(
    "headrace_stream_stuck_consumers",
    "gauge",
    "Consumers that hold entries and were not active for `streams.stuck_after`; absent if unknown.",
    LABELS,
)
TOTAL_MESSAGES = FamilyDescriptor(
    "headrace_stream_total_messages",
    "gauge",
    "Length of the stream, including entries that every group has finished; absent if unknown.",
    LABELS,
)
HARD_MAXLEN = FamilyDescriptor(
    "headrace_stream_hard_maxlen", "gauge", "Length of the stream at which Headrace's producers are refused.", LABELS
)
STREAM_FAMILIES = (
    *(KNOWN, UNDELIVERED, PENDING, OLDEST_UNDELIVERED, OLDEST_PENDING),
    *(LONGEST_IDLE, STUCK, TOTAL_MESSAGES, HARD_MAXLEN),
)

GroupName: TypeAlias = tuple[str, str]  # stream, group


@dataclass(frozen=True)
class StreamDepthReader:
    """Reads the depth of stream groups from their server, which may differ from Headrace's own."""

    connect: Callable[[], Valkey]
    groups: Sequence[GroupName]
    stuck_after_ms: int
    hard_maxlen: int

    def read(self) -> list[SnapshotFamily]:
        """Build the families of all groups. A stream that cannot be read is reported as unknown."""
        groups = list(dict.fromkeys(self.groups))
        with self.connect() as client:
            depths = {group: _read_or_none(lambda each=group: read_depth(client, *each)) for group in groups}
            stuck = {group: _read_or_none(lambda each=group: self._count_stuck(client, *each)) for group in groups}
        known = {group: depth for group, depth in depths.items() if depth is not None}

        def build(described: FamilyDescriptor, value: Callable[[GroupDepth], float | None]) -> SnapshotFamily:
            return _build_family(described, {group: value(depth) for group, depth in known.items()})

        is_known = {group: float(group in known and known[group].undelivered is not None) for group in groups}
        return [
            _build_family(KNOWN, is_known),
            build(UNDELIVERED, lambda depth: depth.undelivered),
            build(PENDING, lambda depth: depth.pending),
            build(OLDEST_UNDELIVERED, lambda depth: _to_seconds(depth.oldest_undelivered_ms)),
            build(OLDEST_PENDING, lambda depth: _to_seconds(depth.oldest_pending_ms)),
            build(LONGEST_IDLE, lambda depth: _to_seconds(depth.longest_idle_ms)),
            _build_family(STUCK, stuck),
            build(TOTAL_MESSAGES, lambda depth: depth.total_messages),
            build(HARD_MAXLEN, lambda _: self.hard_maxlen),
        ]

    def _count_stuck(self, client: Valkey, stream: str, group: str) -> int:
        return len(read_consumers(client, stream, group, stuck_after_ms=self.stuck_after_ms).stuck)


def _read_or_none(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (HeadraceError, ScriptError):
        return None


def _to_seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _build_family(described: FamilyDescriptor, values: Mapping[GroupName, float | None]) -> SnapshotFamily:
    return SnapshotFamily(described, [MetricSample(group, each) for group, each in values.items() if each is not None])
