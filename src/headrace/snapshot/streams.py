"""Metric families about stream groups: undelivered and pending entries, and whether they are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.snapshot.families import Described, Family
from headrace.streams.depth import Depth, read_depth
from headrace.valkey.connect import Valkey

LABELS = ("stream", "group")

KNOWN = Described("headrace_stream_depth_known", "1 if the group's depth is known.", LABELS)
UNDELIVERED = Described(
    "headrace_stream_undelivered_entries",
    "Entries not yet delivered to the group; absent if unknown.",
    LABELS,
)
PENDING = Described("headrace_stream_pending_entries", "Entries delivered to the group and not acknowledged.", LABELS)
OLDEST_UNDELIVERED = Described(
    "headrace_stream_oldest_undelivered_age_seconds",
    "Age of the oldest undelivered entry; absent if there is none.",
    LABELS,
    aged=True,
)
OLDEST_PENDING = Described(
    "headrace_stream_oldest_pending_age_seconds",
    "Age of the oldest pending entry; absent if there is none.",
    LABELS,
    aged=True,
)
STREAMS = (KNOWN, UNDELIVERED, PENDING, OLDEST_UNDELIVERED, OLDEST_PENDING)


@dataclass(frozen=True)
class Streams:
    """Reads the depth of stream groups from their server, which may differ from Headrace's own."""

    connect: Callable[[], Valkey]
    groups: Sequence[tuple[str, str]]  # stream, group

    def read(self) -> list[Family]:
        """Build the families of all groups. A stream that cannot be read is reported as unknown."""
        families = {described.name: Family(described) for described in STREAMS}
        with self.connect() as client:
            for stream, group in dict.fromkeys(self.groups):
                depth = _depth(client, stream, group)
                families[KNOWN.name].add(float(depth is not None and depth.undelivered is not None), stream, group)
                if depth is not None:
                    _tell(families, depth)
        return list(families.values())


def _depth(client: Valkey, stream: str, group: str) -> Depth | None:
    try:
        return read_depth(client, stream, group)
    except HeadraceError:
        return None


def _tell(families: dict[str, Family], depth: Depth) -> None:
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
