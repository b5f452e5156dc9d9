"""Offsets of the pipeline in the stream of each shard.

An offset names the last entry that was read: its id, and the shard's event number in that entry. Spark compares offsets
as JSON text, so their keys are always in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from headrace.model.entry_id import EntryId


class ShardOffset(TypedDict):
    id: str
    seq: int


Offsets = dict[str, ShardOffset]

BEGINNING: ShardOffset = {"id": "0-0", "seq": 0}


def sort_by_shard(offsets: Offsets) -> Offsets:
    return {shard: offsets[shard] for shard in sorted(offsets, key=int)}


def parse_position(offset: ShardOffset) -> EntryId:
    return EntryId.parse(offset["id"])


@dataclass(frozen=True)
class StreamRange:
    """Entries after `start` up to and including `end`."""

    shard: int
    start: ShardOffset
    end: ShardOffset

    @property
    def events(self) -> int:
        return self.end["seq"] - self.start["seq"]


def find_ranges(start: Offsets, end: Offsets) -> list[StreamRange]:
    """Return one range per shard that advanced. A shard that is not in `start` is read from its beginning."""
    return [
        StreamRange(int(shard), start.get(shard, BEGINNING), last)
        for shard, last in end.items()
        if last["id"] != start.get(shard, BEGINNING)["id"]
    ]
