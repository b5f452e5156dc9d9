"""The queue in memory: which records exist, where each is, and the counters. All of it is guarded by the spool's lock.

A record waits in memory, in its segment's own order or among the requeued records; or it is in flight. `remove_waiting`
and `lease` move it from waiting to flight, `requeue` back, `finish` ends it. Nothing here takes the lock: the caller
holds it. Nothing waits or reads a payload; journals are written, because a note must not come late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from headrace.errors import UnknownRecord
from headrace.spool.journal import ACKED, LEASED, Kind
from headrace.spool.ledger import Ledger
from headrace.spool.memory import Block, Memory
from headrace.spool.options import SpoolOptions
from headrace.spool.order import Place, Returned
from headrace.spool.record import HEADER_BYTES, decode_head
from headrace.spool.recovery import Recovered
from headrace.spool.segment import Segment
from headrace.spool.store import Doomed, Store


@dataclass
class Numbers:
    """Highest sequence numbers by state."""

    next: int  # the next record's number
    written: int  # every number up to this one is in a segment, or void
    synced: int  # every number up to this one is on disk
    reserved: int  # numbers up to this one are never used again, even after a crash


class State:
    def __init__(self, options: SpoolOptions, found: Recovered, store: Store | None) -> None:
        self.options = options
        self.store = store
        self.lock = threading.Lock()
        self.arrived = threading.Condition(self.lock)  # notified when a record may be leased
        self.leasers = 0  # threads waiting for `arrived`; notifying without a waiter costs as much as a put
        self.room = threading.Condition(self.lock)  # notified when a record was finished
        self.blocked = 0  # threads waiting for `room`
        self.closed = False
        last = found.next_sequence - 1
        self.numbers = Numbers(found.next_sequence, written=last, synced=last, reserved=last)
        self.ledger = Ledger()
        self.memory = Memory(options.inmemory_blocks, options.inmemory_bytes)
        self.memory_since = 0.0  # when the oldest record in memory was put
        self.returned = Returned()
        self.places = found.places
        self.leases = found.leases  # earlier leases of each unfinished record; 0 if absent
        self.flight: dict[int, Segment | None] = {}  # leased records and their segments; None: in memory
        self.marks = found.marks
        self.doomed: list[Doomed] = []  # finished segments, to be removed without the lock held
        self._oldest: tuple[int, float | None] = (-1, None)
        self._count(found)

    def _count(self, found: Recovered) -> None:
        for segment in found.segments:
            self.ledger.found(segment.live, segment.live_charge())
        for sequence, place in found.places.items():
            self.returned.add((place, sequence))
        self.ledger.lost_before(found.corrupt)
        self.ledger.quarantined = found.quarantined
        self.ledger.torn = found.torn
        self.ledger.damaged_notes = found.damaged_notes

    # Order

    def append(self, blocks: Sequence[Block], charge: int) -> int:
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

    def next_ready(self, now: float) -> int | None:
        """Return the oldest record that may be leased now, or None."""
        place = self.returned.ready(now) if self.returned else None
        fresh = self._next_in_order()
        if place is None or (fresh is not None and fresh < place):
            place = fresh
        return None if place is None else place[1]

    def oldest_waiting(self) -> int | None:
        """Return the oldest record that is not in flight, delayed or not; None if there is none."""
        waiting = [place for place in (self.returned.oldest(), self._next_in_order()) if place is not None]
        return min(waiting)[1] if waiting else None

    def _next_in_order(self) -> Place | None:
        """Return the oldest record that was never leased, disk before memory. A durable record in memory does not
        count."""
        if self.store is not None:
            found = self.store.next_fresh()
            if found is not None:
                sequence = found[0].sequence_at(found[1])
                return sequence, sequence
        block = self.memory.next_fresh()
        if block is None or (block.durable and self.store is not None):
            return None
        return block.sequence, block.sequence

    # Leasing and returning

    def take(self, sequence: int) -> Segment | None:
        """Remove a record from the waiting order. Return its segment, or None if it is in memory."""
        if sequence in self.returned:
            self.returned.remove(sequence)
        elif self.memory.fresh and self.memory.fresh[0] == sequence:
            self.memory.fresh.popleft()
        if self.store is None or sequence in self.memory.blocks:
            return None
        segment = cast(Segment, self.store.segment_of(sequence))
        segment.take(cast(int, segment.index_of(sequence)))
        return segment

    def lease(self, sequence: int, segment: Segment | None) -> int:
        """Mark a record as in flight and note it in the journal. Return how often it was leased before."""
        attempts = self.leases.get(sequence, 0) if self.leases else 0
        self.flight[sequence] = segment
        if attempts:
            self.ledger.retries += 1
        if segment is not None:
            segment.journal.note(LEASED, sequence)
        else:
            self.note(LEASED, sequence, None)
        return attempts

    def land(self, id: int) -> Segment | None:
        """Remove a record from the in-flight map. Return its segment, or None if it is in memory. Raises UnknownRecord
        if it is not in flight."""
        try:
            return self.flight.pop(id)
        except KeyError:
            raise UnknownRecord() from None

    def come_back(self, id: int, delay: float) -> None:
        """Let a record wait in its position again, after `delay` seconds."""
        place = (self.places.get(id, id), id)
        self.returned.add(place, time.monotonic() + delay if delay > 0 else None)
        self.arrived.notify()

    def note(self, kind: Kind, sequence: int, segment: Segment | None) -> None:
        """Note something about a record in the journal. A record in memory has none, unless it is being written now."""
        if segment is None and self.store is not None:
            segment = self.memory.blocks[sequence].home
        if segment is not None:
            segment.journal.note(kind, sequence)

    # Finishing

    def finish(self, sequence: int, segment: Segment | None, kind: Kind, reason: str = "") -> None:
        self.ledger.end(kind, self.forget(sequence, segment, kind), reason)
        if self.blocked:
            self.room.notify_all()

    def forget(self, sequence: int, segment: Segment | None, kind: Kind) -> int:
        """Mark a record as finished. Return its charge in bytes."""
        if self.leases:
            self.leases.pop(sequence, None)
        if self.places:
            self.places.pop(sequence, None)
        if segment is None:
            return self.memory.finish(sequence, kind).charge
        charge = segment.end(cast(int, segment.index_of(sequence)))
        segment.journal.note(kind, sequence)
        if self.memory.recent:
            self.memory.forget_recent(sequence)
        if not segment.live:
            self.forget_if_finished(segment)
        return charge

    def ack_run(self, ids: Sequence[int], at: int) -> int:
        """Ack consecutive records in flight from `ids[at]` on, with one note. Return how many."""
        first = ids[at]
        segment = self.flight[first]
        if segment is None:
            self.finish(first, self.land(first), ACKED)
            return 1
        count = self._neighbours(ids, at, segment)
        numbers = range(first, first + count)
        for id in numbers:
            del self.flight[id]
        if self.leases or self.places or self.memory.recent:
            for id in numbers:
                self.leases.pop(id, None)
                self.places.pop(id, None)
                self.memory.forget_recent(id)
        self.ledger.ack(count, segment.end_run(cast(int, segment.index_of(first)), count))
        segment.journal.note(ACKED, first, count)
        self.forget_if_finished(segment)
        return count

    def _neighbours(self, ids: Sequence[int], at: int, segment: Segment) -> int:
        """Count the ids from `at` on that are consecutive and in flight from this segment."""
        first, count = ids[at], len(ids) - at
        if (
            ids[-1] == first + count - 1
            and self.flight[ids[-1]] is segment
            and list(ids[at:]) == list(range(first, first + count))
        ):
            return count
        count = 1
        while at + count < len(ids) and ids[at + count] == first + count and self.flight[first + count] is segment:
            count += 1
        return count

    def forget_if_finished(self, segment: Segment) -> None:
        store = cast(Store, self.store)
        if not segment.live and segment is not store.active and segment is not store.segments[-1]:
            self.doomed += store.forget_finished(segment)

    def has_flight(self, segment: Segment) -> bool:
        return any(where is segment for where in self.flight.values())

    def take_part(self, sequence: int) -> None:
        """Remove a part from its segment's order: it waits in the position of the record it replaces."""
        segment = self.store.segment_of(sequence) if self.store is not None else None
        index = segment.index_of(sequence) if segment is not None else None
        if segment is not None and index is not None:
            segment.take(index)

    # From memory to disk

    def leases_of(self, block: Block) -> int:
        """Count the leases of a record in memory that its journal does not have yet."""
        if block.end:
            return 0
        return self.leases.get(block.sequence, 0) + (block.sequence in self.flight)

    def moved_to_disk(self, segment: Segment, blocks: Sequence[Block]) -> None:
        """Update the location of records in memory that were written to a segment."""
        if not (self.flight or self.returned):
            return
        for block in blocks:
            if block.sequence in self.flight:
                self.flight[block.sequence] = segment
            elif block.sequence not in self.returned:
                continue
            segment.take(cast(int, segment.index_of(block.sequence)))

    # Reading

    def oldest_put_at(self) -> float | None:
        found = self.store.oldest_live() if self.store is not None else None
        if found is None:
            block = next(iter(self.memory.blocks.values()), None)
            return block.put_at if block is not None else None
        segment, index = found
        sequence = segment.sequence_at(index)
        if self._oldest[0] != sequence:
            block = self.memory.recent.get(sequence)
            self._oldest = (sequence, block.put_at if block is not None else _put_at(segment, index))
        return self._oldest[1]


def _put_at(segment: Segment, index: int) -> float | None:
    try:
        head = decode_head(segment.read_bytes(segment.offsets[index], HEADER_BYTES), 0, segment.salt)
    except OSError:
        return None
    return head.put_at_us / 1e6 if head is not None else None
