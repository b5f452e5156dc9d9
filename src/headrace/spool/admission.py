"""What `put` does with records: room for them by the rules of `full_behavior`, memory, and the disk if need be.

A spool is full by its limits, or because the disk is. Both are met in the same way: `block` waits, `drop_newest` turns
the new ones away, `drop_oldest` gives up the oldest; on disk, that is the oldest segment of which nothing is in flight,
since space comes back by whole segments.
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
"""What `put` returns for a record that `drop_newest` dropped. No record has this id."""

RETRY_S = 0.25  # how often a put that waits for disk space tries again, unless something is finished before


class Admission:
    def __init__(self, state: State, writer: Writer | None, upkeep: Upkeep) -> None:
        self._state = state
        self._options = state.options
        self._max_size, self._max_bytes = state.options.max_size, state.options.max_bytes
        self._writer = writer
        self._upkeep = upkeep

    def put(self, blocks: Sequence[Block]) -> int:
        """All of them or none. The last one's number, or DROPPED."""
        state, writer = self._state, self._writer
        count, durable = len(blocks), blocks[-1].durable
        charge = blocks[0].charge if count == 1 else sum([block.charge for block in blocks])
        if charge > self._options.max_record:  # else none of them can be too large
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
                    f"A record of {len(block.payload)} bytes is larger than the spool accepts ({most}). Nothing was"
                    " written; cut it into smaller ones."
                )

    # Full by its limits

    def _make_room(self, count: int, charge: int) -> bool:
        """As the full behaviour says; False if the new ones are to be dropped."""
        options, ledger = self._options, self._state.ledger
        if self._state.closed:
            raise SpoolClosed()
        if count > options.max_size or charge > options.max_bytes:
            ledger.refused += count
            raise RecordTooLarge(f"{count} records of {charge} bytes never fit into this spool. Nothing was written.")
        if options.full_behavior == "drop_newest":
            ledger.turn_away(count, "newest")
            return False
        deadline = time.monotonic() + options.block_timeout
        while not self._fits(count, charge):
            if options.full_behavior == "drop_oldest":
                if not self._drop_oldest():
                    ledger.refused += count
                    raise SpoolFull("The spool is full and all of it is in flight. The record was not accepted.")
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
        """False if there is nothing that is not in flight: whoever asks must not ask again."""
        sequence = self._state.oldest_waiting()
        if sequence is None:
            return False
        self._state.finish(sequence, self._state.take(sequence), Kind.DROPPED, "oldest")
        return True

    # To disk, which may be full

    def settle(self, blocks: Sequence[Block]) -> bool:
        """Until the blocks are where they have to be. A disk that fails is met as the full behaviour says. False: they
        were dropped."""
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
        sync = self._options.sync != "os"
        numbers, memory = self._state.numbers, self._state.memory
        if not block.durable:
            return lambda: not memory.overflows, sync
        if sync:
            return lambda: numbers.synced >= block.sequence, sync
        return lambda: numbers.written >= block.sequence, sync

    def _wait_for_space(self, deadline: float) -> bool:
        """Make some, or wait for some; False if there will be none in time."""
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
        """On disk, space comes back by whole segments: one that is finished, or under `drop_oldest` the oldest of which
        nothing is in flight. True only if something will be gone: whoever asks tries again at once."""
        state, writer = self._state, cast(Writer, self._writer)
        store = cast(Store, state.store)
        for segment in [] if state.doomed else list(store.segments):
            finished = not segment.live and len(segment) > 0
            droppable = self._options.full_behavior == "drop_oldest" and segment.live and not state.has_flight(segment)
            if not (finished or droppable):
                continue
            if segment is store.segments[-1]:  # the newest can only go when there is another
                tried, writer.rotate_first = writer.rotate_first, True
                return not tried
            for sequence in segment.live_sequences():
                state.returned.remove(sequence)
                state.finish(sequence, segment, Kind.DROPPED, "disk_full")
            break
        return bool(state.doomed)

    def _withdraw(self, blocks: Sequence[Block], reason: str) -> None:
        """They are not accepted after all. None of them was leased: a durable one is not, before it is on disk."""
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

    # Parts, which are admitted whatever the limits say

    def replace(self, id: int, given: Sequence[NewRecord]) -> list[int]:
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
        if segment is not None:  # it must not come again beside its parts, whose tokens are others
            self._upkeep.sync_journal(segment.journal)
        self._upkeep.sweep()
        return [block.sequence for block in blocks]


def _make_parts(id: int, place: int, given: Sequence[NewRecord]) -> list[Block]:
    now = time.time()
    blocks = [Block(bytes(each.payload), each.token, each.meta, NO_PAIRS, now, True) for each in given]
    for number, block in enumerate(blocks):
        block.make_part(Part(id, number, len(blocks)), place)
    return blocks
