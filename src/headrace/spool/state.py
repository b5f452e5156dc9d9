"""The queue in memory: which records exist, where each is, and the counters.

A record either waits (in memory, in its segment's own order, among the requeued or the held records) or is in flight.
`remove_waiting` and `lease` put a waiting record in flight, `requeue` makes it wait again, `finish` removes it.

All of it is guarded by the spool's lock. Nothing here takes the lock: the caller holds it. While it is held, nothing
may wait or read a payload; journal notes are written under it, because a note must precede what it describes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.errors import UnknownRecord
from headrace.spool.held import HeldRecords
from headrace.spool.journal import ACKED, LEASED, NoteKind
from headrace.spool.memory import BufferedRecord, MemoryLayer
from headrace.spool.options import SpoolOptions
from headrace.spool.recovery import RecoveryResult
from headrace.spool.requeued import OrderKey, RequeuedRecords
from headrace.spool.segment import Segment
from headrace.spool.store import FinishedSegment, SegmentStore


@dataclass
class SequencePositions:
    next: int  # the next record's number
    written: int  # every number up to this one is in a segment, or void
    synced: int  # every number up to this one is on disk
    reserved: int  # numbers up to this one are never used again, even after a crash


class SpoolState:
    def __init__(self, options: SpoolOptions, recovered: RecoveryResult, store: SegmentStore | None) -> None:
        self.options = options
        self.store = store
        self.lock = threading.Lock()
        self.arrived = threading.Condition(self.lock)  # notified when a record may be leased
        self.leasers = 0  # threads waiting for `arrived`; notifying without a waiter costs as much as a put
        self.room = threading.Condition(self.lock)  # notified when a record was finished
        self.blocked = 0  # threads waiting for `room`
        self.closed = False
        last = recovered.next_sequence - 1
        self.numbers = SequencePositions(recovered.next_sequence, written=last, synced=last, reserved=last)
        self.ledger = recovered.ledger
        self.memory = MemoryLayer(options.inmemory_blocks, options.inmemory_bytes)
        self.memory_since = 0.0  # when the oldest record in memory was put
        self.requeued = RequeuedRecords()
        self.held = HeldRecords(self._list_leased)
        self.places = recovered.places
        self.leases = recovered.leases  # earlier leases of each unfinished record; 0 if absent
        self.in_flight: dict[int, Segment | None] = {}  # leased records and their segments; None: in memory
        self.marks = recovered.marks
        self.finished_segments: list[FinishedSegment] = []  # finished segments, to be removed without the lock held
        self._oldest: tuple[int, float | None] = (-1, None)
        for segment in recovered.segments:
            self.ledger.count_recovered(segment.live, segment.sum_live_charges())
        for sequence, place in recovered.places.items():
            self.requeued.add((place, sequence))

    # Order

    def append(self, blocks: Sequence[BufferedRecord], charge: int) -> int:
        """Number the records and keep them in memory; the caller decides in which order they wait. Return the last
        number."""
        memory, sequence = self.memory, self.numbers.next
        if not memory.blocks:
            self.memory_since = time.monotonic()
        for block in blocks:
            block.sequence = sequence
            memory.blocks[sequence] = block
            sequence += 1
        memory.bytes += charge
        self.numbers.next = sequence
        return sequence - 1

    def find_next_ready(self, now: float) -> int | None:
        """Return the oldest record that may be leased now, or None."""
        place = self.find_next_returned(now)
        fresh = self._find_next_in_order()
        if place is None or (fresh is not None and fresh < place):
            place = fresh
        return None if place is None else place[1]

    def find_next_returned(self, now: float) -> OrderKey | None:
        """Return the oldest record outside its segment's order that may be leased now, or None."""
        place = self.requeued.next_ready(now) if self.requeued else None
        held = self.held.next_ready() if self.held else None
        if place is None or held is None:
            return place or held
        return min(place, held)

    def find_oldest_waiting(self) -> int | None:
        """Return the oldest record that is not in flight, delayed or not; None if there is none."""
        places = (self.requeued.find_oldest(), self.held.find_oldest(), self._find_next_in_order())
        return min((place for place in places if place is not None), default=(0, None))[1]

    def _list_leased(self) -> Iterator[OrderKey]:
        """Yield the positions of unfinished records that were leased before and are not held."""
        for sequence in (*self.in_flight, *self.requeued):
            yield self.places.get(sequence, sequence), sequence

    def _find_next_in_order(self) -> OrderKey | None:
        """Return the oldest record that was never leased, disk before memory. A durable record in memory does not
        count."""
        if self.store is not None:
            found = self.store.find_next_fresh()
            if found is not None:
                sequence = found[0].get_sequence(found[1])
                return sequence, sequence
        block = self.memory.find_next_fresh()
        if block is None or (block.durable and self.store is not None):
            return None
        return block.sequence, block.sequence

    # Leasing and returning

    def remove_waiting(self, sequence: int) -> Segment | None:
        """Remove a record from the waiting order. Return its segment, or None if it is in memory."""
        if sequence in self.requeued:
            self.requeued.remove(sequence)
        elif sequence in self.held:
            self.held.remove(sequence)
        elif self.memory.fresh and self.memory.fresh[0] == sequence:
            self.memory.fresh.popleft()
        if self.store is None or sequence in self.memory.blocks:
            return None
        segment = cast(Segment, self.store.find_segment(sequence))
        segment.mark_taken(cast(int, segment.find_index(sequence)))
        return segment

    def lease(self, sequence: int, segment: Segment | None) -> int:
        """Mark a record as in flight and note it in the journal. Return how often it was leased before."""
        attempts = self.leases.get(sequence, 0)
        self.in_flight[sequence] = segment
        if attempts:
            self.ledger.retries += 1
        self.note(LEASED, sequence, segment)
        return attempts

    def remove_in_flight(self, id: int) -> Segment | None:
        """Remove a record from the in-flight map. Return its segment, or None if it is in memory. Raises UnknownRecord
        if it is not in flight."""
        try:
            return self.in_flight.pop(id)
        except KeyError:
            raise UnknownRecord() from None

    def requeue(self, id: int, delay: float) -> None:
        """Let a record wait in its position again, after `delay` seconds."""
        place = (self.places.get(id, id), id)
        self.requeued.add(place, time.monotonic() + delay if delay > 0 else None)
        self.arrived.notify()

    def hold(self, id: int, holds_later: bool) -> bool:
        """Return a record in flight, untried, if an earlier record is unfinished; it waits until that is finished.
        Return False if there is none: the record stays in flight. Raises UnknownRecord if it is not in flight."""
        if id not in self.in_flight:
            raise UnknownRecord()
        place = (self.places.get(id, id), id)
        if self.held.declare(id, holds_later):
            self.arrived.notify_all()
        if not self.held.must_wait(place):
            return False
        self.note(NoteKind.RELEASED, id, self.remove_in_flight(id))
        self.held.add(place)
        return True

    def note(self, kind: NoteKind, sequence: int, segment: Segment | None) -> None:
        """Note something about a record in the journal. A record in memory has none, unless it is being written now."""
        if segment is None and self.store is not None:
            segment = self.memory.blocks[sequence].target_segment
        if segment is not None:
            segment.journal.note(kind, sequence)

    # Finishing

    def finish(self, sequence: int, segment: Segment | None, kind: NoteKind, reason: str = "") -> None:
        self.ledger.count_end(kind, self.mark_finished(sequence, segment, kind), reason)
        if self.blocked:
            self.room.notify_all()

    def mark_finished(self, sequence: int, segment: Segment | None, kind: NoteKind) -> int:
        """Mark a record as finished. Return its charge in bytes."""
        self.leases.pop(sequence, None)
        self.places.pop(sequence, None)
        if self.held.is_tracking and self.held.finish(sequence):
            self.arrived.notify_all()
        if segment is None:
            return self.memory.finish(sequence, kind).charge
        charge = segment.mark_done(cast(int, segment.find_index(sequence)))
        segment.journal.note(kind, sequence)
        self.memory.drop_recent(sequence)
        self.detach_if_finished(segment)
        return charge

    def finish_acked_run(self, ids: Sequence[int], at: int) -> int:
        """Ack consecutive records in flight from `ids[at]` on, with one note. Return how many."""
        first = ids[at]
        segment = self.in_flight[first]
        if segment is None:
            self.finish(first, self.remove_in_flight(first), ACKED)
            return 1
        count = self._count_consecutive(ids, at, segment)
        numbers = range(first, first + count)
        for id in numbers:
            del self.in_flight[id]
        if self.held.is_tracking and self.held.finish_run(numbers):
            self.arrived.notify_all()
        if self.leases or self.places or self.memory.recent:
            for id in numbers:
                self.leases.pop(id, None)
                self.places.pop(id, None)
                self.memory.drop_recent(id)
        self.ledger.count_acked(count, segment.mark_run_done(cast(int, segment.find_index(first)), count))
        segment.journal.note(ACKED, first, count)
        self.detach_if_finished(segment)
        return count

    def _count_consecutive(self, ids: Sequence[int], at: int, segment: Segment) -> int:
        """Count the ids from `at` on that are consecutive and in flight from this segment."""
        first, count = ids[at], len(ids) - at
        if (
            ids[-1] == first + count - 1
            and self.in_flight[ids[-1]] is segment
            and list(ids[at:]) == list(range(first, first + count))
        ):
            return count
        count = 1
        while at + count < len(ids) and ids[at + count] == first + count and self.in_flight[first + count] is segment:
            count += 1
        return count

    def detach_if_finished(self, segment: Segment) -> None:
        store = cast(SegmentStore, self.store)
        if not segment.live and segment is not store.active and segment is not store.segments[-1]:
            self.finished_segments += store.detach_finished(segment)

    def has_in_flight(self, segment: Segment) -> bool:
        return any(where is segment for where in self.in_flight.values())

    def remove_part(self, sequence: int) -> None:
        """Remove a part from its segment's order: it waits in the position of the record it replaces."""
        segment = self.store.find_segment(sequence) if self.store is not None else None
        index = segment.find_index(sequence) if segment is not None else None
        if segment is not None and index is not None:
            segment.mark_taken(index)

    # From memory to disk

    def count_leases(self, block: BufferedRecord) -> int:
        """Count the leases of a record in memory that its journal does not have yet."""
        if block.end:
            return 0
        return self.leases.get(block.sequence, 0) + (block.sequence in self.in_flight)

    def move_to_segment(self, segment: Segment, blocks: Sequence[BufferedRecord]) -> None:
        """Update the location of records in memory that were written to a segment."""
        if not (self.in_flight or self.requeued or self.held):
            return
        for block in blocks:
            if block.sequence in self.in_flight:
                self.in_flight[block.sequence] = segment
            elif block.sequence not in self.requeued and block.sequence not in self.held:
                continue
            segment.mark_taken(cast(int, segment.find_index(block.sequence)))

    # Reading

    def read_oldest_put_at(self) -> float | None:
        found = self.store.find_oldest_live() if self.store is not None else None
        if found is None:
            block = next(iter(self.memory.blocks.values()), None)
            return block.put_at if block is not None else None
        segment, index = found
        sequence = segment.get_sequence(index)
        if self._oldest[0] != sequence:
            block = self.memory.recent.get(sequence)
            self._oldest = (sequence, block.put_at if block is not None else segment.read_put_at(index))
        return self._oldest[1]
