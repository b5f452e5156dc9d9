"""Admit new records: make room according to `full_behavior`, keep them in memory, and write them to disk where needed.

A spool is full when its limits are reached or when the disk is full. Both are handled the same way: `block` waits,
`drop_newest` drops the new records, `drop_oldest` drops the oldest ones. On disk, that is the oldest segment without
records in flight, because space is freed by whole segments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

from headrace.errors import RecordTooLarge, SpoolClosed, SpoolDiskFull, SpoolFull, UnknownRecord
from headrace.spool.files import is_no_space, write_error
from headrace.spool.journal import Kind
from headrace.spool.memory import Block
from headrace.spool.record import MAX_LENGTH, NO_PAIRS, NewRecord, Part
from headrace.spool.state import State
from headrace.spool.store import Store
from headrace.spool.upkeep import Upkeep
from headrace.spool.writer import Writer

DROPPED = 0
"""Returned by `put` for a record that `drop_newest` dropped. No record has this id."""

RETRY_S = 0.25  # retry interval of a put that waits for disk space; it is woken earlier when records finish


class Admission:
    def __init__(self, state: State, writer: Writer | None, upkeep: Upkeep) -> None:
        self._state = state
        self._options = state.options
        self._max_size, self._max_bytes = state.options.max_size, state.options.max_bytes
        self._writer = writer
        self._upkeep = upkeep

    def put(self, blocks: Sequence[Block]) -> int:
        """Accept all records or none. Return the last one's sequence number, or DROPPED if the full behaviour dropped
        them.

        Raises RecordTooLarge, SpoolFull, SpoolDiskFull, SpoolWriteFailed or SpoolClosed; nothing was accepted then.
        """
        state, writer = self._state, self._writer
        count, durable = len(blocks), blocks[-1].durable
        charge = blocks[0].charge if count == 1 else sum([block.charge for block in blocks])
        if charge > self._options.max_record:  # otherwise no single record can be too large
            self._check(blocks)
        with state.lock:
            if (state.closed or not self._fits(count, charge)) and not self._make_room(count, charge):
                return DROPPED
            last = state.append(blocks, charge)
            state.memory.fresh += (last,) if count == 1 else range(last - count + 1, last + 1)
            state.ledger.accept(count, charge)
            if state.leasers and (writer is None or not durable):
                state.arrived.notify(count)
            if writer is None:
                state.marks.update(blocks[-1].marks)
                return last
            waits = durable or state.memory.overflows
            reserve = not durable and last > state.numbers.reserved
        if reserve:
            self._upkeep.reserve()
        return last if not waits or self.settle(blocks) else DROPPED

    def _check(self, blocks: Sequence[Block]) -> None:
        most = self._options.max_record
        for block in blocks:
            if len(block.payload) > most or block.charge > MAX_LENGTH:
                with self._state.lock:
                    self._state.ledger.refused += len(blocks)
                raise RecordTooLarge(
                    f"A record of {len(block.payload)} bytes exceeds the spool's max_record ({most} bytes). Nothing was"
                    " written; split it into smaller records."
                )

    # Spool limits reached

    def _make_room(self, count: int, charge: int) -> bool:
        """Make room according to `full_behavior`. Return False if the new records are to be dropped.

        Raises RecordTooLarge, SpoolFull or SpoolClosed.
        """
        options, ledger = self._options, self._state.ledger
        if self._state.closed:
            raise SpoolClosed()
        if count > options.max_size or charge > options.max_bytes:
            ledger.refused += count
            raise RecordTooLarge(
                f"{count} records of {charge} bytes exceed the capacity of this spool ({options.max_size} records,"
                f" {options.max_bytes} bytes). Nothing was written; put fewer at once."
            )
        if options.full_behavior == "drop_newest":
            ledger.turn_away(count, "newest")
            return False
        deadline = time.monotonic() + options.block_timeout
        while not self._fits(count, charge):
            if options.full_behavior == "drop_oldest":
                if not self._drop_oldest():
                    ledger.refused += count
                    raise SpoolFull(
                        "The spool is full and every record in it is in flight, so none can be dropped. The record was"
                        " not accepted; put it again later."
                    )
            elif not self._wait_for_room(deadline - time.monotonic()) and time.monotonic() >= deadline:
                ledger.refused += count
                raise SpoolFull()
            if self._state.closed:
                raise SpoolClosed()
        return True

    def _fits(self, count: int, charge: int) -> bool:
        ledger = self._state.ledger
        return ledger.size + count <= self._max_size and ledger.bytes + charge <= self._max_bytes

    def _wait_for_room(self, timeout: float) -> bool:
        self._state.blocked += 1
        try:
            return self._state.room.wait(max(0.0, timeout))
        finally:
            self._state.blocked -= 1

    def _drop_oldest(self) -> bool:
        """Drop the oldest record that is not in flight. Return False if there is none; the caller must not retry."""
        sequence = self._state.oldest_waiting()
        if sequence is None:
            return False
        self._state.finish(sequence, self._state.take(sequence), Kind.DROPPED, "oldest")
        return True

    # Writing to disk, which may be full

    def settle(self, blocks: Sequence[Block]) -> bool:
        """Wait until the records are stored as their durability requires. Return False if they were dropped.

        On a full disk, follows `full_behavior`. Raises SpoolDiskFull or SpoolWriteFailed; the records are not accepted
        then.
        """
        writer = cast(Writer, self._writer)
        done, sync = self._settled_when(blocks[-1])
        deadline = time.monotonic() + self._options.block_timeout
        while True:
            error = writer.wait(done, sync=sync)
            self._upkeep.sweep()
            if error is None:
                with self._state.lock:
                    self._state.arrived.notify(len(blocks))
                return True
            if not is_no_space(error):
                self._withdraw(blocks, "write_failed")
                raise write_error(error) from error
            if self._options.full_behavior == "drop_newest":
                self._withdraw(blocks, "disk_full")
                return False
            if not self._wait_for_space(deadline):
                self._withdraw(blocks, "disk_full")
                raise write_error(error) from error

    def _settled_when(self, block: Block) -> tuple[Callable[[], bool], bool]:
        """Return the condition that ends the wait for a record, and whether writes must be synced."""
        sync = self._options.sync != "os"
        numbers, memory = self._state.numbers, self._state.memory
        if not block.durable:
            return lambda: not memory.overflows, sync
        if sync:
            return lambda: numbers.synced >= block.sequence, sync
        return lambda: numbers.written >= block.sequence, sync

    def _wait_for_space(self, deadline: float) -> bool:
        """Free disk space, or wait for some. Return False if there will be none before the deadline."""
        with self._state.lock:
            if self._state.closed:
                return False
            if self._make_space():
                pass
            elif self._options.full_behavior == "drop_oldest" or time.monotonic() >= deadline:
                return False
            else:
                self._wait_for_room(min(RETRY_S, deadline - time.monotonic()))
        self._upkeep.sweep()
        return True

    def _make_space(self) -> bool:
        """Free space by removing a segment: a finished one, or under `drop_oldest` the oldest without records in
        flight.

        Return True only if a file will be deleted: the caller retries at once.
        """
        state, writer = self._state, cast(Writer, self._writer)
        store = cast(Store, state.store)
        for segment in [] if state.doomed else list(store.segments):
            finished = not segment.live and len(segment) > 0
            droppable = self._options.full_behavior == "drop_oldest" and segment.live and not state.has_flight(segment)
            if not (finished or droppable):
                continue
            if segment is store.segments[-1]:  # the newest segment can be removed only after a new one was started
                tried, writer.rotate_first = writer.rotate_first, True
                return not tried
            for sequence in segment.live_sequences():
                state.returned.remove(sequence)
                state.finish(sequence, segment, Kind.DROPPED, "disk_full")
            break
        return bool(state.doomed)

    def _withdraw(self, blocks: Sequence[Block], reason: str) -> None:
        """Undo the acceptance of records that could not be stored, except those already leased or written."""
        state = self._state
        with state.lock:
            for block in blocks:
                if block.sequence in state.memory.blocks and block.sequence not in state.flight:
                    state.returned.remove(block.sequence)
                    state.memory.finish(block.sequence, Kind.DROPPED)
                    state.memory.void_marks.pop(block.sequence, None)
                    if block.part is None:
                        state.ledger.end(Kind.DROPPED, block.charge, reason)
            state.room.notify_all()

    # Parts of a record, accepted regardless of the limits

    def replace(self, id: int, given: Sequence[NewRecord]) -> list[int]:
        """Replace a leased record by several that take its position in the order. Return their ids. Raises
        UnknownRecord."""
        state = self._state
        with state.lock:
            if id not in state.flight:
                raise UnknownRecord()
            place = state.places.get(id, id)
        blocks = _make_parts(id, place, given)
        self._check(blocks)
        charge = sum(block.charge for block in blocks)
        with state.lock:
            state.append(blocks, charge)
        if self._writer is not None and not self.settle(blocks):
            raise SpoolDiskFull()
        with state.lock:
            segment = state.land(id)
            state.ledger.replace(state.forget(id, segment, Kind.REPLACED), len(blocks), charge)
            for block in blocks:
                state.places[block.sequence] = place
                state.returned.add((place, block.sequence))
                state.take_part(block.sequence)
            state.arrived.notify(len(blocks))
        if segment is not None:  # the replaced record must not reappear beside its parts, whose tokens differ
            self._upkeep.sync_journal(segment.journal)
        self._upkeep.sweep()
        return [block.sequence for block in blocks]


def _make_parts(id: int, place: int, given: Sequence[NewRecord]) -> list[Block]:
    now = time.time()
    blocks = [Block(bytes(each.payload), each.token, each.meta, NO_PAIRS, now, True) for each in given]
    for number, block in enumerate(blocks):
        block.make_part(Part(id, number, len(blocks)), place)
    return blocks
