"""Memory layer of a spool: records that are not on disk yet, and recently written ones that need no reading.

Sequence numbers are ordered, and every record here is younger than those that are only on disk. Not thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from headrace.spool.record import HEADER_BYTES, Pairs, RecordPart, pack_extras
from headrace.spool.segment import Segment


class BufferedRecord:
    """A record in memory, written to disk or not."""

    __slots__ = (
        "charge",
        "durable",
        "end",
        "extras",
        "marks",
        "meta",
        "part",
        "payload",
        "place",
        "put_at",
        "sequence",
        "target_segment",
        "token",
    )

    def __init__(
        self,
        payload: bytes,
        token: str,
        meta: Pairs,
        marks: Pairs,
        put_at: float,
        durable: bool,
        part: RecordPart | None = None,
        place: int | None = None,
    ) -> None:
        self.sequence = 0
        self.payload = payload
        self.token = token
        self.meta = meta
        self.marks = marks
        self.put_at = put_at
        self.durable = durable  # a caller waits until it is on disk; it is not leased before
        self.part = part
        self.place = place  # position in the order; None: its own sequence number
        self.end = 0  # NoteKind of its end, once it is finished
        self.target_segment: Segment | None = None  # set while it is being written: notes about it go there already
        self.extras = pack_extras(token, meta, marks, part)
        self.charge = HEADER_BYTES + len(self.extras) + len(payload)


class MemoryLayer:
    def __init__(self, max_blocks: int, max_bytes: int) -> None:
        self.blocks: dict[int, BufferedRecord] = {}  # not on disk, unfinished, in order
        self.bytes = 0
        self.fresh: deque[int] = deque()  # of these, those never leased; may contain finished ones
        self.recent: OrderedDict[int, BufferedRecord] = OrderedDict()  # on disk as well, unfinished, in order
        self.void_marks: dict[int, Pairs] = {}  # marks of records that were finished before they were written
        self._recent_bytes = 0
        self._max_blocks = max_blocks
        self._max_bytes = max_bytes

    @property
    def is_over_limit(self) -> bool:
        return len(self.blocks) > self._max_blocks or self.bytes > self._max_bytes

    def find_next_fresh(self) -> BufferedRecord | None:
        while self.fresh:
            block = self.blocks.get(self.fresh[0])
            if block is not None:
                return block
            self.fresh.popleft()
        return None

    def find(self, sequence: int) -> BufferedRecord | None:
        return self.blocks.get(sequence) or self.recent.get(sequence)

    def finish(self, sequence: int, kind: int) -> BufferedRecord:
        """Finish a record before it is written: on disk its number will be void, but its marks are kept."""
        block = self.blocks.pop(sequence)
        self.bytes -= block.charge
        block.end = kind
        if block.target_segment is not None:
            block.target_segment.journal.note(kind, sequence)
        if block.marks:
            self.void_marks[sequence] = block.marks
        return block

    def drop_recent(self, sequence: int) -> None:
        block = self.recent.pop(sequence, None)
        if block is not None:
            self._recent_bytes -= block.charge

    def next_chunk(self, room: int) -> list[BufferedRecord]:
        """Return the oldest records that fit into `room` bytes, at least one. The parts of one record stay together."""
        if self.bytes <= room:
            return list(self.blocks.values())
        taken: list[BufferedRecord] = []
        for block in self.blocks.values():
            same = taken and block.part is not None and taken[-1].part is not None
            if taken and room < block.charge and not (same and block.place == taken[-1].place):
                break
            room -= block.charge
            taken.append(block)
        return taken

    def mark_written(self, blocks: Iterable[BufferedRecord], last: int) -> None:
        """Move written records to `recent`, which keeps the newest within its limits."""
        if next(reversed(self.blocks), 0) <= last:
            self.recent.update(self.blocks)
            self._recent_bytes += self.bytes
            self.bytes = 0
            self.blocks.clear()
            self.fresh.clear()
        else:
            self._move_to_recent(blocks)
            while self.fresh and self.fresh[0] <= last:
                self.fresh.popleft()
        if self.void_marks:
            self.void_marks = {each: marks for each, marks in self.void_marks.items() if each > last}
        excess = len(self.recent) - self._max_blocks
        while self.recent and (excess > 0 or self._recent_bytes > self._max_bytes):
            self._recent_bytes -= self.recent.popitem(last=False)[1].charge
            excess -= 1

    def _move_to_recent(self, blocks: Iterable[BufferedRecord]) -> None:
        for block in blocks:
            if self.blocks.pop(block.sequence, None) is not None:
                self.recent[block.sequence] = block
                self.bytes -= block.charge
                self._recent_bytes += block.charge
