"""Look up positions in a stream: the newest entry, the entry of an event number, the position of a group.

Each function needs only a few lookups of a few entries, however long the stream is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar, cast

from headrace.errors import QueueUnavailable
from headrace.model.entry_id import EntryId
from headrace.pipeline.decode import parse_seq
from headrace.pipeline.offsets import BEGINNING, Offsets, ShardOffset, StreamRange, parse_position, sort_by_shard
from headrace.queue import keys
from headrace.valkey import streams
from headrace.valkey.connect import Valkey, translate_errors
from headrace.valkey.streams import StreamEntry

PAUSES_S = (0.1, 0.5, 1.0, 2.0)
MAX_PIECES = 64  # per range, even if its event numbers are wrong
NEIGHBOURS = 10  # entries read to find an event number, because a few may be unreadable

Result = TypeVar("Result")


def retry_while_unavailable(call: Callable[[], Result]) -> Result:
    """Call `call`, retrying after each of PAUSES_S while Valkey is unavailable. Only for idempotent calls. Raises
    QueueUnavailable."""
    for pause_s in PAUSES_S:
        try:
            with translate_errors():
                return call()
        except QueueUnavailable:
            time.sleep(pause_s)
    with translate_errors():
        return call()


def read_shard_count(client: Valkey) -> int:
    """Return the number of shards stored in Valkey; 0 before the first client connected."""
    return int(cast(bytes | None, client.get(keys.SHARDS)) or 0)


def read_newest_after(client: Valkey, shard: int, start: ShardOffset) -> ShardOffset:
    """Return the newest entry; `start` if there is none after it. If the stream went back in time (Valkey lost its last
    second), its ids follow the clock and soon pass what was read."""
    entries = streams.read_newest_entries(client, keys.metrics(shard), NEIGHBOURS)
    if not entries or EntryId.parse(entries[0][0].decode()) <= parse_position(start):
        return start
    return {"id": entries[0][0].decode(), "seq": _parse_first_seq(entries, start["seq"])}


def find_entry_at(client: Valkey, shard: int, seq: int, low: ShardOffset, high: ShardOffset) -> ShardOffset:
    """Return the first entry of the first millisecond that reaches event number `seq`. Bisecting the time takes about
    thirty lookups, instead of reading the whole stream."""
    low_ms, high_ms = parse_position(low).ms, parse_position(high).ms
    while low_ms < high_ms:
        middle = (low_ms + high_ms) // 2
        found = _find_offset_from(client, shard, middle, high)
        if found["seq"] >= seq:
            high_ms = middle
        else:
            low_ms = parse_position(found).ms + 1
    return _find_offset_from(client, shard, low_ms, high)


def split_range(client: Valkey, whole: StreamRange, most: int) -> list[StreamRange]:
    """Split a range into ranges of at most about `most` events."""
    pieces = min(max(1, -(-whole.events // most)), MAX_PIECES)
    marks = [whole.start]
    for number in range(1, pieces):
        seq = whole.start["seq"] + whole.events * number // pieces
        found = find_entry_at(client, whole.shard, seq, whole.start, whole.end)
        if parse_position(marks[-1]) < parse_position(found) < parse_position(whole.end):
            marks.append(found)
    return [StreamRange(whole.shard, start, end) for start, end in pairwise([*marks, whole.end])]


def read_newest_offsets(client: Valkey, shards: int) -> Offsets:
    return {str(shard): read_newest_after(client, shard, BEGINNING) for shard in range(shards)}


def read_group_offsets(client: Valkey, group: str, shards: int) -> Offsets:
    """Return the position of a group in each shard; the beginning of a shard that it never read."""
    return sort_by_shard({str(shard): _read_group_offset(client, group, shard) for shard in range(shards)})


def _read_group_offset(client: Valkey, group: str, shard: int) -> ShardOffset:
    stream = keys.metrics(shard)
    entry_id = streams.read_group_position(client, stream, group)
    if entry_id is None or entry_id == BEGINNING["id"]:
        return BEGINNING
    anchor = streams.read_first_entry_from(client, stream, entry_id)
    seq = None if anchor is None else parse_seq(anchor)
    if anchor is None or seq is None:
        return {"id": entry_id, "seq": 0}
    return {"id": entry_id, "seq": seq if anchor[0].decode() == entry_id else seq - 1}


def _find_offset_from(client: Valkey, shard: int, at_ms: int, otherwise: ShardOffset) -> ShardOffset:
    entries = streams.read_entries_from(client, keys.metrics(shard), f"{at_ms}-0", NEIGHBOURS)
    if not entries:  # trimmed in the meantime
        return otherwise
    return {"id": entries[0][0].decode(), "seq": _parse_first_seq(entries, otherwise["seq"])}


def _parse_first_seq(entries: Sequence[StreamEntry], otherwise: int) -> int:
    return next((seq for entry in entries if (seq := parse_seq(entry)) is not None), otherwise)
