"""Memory layer of a spool: records that are not on disk yet, and copies of recently written ones, which can be leased
without reading the disk.

Records are numbered in the order in which they were put (*sequence number*). The records that are only on disk have the
lowest numbers; the copies follow, then the records that are not written yet. A record in memory is called a *block*. A
record is *finished* when it leaves the spool: acked, dropped, rejected (dead), corrupt, or replaced by several others.
If it is finished before it is written, its number becomes *void*: the segment stores that there is no record with this
number, and the record's marks.

Not thread-safe: the caller holds the spool's lock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from headrace.spool.record import HEADER_BYTES, Pairs, RecordPart, pack_extras
from headrace.spool.segment import Segment


class BufferedRecord:
    """A record in memory, whether or not it is on disk as well."""

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
        self.sequence = 0  # set by SpoolState.append
        self.payload = payload
        self.token = token  # deduplication token, passed to the destination
        self.meta = meta  # small key-value data for the destination
        self.marks = marks  # key-value data that the spool keeps after the record is gone, such as a reader's position
        self.put_at = put_at  # unix time in seconds
        self.durable = durable  # the put returns when the record is on disk; it is not leased before
        self.part = part  # which part of a replaced record this is; None: it replaces none
        self.place = place  # position in the order, for a part that of the replaced record; None: its own number
        self.end = 0  # NoteKind that finished the record; 0: unfinished
        self.target_segment: Segment | None = None  # segment to which it is being written; notes already go there
        self.extras = pack_extras(token, meta, marks, part)  # the encoded fields beside the payload
        self.charge = HEADER_BYTES + len(self.extras) + len(payload)  # bytes counted towards the spool's limits


class MemoryLayer:
    """The unwritten records of a spool (`blocks`), and copies of the newest written ones (`recent`).

    `max_blocks` and `max_bytes` apply to each of the two: more unwritten records make a put wait for the disk, more
    copies are discarded, oldest first.
    """

    def __init__(self, max_blocks: int, max_bytes: int) -> None:
        self.blocks: dict[int, BufferedRecord] = {}  # unwritten and unfinished, by number, ascending
        self.bytes = 0  # sum of their charges
        self.fresh: deque[int] = deque()  # numbers of unwritten records that were never leased; may include finished
        self.recent: OrderedDict[int, BufferedRecord] = OrderedDict()  # written and unfinished, by number, ascending
        self.void_marks: dict[int, Pairs] = {}  # marks of records that were finished before they were written
        self._recent_bytes = 0  # sum of the charges in `recent`
        self._max_blocks = max_blocks
        self._max_bytes = max_bytes

    @property
    def is_over_limit(self) -> bool:
        """Return True if there are too many unwritten records, or too many bytes of them."""
        return len(self.blocks) > self._max_blocks or self.bytes > self._max_bytes

    def find_next_fresh(self) -> BufferedRecord | None:
        """Return the oldest unwritten record that was never leased; None if there is none."""
        while self.fresh:
            block = self.blocks.get(self.fresh[0])
            if block is not None:
                return block
            self.fresh.popleft()
        return None

    def find(self, sequence: int) -> BufferedRecord | None:
        """Return the record with this number; None if it is not in memory."""
        return self.blocks.get(sequence) or self.recent.get(sequence)

    def finish(self, sequence: int, kind: int) -> BufferedRecord:
        """Finish an unwritten record and return it. `kind` is the NoteKind of its end.

        On disk its number will be void, with the record's marks. If it is just being written, its end is noted in the
        journal instead.
        """
        block = self.blocks.pop(sequence)
        self.bytes -= block.charge
        block.end = kind
        if block.target_segment is not None:
            block.target_segment.journal.note(kind, sequence)
        if block.marks:
            self.void_marks[sequence] = block.marks
        return block

    def drop_recent(self, sequence: int) -> None:
        """Discard the copy of a written record, if there is one."""
        block = self.recent.pop(sequence, None)
        if block is not None:
            self._recent_bytes -= block.charge

    def next_chunk(self, room: int) -> list[BufferedRecord]:
        """Return the oldest unwritten records that fit into `room` bytes, but at least one if there is any. The parts
        of one record stay together, even if they do not fit."""
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
        """Move records to `recent`, because every number up to `last` is now on disk. `blocks` are the records of the
        batch that was written."""
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
