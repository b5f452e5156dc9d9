"""Families of watched streams: what each group has yet to do, or that nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.snapshot.families import Described, Family
from headrace.streams.depth import Depth, read_depth
from headrace.valkey.connect import Valkey

LABELS = ("stream", "group")

KNOWN = Described("headrace_stream_depth_known", "1 if it is known what a group of a stream has yet to do.", LABELS)
UNDELIVERED = Described(
    "headrace_stream_undelivered_entries",
    "Entries that a group was not given yet; absent while that is unknown.",
    LABELS,
)
PENDING = Described(
    "headrace_stream_pending_entries", "Entries that a group was given and has not acknowledged.", LABELS
)
OLDEST_UNDELIVERED = Described(
    "headrace_stream_oldest_undelivered_age_seconds",
    "How long ago the oldest undelivered entry was added; absent while there is none.",
    LABELS,
    aged=True,
)
OLDEST_PENDING = Described(
    "headrace_stream_oldest_pending_age_seconds",
    "How long ago the oldest pending entry was added; absent while there is none.",
    LABELS,
    aged=True,
)
STREAMS = (KNOWN, UNDELIVERED, PENDING, OLDEST_UNDELIVERED, OLDEST_PENDING)


@dataclass(frozen=True)
class Streams:
    """The groups to read, and their server, which may be another than Headrace's own."""

    connect: Callable[[], Valkey]
    groups: Sequence[tuple[str, str]]  # stream, group

    def read(self) -> list[Family]:
        """Never fails for a stream's sake: one that cannot be read is not known."""
        found = {described.name: Family(described) for described in STREAMS}
        with self.connect() as client:
            for stream, group in dict.fromkeys(self.groups):
                depth = _depth(client, stream, group)
                found[KNOWN.name].add(float(depth is not None and depth.undelivered is not None), stream, group)
                if depth is not None:
                    _tell(found, depth)
        return list(found.values())


def _depth(client: Valkey, stream: str, group: str) -> Depth | None:
    try:
        return read_depth(client, stream, group)
    except HeadraceError:
        return None


def _tell(found: dict[str, Family], depth: Depth) -> None:
    labels = (depth.stream, depth.group)
    found[PENDING.name].add(depth.pending, *labels)
    if depth.undelivered is not None:
        found[UNDELIVERED.name].add(depth.undelivered, *labels)
    for described, at_ms in (
        (OLDEST_UNDELIVERED, depth.oldest_undelivered_ms),
        (OLDEST_PENDING, depth.oldest_pending_ms),
    ):
        if at_ms is not None:
            found[described.name].add(at_ms / 1000, *labels)
