"""Admit new records: make room according to `full_behavior`, keep them in memory, and write them to disk where needed.

A spool is full when its limits are reached or when the disk is full. `full_behavior` applies to both: `block` waits for
room, `drop_newest` drops the new records, `drop_oldest` drops the oldest ones. The marks of dropped records are kept,
because their producer continues after them. To free disk space, `drop_oldest` drops all records of the oldest segment
that has none in flight, because only whole segments can be deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

from headrace.errors import RecordTooLarge, SpoolClosed, SpoolDiskFull, SpoolFull, UnknownRecord
from headrace.spool.files import is_no_space, to_spool_error
from headrace.spool.journal import NoteKind
from headrace.spool.maintenance import SpoolMaintenance
from headrace.spool.memory import BufferedRecord
from headrace.spool.record import MAX_LENGTH, NO_PAIRS, NewRecord, RecordPart
from headrace.spool.state import SpoolState
from headrace.spool.store import SegmentStore
from headrace.spool.writer import SpoolWriter

DROPPED = 0
"""Returned by `put` for a record that `drop_newest` dropped. No record has this id."""

RETRY_S = 0.25  # retry interval of a put that waits for disk space; it is woken earlier when records finish


class Admission:
    def __init__(self, state: SpoolState, writer: SpoolWriter | None, maintenance: SpoolMaintenance) -> None:
        self._state = state
        self._options = state.options
        self._max_size, self._max_bytes = state.options.max_size, state.options.max_bytes
        self._writer = writer
        self._maintenance = maintenance

    def put(self, blocks: Sequence[BufferedRecord]) -> int:
        """Accept all records or none. Return the last one's sequence number, or DROPPED if the full behaviour dropped
        them. Their marks are stored nevertheless, unless the disk cannot be written.

        Raises RecordTooLarge, SpoolFull, SpoolDiskFull, SpoolWriteFailed or SpoolClosed; nothing was accepted then.
        """
        state, writer = self._state, self._writer
        count, durable = len(blocks), blocks[-1].durable
        charge = blocks[0].charge if count == 1 else sum([block.charge for block in blocks])
        if charge > self._options.max_record:  # otherwise no single record can be too large
            self._check(blocks)
        with state.lock:
            if (state.closed or not self._has_room_for(count, charge)) and not self._make_room(count, charge):
                waits = reserve = False
                void, last = self._append_void(blocks[-1]), DROPPED
            else:
                void, last = 0, state.append(blocks, charge)
                state.memory.fresh += (last,) if count == 1 else range(last - count + 1, last + 1)
                state.ledger.count_accepted(count, charge)
                if state.leasers and (writer is None or not durable):
                    state.arrived.notify(count)
                if writer is None:
                    state.marks.update(blocks[-1].marks)
                    return last
                waits = durable or state.memory.is_over_limit
                reserve = not durable and last > state.numbers.reserved
        if void:
            self._store_void(void)
        if reserve:
            self._maintenance.reserve()
        return last if not waits or self.wait_until_stored(blocks) else DROPPED

    def _append_void(self, block: BufferedRecord) -> int:
        """Keep the marks of a dropped record under a sequence number without a record. Return the number; 0 if there is
        nothing to write. Call with the lock held."""
        state = self._state
        if self._writer is None or not block.marks:
            state.marks.update(block.marks)
            return 0
        number = state.append((block,), block.charge)
        state.memory.finish(number, NoteKind.DROPPED)
        return number

    def _store_void(self, number: int) -> None:
        """Wait until the marks of a dropped record are stored. If the disk cannot be written, they are not kept."""
        numbers, sync = self._state.numbers, self._options.sync != "os"
        error = cast(SpoolWriter, self._writer).write_until(
            lambda: (numbers.synced if sync else numbers.written) >= number, sync=sync
        )
        if error is not None:
            with self._state.lock:
                self._state.memory.void_marks.pop(number, None)
        self._maintenance.sweep()

    def _check(self, blocks: Sequence[BufferedRecord]) -> None:
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
            ledger.count_dropped_new(count, "newest")
            return False
        deadline = time.monotonic() + options.block_timeout
        while not self._has_room_for(count, charge):
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

    def _has_room_for(self, count: int, charge: int) -> bool:
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
        sequence = self._state.find_oldest_waiting()
        if sequence is None:
            return False
        self._state.finish(sequence, self._state.remove_waiting(sequence), NoteKind.DROPPED, "oldest")
        return True

    # Writing to disk, which may be full

    def wait_until_stored(self, blocks: Sequence[BufferedRecord]) -> bool:
        """Wait until the records are stored as their durability requires. Return False if they were dropped.

        On a full disk, follows `full_behavior`. Raises SpoolDiskFull or SpoolWriteFailed; the records are not accepted
        then.
        """
        writer = cast(SpoolWriter, self._writer)
        done, sync = self._stored_condition(blocks[-1])
        deadline = time.monotonic() + self._options.block_timeout
        while True:
            error = writer.write_until(done, sync=sync)
            self._maintenance.sweep()
            if error is None:
                with self._state.lock:
                    self._state.arrived.notify(len(blocks))
                return True
            if not is_no_space(error):
                self._undo_put(blocks, "write_failed")
                raise to_spool_error(error) from error
            if self._options.full_behavior == "drop_newest":
                self._undo_put(blocks, "disk_full")
                return False
            if not self._wait_for_space(deadline):
                self._undo_put(blocks, "disk_full")
                raise to_spool_error(error) from error

    def _stored_condition(self, block: BufferedRecord) -> tuple[Callable[[], bool], bool]:
        """Return the condition that ends the wait for a record, and whether writes must be synced."""
        sync = self._options.sync != "os"
        numbers, memory = self._state.numbers, self._state.memory
        if not block.durable:
            return lambda: not memory.is_over_limit, sync
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
        self._maintenance.sweep()
        return True

    def _make_space(self) -> bool:
        """Free space by removing a segment: a finished one, or under `drop_oldest` the oldest without records in
        flight.

        Return True only if a file will be deleted: the caller retries at once.
        """
        state, writer = self._state, cast(SpoolWriter, self._writer)
        store = cast(SegmentStore, state.store)
        for segment in [] if state.finished_segments else list(store.segments):
            finished = not segment.live and len(segment) > 0
            droppable = (
                self._options.full_behavior == "drop_oldest" and segment.live and not state.has_in_flight(segment)
            )
            if not (finished or droppable):
                continue
            if segment is store.segments[-1]:  # the newest segment can be removed only after a new one was started
                tried, writer.rotate_first = writer.rotate_first, True
                return not tried
            for sequence in segment.list_live_sequences():
                state.requeued.remove(sequence)
                state.finish(sequence, segment, NoteKind.DROPPED, "disk_full")
            break
        return bool(state.finished_segments)

    def _undo_put(self, blocks: Sequence[BufferedRecord], reason: str) -> None:
        """Undo the acceptance of records that could not be stored, except those already leased or written."""
        state = self._state
        with state.lock:
            for block in blocks:
                if block.sequence in state.memory.blocks and block.sequence not in state.in_flight:
                    state.requeued.remove(block.sequence)
                    if state.held.finish(block.sequence):
                        state.arrived.notify_all()
                    state.memory.finish(block.sequence, NoteKind.DROPPED)
                    state.memory.void_marks.pop(block.sequence, None)
                    if block.part is None:
                        state.ledger.count_end(NoteKind.DROPPED, block.charge, reason)
            state.room.notify_all()

    # Parts of a record, accepted regardless of the limits

    def replace(self, id: int, parts: Sequence[NewRecord]) -> list[int]:
        """Replace a leased record by several that take its position in the order. Return their ids. Raises
        UnknownRecord."""
        state = self._state
        with state.lock:
            if id not in state.in_flight:
                raise UnknownRecord()
            place = state.places.get(id, id)
        blocks = _make_parts(id, place, parts)
        self._check(blocks)
        charge = sum(block.charge for block in blocks)
        with state.lock:
            state.append(blocks, charge)
        if self._writer is not None and not self.wait_until_stored(blocks):
            raise SpoolDiskFull()
        with state.lock:
            segment = state.remove_in_flight(id)
            state.ledger.count_replaced(state.mark_finished(id, segment, NoteKind.REPLACED), len(blocks), charge)
            for block in blocks:
                state.places[block.sequence] = place
                state.requeued.add((place, block.sequence))
                state.remove_part(block.sequence)
            state.arrived.notify(len(blocks))
        if segment is not None:  # the replaced record must not reappear beside its parts, whose tokens differ
            self._maintenance.sync_journal(segment.journal)
        self._maintenance.sweep()
        return [block.sequence for block in blocks]


def _make_parts(id: int, place: int, parts: Sequence[NewRecord]) -> list[BufferedRecord]:
    now, total = time.time(), len(parts)
    return [
        BufferedRecord(
            *(bytes(each.payload), each.token, each.meta, NO_PAIRS, now),
            durable=True,
            part=RecordPart(id, number, total),
            place=place,
        )
        for number, each in enumerate(parts)
    ]
