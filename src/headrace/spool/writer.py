"""Write records from memory to disk: one thread writes, the others wait for it and share its fsync.

A batch is written to one segment, synced if necessary, and only then removed from memory. If anything fails in between,
the segment is truncated to its previous size and the batch stays in memory. After a failed fsync, the kernel may have
discarded pages although it still returns their content. The segment is then read again through a new handle, unreadable
records are counted and quarantined, and the next batch is written to a new segment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.spool.files import is_no_space
from headrace.spool.journal import NoteKind, encode_note
from headrace.spool.memory import BufferedRecord
from headrace.spool.record import PART, Pairs, encode_onto, encode_void, merge_marks
from headrace.spool.scan import UnreadableRange
from headrace.spool.segment import Segment
from headrace.spool.state import SpoolState
from headrace.spool.store import SegmentStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WriteBatch:
    """The next records to write, and every sequence number from `first` to `last`; numbers without a record become
    void."""

    first: int
    last: int
    blocks: list[BufferedRecord]
    void_marks: dict[int, Pairs]  # marks of numbers without a record

    def collect_marks(self) -> dict[str, str]:
        """Return the newest value of every mark in the batch."""
        found = [*self.void_marks.items(), *((block.sequence, block.marks) for block in self.blocks if block.marks)]
        return merge_marks(marks for _, marks in sorted(found, key=lambda each: each[0]))


@dataclass(frozen=True)
class EncodedBatch:
    pieces: list[bytes]
    offsets: list[int]  # of the records
    lengths: list[int]
    end: int


class SpoolWriter:
    """Writes the memory layer to segments. Its own state, too, is guarded by the spool's lock."""

    def __init__(self, state: SpoolState, store: SegmentStore) -> None:
        self.write_ended = threading.Condition(state.lock)  # notified when a write ended, successful or not
        self.failures = 0
        self.failure: OSError | None = None
        self.waiters = 0  # waiting durable puts
        self.on_damage: Callable[[Segment, UnreadableRange], None] = lambda segment, hole: None
        self.rotate_first = False
        self._state = state
        self._store = store
        self._memory = state.memory
        self._numbers = state.numbers
        self._lock = state.lock
        self._busy = False
        self._last_group = 1

    def write_until(self, done: Callable[[], bool], *, sync: bool) -> OSError | None:
        """Block until `done()` is true, writing in this thread if no other thread is. Return None, or the error of a
        write that failed meanwhile."""
        with self._lock:
            seen = self.failures
            self.waiters += 1
            try:
                while not done():
                    if self.failures != seen:
                        return self.failure
                    if self._busy:
                        self.write_ended.wait()
                    else:
                        self._write_as_leader(sync)
            finally:
                self.waiters -= 1
        return None

    def _write_as_leader(self, sync: bool) -> None:
        """Write every record numbered so far, as the only writing thread. Call with the lock held; it is released
        during I/O."""
        self._busy = True
        try:
            self._wait_for_group()
            target = self._numbers.next - 1
            self._last_group = self.waiters
            while self._numbers.written < target or (sync and self._numbers.synced < target):
                self._lock.release()
                try:
                    self._write_some(sync)
                finally:
                    self._lock.acquire()
            self.failure = None
        except OSError as error:
            self.failures += 1
            self.failure = error
            self._state.ledger.last_error = str(error)
            if is_no_space(error):
                self._state.ledger.disk_full += 1
            else:
                self._state.ledger.write_errors += 1
        finally:
            self._busy = False
            self.write_ended.notify_all()

    def _wait_for_group(self) -> None:
        """Wait up to `group_ms` for as many durable puts as shared the last fsync. No wait if that was one."""
        if self._state.options.sync == "group" and self._last_group > 1 and self.waiters < self._last_group:
            self.write_ended.wait_for(lambda: self.waiters >= self._last_group, self._state.options.group_ms / 1000)

    def _write_some(self, sync: bool) -> None:
        """Write one batch, switch to a new segment, or sync, whichever is needed next."""
        with self._lock:
            segment = self._store.active
            behind = self._numbers.written < self._numbers.next - 1
            batch = self._next_batch(segment) if segment is not None and behind else None
            rotate = segment is None or self.rotate_first or (behind and batch is None)
        if rotate:
            self._rotate(segment)
        elif segment is not None and batch is not None:
            self._write(segment, batch, sync)
        elif segment is not None:
            self._sync(segment)

    def _next_batch(self, segment: Segment) -> WriteBatch | None:
        """Return the next batch for this segment; None if it does not fit into it any more."""
        room = self._state.options.segment_size - segment.size
        blocks = self._memory.next_chunk(room)
        too_large = bool(blocks) and blocks[0].charge > room
        if room <= 0 or (too_large and segment.size > segment.start):
            return None
        last = self._numbers.next - 1
        if len(blocks) < len(self._memory.blocks):
            last = blocks[-1].sequence
        void_marks = {each: marks for each, marks in self._memory.void_marks.items() if each <= last}
        # Before the records are written, so that a kill in between does not lose the leases.
        self._note_leases(NoteKind.LEASED, segment, blocks)
        for block in blocks:
            block.target_segment = segment
        return WriteBatch(self._numbers.written + 1, last, blocks, void_marks)

    def _rotate(self, segment: Segment | None) -> None:
        """Switch to a new segment. The old one is synced first, because a later segment means that it is on disk."""
        if segment is not None:
            self._sync(segment)
        with self._lock:
            base, marks, reserved = self._numbers.written + 1, dict(self._state.marks), self._numbers.reserved
        created = self._store.open_segment(base, marks, reserved, use_ballast=self.rotate_first)
        with self._lock:
            self._state.finished_segments += self._store.adopt(created)
            self.rotate_first = False

    def _write(self, segment: Segment, batch: WriteBatch, sync: bool) -> None:
        encoded = self._encode(segment, batch)
        try:
            self._append(segment, encoded)
            if sync:
                self._sync_file(segment)
        except OSError:
            with self._lock:
                self._note_leases(NoteKind.RELEASED, segment, batch.blocks)  # noted again with the next write
                for block in batch.blocks:
                    block.target_segment = None
            raise
        with self._lock:
            self._commit_batch(segment, batch, encoded, sync)

    def _note_leases(self, kind: NoteKind, segment: Segment, blocks: Sequence[BufferedRecord]) -> None:
        """Note the leases of records that were leased from memory."""
        state = self._state
        if not (state.in_flight or state.leases):
            return
        notes = [
            encode_note(segment.salt, kind, each.sequence) for each in blocks for _ in range(state.count_leases(each))
        ]
        if notes:
            segment.journal.write(b"".join(notes))

    def _append(self, segment: Segment, encoded: EncodedBatch) -> None:
        try:
            segment.append(encoded.pieces, encoded.end - segment.size, self._state.options.write_buffer)
        except OSError:
            if not segment.truncate_tail():
                self._abandon(segment)
            raise

    def _encode(self, segment: Segment, batch: WriteBatch) -> EncodedBatch:
        salt, durable = segment.salt, self._numbers.synced
        compress = self._state.options.compression == "snappy"
        pieces: list[bytes] = []
        offsets: list[int] = []
        lengths: list[int] = []
        at, expected = segment.size, batch.first
        for block in batch.blocks:
            sequence = block.sequence
            if sequence > expected:
                pieces.append(_encode_void_range(salt, expected, sequence - 1, durable, batch.void_marks))
                at += len(pieces[-1])
            put_at_us, flags = int(block.put_at * 1e6), PART if block.part else 0
            length = encode_onto(
                *(pieces, salt, sequence, block.payload, put_at_us, durable),
                *(block.place, block.extras, flags, compress),
            )
            offsets.append(at)
            lengths.append(length)
            at += length
            expected = sequence + 1
        if expected <= batch.last:
            pieces.append(_encode_void_range(salt, expected, batch.last, durable, batch.void_marks))
            at += len(pieces[-1])
        return EncodedBatch(pieces, offsets, lengths, at)

    def _commit_batch(self, segment: Segment, batch: WriteBatch, encoded: EncodedBatch, sync: bool) -> None:
        """Add a written batch to the segment's index and release it from the memory layer. Call with the lock held."""
        blocks = batch.blocks
        if blocks and blocks[-1].sequence - blocks[0].sequence == len(blocks) - 1:
            charges = [block.charge for block in blocks]
            segment.add_run(blocks[0].sequence, encoded.offsets, encoded.lengths, charges)
        else:
            for block, at, length in zip(blocks, encoded.offsets, encoded.lengths, strict=True):
                segment.add(block.sequence, at, length, block.charge)
        for block in blocks:
            if block.end:  # finished while it was being written
                segment.mark_done(cast(int, segment.find_index(block.sequence)))
        self._state.move_to_segment(segment, blocks)
        segment.last = batch.last
        segment.size = encoded.end
        self._numbers.written = batch.last
        self._state.marks.update(batch.collect_marks())
        self._memory.mark_written(batch.blocks, batch.last)
        self._state.ledger.flushes += 1
        if sync:
            self._numbers.synced = batch.last
            segment.journal.note(NoteKind.DURABLE, batch.last)

    def _sync(self, segment: Segment) -> None:
        """Sync a segment and note up to where its records are durable."""
        written = self._numbers.written
        self._sync_file(segment)
        with self._lock:
            self._numbers.synced = max(self._numbers.synced, written)
            segment.journal.note(NoteKind.DURABLE, min(segment.last, written))

    def _sync_file(self, segment: Segment) -> None:
        try:
            self._store.sync(segment)
        except OSError:
            segment.truncate_tail()
            self._abandon(segment)
            for hole in self._store.rescan(segment):
                self.on_damage(segment, hole)
            raise

    def _abandon(self, segment: Segment) -> None:
        """Stop writing to a segment. If its tail cannot be truncated, the base of the next segment says which records
        count."""
        segment.stop_writing()
        with self._lock:
            self._store.active = None


def _encode_void_range(salt: int, first: int, last: int, durable: int, void_marks: dict[int, Pairs]) -> bytes:
    marks = merge_marks(void_marks[each] for each in sorted(void_marks) if first <= each <= last)
    return encode_void(salt, first, last, durable=durable, marks=marks)
