"""The queue itself: memory first, files behind, one order across both.

Promises. A durable `put` that returned comes out, in order, until it is acked, whatever is killed in between; it is
leased only once it is durable. `lease` never removes: what is not acked, rejected or replaced comes back, in its
place, with its attempts counted, also after a crash. Limits hold at every instant, records in flight included. What is
dropped, damaged or buried is counted under its reason, and `pushed = acked + dropped + corrupt + dead + size` in every
answer of `stats`.

One lock guards all state; it is never held across an fsync or the reading of a payload.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import cast

from headrace.errors import (
    RecordTooLarge,
    SpoolBusy,
    SpoolClosed,
    SpoolDiskFull,
    SpoolError,
    SpoolFull,
    SpoolWriteFailed,
    UnknownRecord,
)
from headrace.spool.aside import DEAD, Aside, set_aside
from headrace.spool.files import Files, SystemFiles, is_no_space, read_all
from headrace.spool.inspect import LOCK, Finding, Inspection, inspect, list_dead, list_quarantine, verify
from headrace.spool.journal import Journal, Kind
from headrace.spool.ledger import Ledger
from headrace.spool.memory import Block, Memory
from headrace.spool.meta import write_meta
from headrace.spool.options import FullBehavior, SpoolOptions, SpoolStats, SyncPolicy
from headrace.spool.order import Place, Returned
from headrace.spool.record import HEADER_BYTES, MAX_LENGTH, NO_PAIRS, NewRecord, Part, Record, Unreadable, decode_head
from headrace.spool.recovery import Recovered, quarantine, recover
from headrace.spool.segment import DONE, Hole, Segment
from headrace.spool.store import Doomed, Store
from headrace.spool.survey import Progress as OpenProgress
from headrace.spool.writer import Progress, Writer

__all__ = [
    "DROPPED",
    "Aside",
    "Finding",
    "FullBehavior",
    "Inspection",
    "NewRecord",
    "Record",
    "Spool",
    "SpoolOptions",
    "SpoolStats",
    "SyncPolicy",
    "inspect",
    "list_dead",
    "list_quarantine",
    "verify",
]

log = logging.getLogger(__name__)

DROPPED = 0
"""What `put` returns for a record that `drop_newest` dropped. No record has this id."""

RESERVE = 65_536  # numbers set aside, by one synced note, for records that are in memory alone
RETRY_S = 0.25  # how often a put that waits for disk space tries again, unless something is finished before
LOCK_TRIES, LOCK_PAUSE_S = 5, 0.05  # somebody who only looks holds the lock for a moment


class Spool:
    """Open with `Spool.open`; use from any number of threads; `close` when done, or use as a context manager."""

    def __init__(self, options: SpoolOptions, found: Recovered, store: Store | None, lock: int | None) -> None:
        self.options = options
        self._store = store
        self._directory_lock = lock
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)  # something may be leased
        self._leasers = 0  # who wait for that; to notify nobody costs as much as to put
        self._room = threading.Condition(self._lock)  # something was finished
        self._blocked = 0  # who wait for that
        self._reading = threading.Lock()  # around the segments' read windows
        self._cleaning = threading.Lock()  # around removing segments and syncing journals
        self._closed = False
        last = found.next_sequence - 1
        self._numbers = Progress(found.next_sequence, written=last, synced=last, reserved=last)
        self._ledger = Ledger()
        self._memory = Memory(options.inmemory_blocks, options.inmemory_bytes)
        self._memory_since = 0.0  # when the oldest record in memory came
        self._returned = Returned()
        self._places = found.places
        self._leases = found.leases  # times each unfinished record was leased before; 0 if it is not here
        self._flight: dict[int, Segment | None] = {}  # leased records and where they are; None: in memory
        self._marks = found.marks
        self._doomed: list[Doomed] = []
        self._writer: Writer | None = None
        if store is not None:
            self._writer = Writer(options, store, self._memory, self._ledger, self._numbers, self._lock)
            self._writer.marks = found.marks
            self._writer.doomed = self._doomed
            self._writer.leases_of = self._leases_of
            self._writer.on_written = self._moved_to_disk
            self._writer.on_damage = self._found_damage
        self._meta_told: tuple[int, ...] = ()
        self._oldest: tuple[int, float | None] = (-1, None)
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None
        self._count(found)

    # Opening and closing

    @classmethod
    def open(
        cls,
        options: SpoolOptions,
        *,
        files: Files | None = None,
        progress: OpenProgress | None = None,
        background: bool = True,
    ) -> Spool:
        """Take the directory's lock, make it whole again, go on. Raises SpoolBusy, SpoolFormatError, SpoolDiskFull or
        SpoolWriteFailed. Without `background`, the caller calls `maintain` now and then."""
        if options.type == "memory" or options.path is None:
            return cls(options, Recovered(), None, None)
        files = files or SystemFiles()
        folder = options.path.absolute()
        try:
            files.make_directory(folder)
            lock = take_lock(files, folder)
            try:
                spool = cls._recover(options, files, folder, lock, progress)
            except BaseException:
                files.close(lock)
                raise
        except OSError as error:
            raise write_error(error) from error
        if background:
            spool._keeper = threading.Thread(target=spool._keep, name="spool-keeper", daemon=True)
            spool._keeper.start()
        return spool

    @classmethod
    def _recover(
        cls, options: SpoolOptions, files: Files, folder: Path, lock: int, progress: OpenProgress | None
    ) -> Spool:
        found = recover(files, folder, progress)
        store = Store(files, folder, found.segments)
        spool = cls(options, found, store, lock)
        if found.reusable is not None:
            store.adopt(found.reusable)
        else:
            if found.segments and found.next_sequence > found.first_void:
                journal = found.segments[-1].journal
                journal.note(Kind.GONE, found.first_void, found.next_sequence - found.first_void)
                journal.sync()
            store.adopt(store.open_segment(found.next_sequence, found.marks, 0, use_ballast=True))
        store.make_ballast()
        for segment in list(store.segments):
            spool._forget_if_finished(store, segment)
        spool._sweep()
        return spool

    def _count(self, found: Recovered) -> None:
        for segment in found.segments:
            self._ledger.found(segment.live, segment.live_charge())
        for sequence, place in found.places.items():
            self._returned.add((place, sequence))
        self._ledger.lost_before(found.corrupt)
        self._ledger.quarantined = found.quarantined
        self._ledger.torn = found.torn
        self._ledger.damaged_notes = found.damaged_notes

    def close(self) -> None:
        """Write what is in memory, give back what is in flight, unlock: nothing is lost. If the disk refuses, the
        directory is unlocked all the same, and this raises."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._arrived.notify_all()
            self._room.notify_all()
        self._stop.set()
        if self._keeper is not None:
            self._keeper.join()
        if self._store is None:
            return
        try:
            self._give_back_all()
            self._flush()
            self._reserve_no_more(self._store)
            self._sync_journals(self._store)
            self._tell_meta(self._store)
        except OSError as error:
            raise write_error(error) from error
        finally:
            self._sweep()
            self._shut(self._store)

    def _give_back_all(self) -> None:
        """A lease that the end of the process takes away is no attempt."""
        with self._lock:
            for sequence, segment in self._flight.items():
                self._note(Kind.RELEASED, sequence, segment)
            self._flight.clear()

    def _shut(self, store: Store) -> None:
        with self._reading, self._cleaning:
            for segment in store.segments:
                segment.close()
            if self._directory_lock is not None:
                store.files.close(self._directory_lock)
                self._directory_lock = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Putting

    def put(
        self,
        payload: bytes,
        *,
        token: str = "",
        meta: Mapping[str, str] = NO_PAIRS,
        marks: Mapping[str, str] = NO_PAIRS,
        durable: bool = True,
    ) -> int:
        """The record's id, or DROPPED (0) if `drop_newest` dropped it. A durable put returns when the record is as safe
        as the sync policy makes it. Raises SpoolFull (`block` timed out, or nothing can be dropped), SpoolDiskFull,
        SpoolWriteFailed or RecordTooLarge; the record was then not accepted."""
        durable = durable or self.options.sync == "always"
        return self._put([Block(bytes(payload), token, meta, marks, time.time(), durable)])

    def put_many(
        self, records: Iterable[NewRecord], *, marks: Mapping[str, str] = NO_PAIRS, durable: bool = True
    ) -> list[int]:
        """All are accepted or none (then the list is empty, or it raises). The marks speak for all of them: they are
        believed after a crash only if all are there."""
        durable = durable or self.options.sync == "always"
        now = time.time()
        blocks = [Block(bytes(each.payload), each.token, each.meta, NO_PAIRS, now, durable) for each in records]
        if not blocks:
            return []
        if marks:
            blocks[-1].set_marks(marks)
        return [block.sequence for block in blocks] if self._put(blocks) else []

    def _put(self, blocks: list[Block]) -> int:
        charge = self._charge(blocks)
        with self._lock:
            if not self._admit(len(blocks), charge):
                return DROPPED
            for block in blocks:
                self._append(block)
                self._memory.fresh.append(block.sequence)
            self._ledger.accept(len(blocks), charge)
            last = blocks[-1]
            if self._writer is None:
                self._marks.update(last.marks)
            waits = self._writer is not None and (last.durable or self._memory.overflows)
            if self._leasers and (not last.durable or self._writer is None):
                self._arrived.notify(len(blocks))
            reserve = last.sequence > self._numbers.reserved and not last.durable
        if reserve and self._store is not None:
            self._reserve(self._store)
        if waits and not self._settle(blocks):
            return DROPPED
        return last.sequence

    def _charge(self, blocks: Sequence[Block]) -> int:
        charge = 0
        for block in blocks:
            charge += block.charge
            if len(block.payload) > self.options.max_record or block.charge > MAX_LENGTH:
                with self._lock:
                    self._ledger.refused += len(blocks)
                raise RecordTooLarge(
                    f"A record of {len(block.payload)} bytes is larger than the spool accepts"
                    f" ({self.options.max_record}). Nothing was written; cut it into smaller ones."
                )
        return charge

    def _append(self, block: Block) -> None:
        block.sequence = self._numbers.next
        self._numbers.next += 1
        if not self._memory.blocks:
            self._memory_since = time.monotonic()
        self._memory.add(block)

    def _admit(self, count: int, charge: int) -> bool:
        """Make room, as the full behaviour says; False if the new ones are to be dropped."""
        if self._closed:
            raise SpoolClosed()
        if self._fits(count, charge):
            return True
        if count > self.options.max_size or charge > self.options.max_bytes:
            self._ledger.refused += count
            raise RecordTooLarge(f"{count} records of {charge} bytes never fit into this spool. Nothing was written.")
        if self.options.full_behavior == "drop_newest":
            self._ledger.turn_away(count, "newest")
            return False
        deadline = time.monotonic() + self.options.block_timeout
        while not self._fits(count, charge):
            if self.options.full_behavior == "drop_oldest":
                if not self._drop_oldest():
                    self._ledger.refused += count
                    raise SpoolFull("The spool is full and all of it is in flight. The record was not accepted.")
            elif not self._wait_for_room(deadline - time.monotonic()) and time.monotonic() >= deadline:
                self._ledger.refused += count
                raise SpoolFull()
            if self._closed:
                raise SpoolClosed()
        return True

    def _wait_for_room(self, timeout: float) -> bool:
        self._blocked += 1
        try:
            return self._room.wait(max(0.0, timeout))
        finally:
            self._blocked -= 1

    def _fits(self, count: int, charge: int) -> bool:
        ledger, options = self._ledger, self.options
        return ledger.size + count <= options.max_size and ledger.bytes + charge <= options.max_bytes

    def _drop_oldest(self) -> bool:
        """False if there is nothing that is not in flight: whoever asks must not ask again."""
        place = self._oldest_waiting()
        if place is None:
            return False
        self._finish(place[1], self._take(place[1]), Kind.DROPPED, "oldest")
        return True

    def _oldest_waiting(self) -> Place | None:
        waiting = [place for place in (self._returned.oldest(), self._next_in_order()) if place is not None]
        return min(waiting) if waiting else None

    def _reserve(self, store: Store) -> None:
        """No number is used twice, not even one that a crash takes while it is in memory alone."""
        with self._lock:
            if self._closed:
                return
            journal = store.segments[-1].journal
            self._numbers.reserved = self._numbers.next + RESERVE
            journal.note(Kind.RESERVED, self._numbers.reserved)
        self._sync_journal(journal)

    def _reserve_no_more(self, store: Store) -> None:
        with self._lock:
            if self._numbers.reserved >= self._numbers.next:
                store.segments[-1].journal.note(Kind.RESERVED, self._numbers.next - 1)

    def _sync_journal(self, journal: Journal) -> None:
        try:
            with self._cleaning:
                journal.sync()
        except OSError as error:
            self._ledger.last_error = str(error)

    def _settle(self, blocks: Sequence[Block]) -> bool:
        """Until the blocks are where they have to be. A disk that fails is met as the full behaviour says. False: they
        were dropped."""
        writer = cast(Writer, self._writer)
        done, sync = self._settled_when(blocks[-1])
        deadline = time.monotonic() + self.options.block_timeout
        while True:
            error = writer.wait(done, sync=sync)
            self._sweep()
            if error is None:
                with self._lock:
                    self._arrived.notify(len(blocks))
                return True
            if not is_no_space(error):
                self._withdraw(blocks, "write_failed")
                raise write_error(error) from error
            if self.options.full_behavior == "drop_newest":
                self._withdraw(blocks, "disk_full")
                return False
            if not self._wait_for_space(deadline):
                self._withdraw(blocks, "disk_full")
                raise write_error(error) from error

    def _settled_when(self, block: Block) -> tuple[Callable[[], bool], bool]:
        sync = self.options.sync != "os"
        numbers = self._numbers
        if not block.durable:
            return lambda: not self._memory.overflows, sync
        if sync:
            return lambda: numbers.synced >= block.sequence, sync
        return lambda: numbers.written >= block.sequence, sync

    def _wait_for_space(self, deadline: float) -> bool:
        """Make some, or wait for some; False if there will be none in time."""
        with self._lock:
            if self._closed:
                return False
            if self._make_space():
                pass
            elif self.options.full_behavior == "drop_oldest" or time.monotonic() >= deadline:
                return False
            else:
                self._wait_for_room(min(RETRY_S, deadline - time.monotonic()))
        self._sweep()
        return True

    def _make_space(self) -> bool:
        """On disk, space comes back by whole segments: one that is finished, or under `drop_oldest` the oldest of which
        nothing is in flight. True only if something will be gone: whoever asks tries again at once."""
        store, writer = cast(Store, self._store), cast(Writer, self._writer)
        for segment in [] if self._doomed else list(store.segments):
            finished = not segment.live and len(segment) > 0
            droppable = self.options.full_behavior == "drop_oldest" and segment.live and not self._has_flight(segment)
            if not (finished or droppable):
                continue
            if segment is store.segments[-1]:  # the newest can only go when there is another
                tried, writer.rotate_first = writer.rotate_first, True
                return not tried
            for sequence in segment.live_sequences():
                self._returned.remove(sequence)
                self._finish(sequence, segment, Kind.DROPPED, "disk_full")
            break
        return bool(self._doomed)

    def _has_flight(self, segment: Segment) -> bool:
        return any(where is segment for where in self._flight.values())

    def _withdraw(self, blocks: Sequence[Block], reason: str) -> None:
        """They are not accepted after all. None of them was leased: a durable one is not, before it is on disk."""
        with self._lock:
            for block in blocks:
                if block.sequence in self._memory.blocks and block.sequence not in self._flight:
                    self._returned.remove(block.sequence)
                    self._memory.finish(block.sequence, Kind.DROPPED)
                    self._memory.void_marks.pop(block.sequence, None)
                    if block.part is None:
                        self._ledger.end(Kind.DROPPED, block.charge, reason)
            self._room.notify_all()

    # Leasing

    def lease(self, *, timeout: float | None = 0) -> Record | None:
        """The oldest record that is not in flight and whose delay is over; waits for one up to `timeout` seconds, None:
        for ever. None: there is none, or the spool was closed."""
        deadline = None if timeout is None else time.monotonic() + timeout if timeout > 0 else 0.0
        while True:
            with self._lock:
                sequence = self._await_next(deadline)
                if sequence is None:
                    return None
                segment = self._take(sequence)
                block = self._memory.find(sequence)
                attempts = self._note_lease(sequence, segment)
            record = self._as_record(sequence, segment, block, attempts)
            if record is None:
                continue  # damaged on disk since it was written; counted
            if not self._is_worn_out(record, segment):
                return record

    def lease_many(self, count: int) -> list[Record]:
        """The next ones, up to so many, without waiting. Much cheaper than one by one, for small records on disk."""
        records: list[Record] = []
        while len(records) < count:
            found = self._lease_run(count - len(records))
            if not found:
                one = self.lease()
                if one is None:
                    break
                found = [one]
            records += found
        return records

    def _lease_run(self, most: int) -> list[Record]:
        """Neighbours on disk, if they are next and none of them needs more than to be read."""
        with self._lock:
            if self._store is None or self._closed or self._returned.ready(time.monotonic()) is not None:
                return []
            found = self._store.next_fresh()
            if found is None:
                return []
            segment, index = found
            first = segment.sequence_at(index)
            if self._memory.recent and first >= next(iter(self._memory.recent)):
                return []
            count = segment.take_run(index, most)
            numbers = range(first, first + count)
            tried = [self._leases.get(each, 0) for each in numbers] if self._leases else bytes(count)
            self._flight.update(dict.fromkeys(numbers, segment))
            self._ledger.retries += count - tried.count(0)
            segment.journal.note(Kind.LEASED, first, count)
        with self._reading:
            records = segment.read_run(index, tried)
        if len(records) < count or self.options.max_attempts is not None:
            records = self._read_each(segment, numbers, tried)
        return records

    def _read_each(self, segment: Segment, numbers: range, tried: Sequence[int]) -> list[Record]:
        read = [self._as_record(each, segment, None, times) for each, times in zip(numbers, tried, strict=True)]
        return [each for each in read if each is not None and not self._is_worn_out(each, segment)]

    def _is_worn_out(self, record: Record, segment: Segment | None) -> bool:
        most = self.options.max_attempts
        if most is None or record.attempts < most:
            return False
        self._bury(record, segment, f"leased {record.attempts} times without an end")
        return True

    def _await_next(self, deadline: float | None) -> int | None:
        while not self._closed:
            now = time.monotonic()
            place = self._returned.ready(now) if len(self._returned) else None
            fresh = self._next_in_order()
            if place is None or (fresh is not None and fresh < place):
                place = fresh
            if place is not None:
                return place[1]
            if deadline is not None and now >= deadline:
                return None
            due = self._returned.next_due()
            ends = [end - now for end in (deadline, due) if end is not None]
            self._leasers += 1
            try:
                self._arrived.wait(min(ends) if ends else None)
            finally:
                self._leasers -= 1
        return None

    def _next_in_order(self) -> Place | None:
        """The oldest that was never leased: disk before memory. A durable one in memory is not ready."""
        if self._store is not None:
            found = self._store.next_fresh()
            if found is not None:
                sequence = found[0].sequence_at(found[1])
                return sequence, sequence
        block = self._memory.next_fresh()
        if block is None or (block.durable and self._store is not None):
            return None
        return block.sequence, block.sequence

    def _take(self, sequence: int) -> Segment | None:
        """Out of the order. Where it is."""
        if sequence in self._returned:
            self._returned.remove(sequence)
        elif self._memory.fresh and self._memory.fresh[0] == sequence:
            self._memory.fresh.popleft()
        if self._store is None or sequence in self._memory.blocks:
            return None
        segment = cast(Segment, self._store.segment_of(sequence))
        segment.take(cast(int, segment.index_of(sequence)))
        return segment

    def _note_lease(self, sequence: int, segment: Segment | None) -> int:
        attempts = self._leases.get(sequence, 0)
        self._flight[sequence] = segment
        if attempts:
            self._ledger.retries += 1
        self._note(Kind.LEASED, sequence, segment)
        return attempts

    def _note(self, kind: Kind, sequence: int, segment: Segment | None) -> None:
        """For one in memory there is nothing to note, unless it is being written just now."""
        if segment is None and self._store is not None:
            segment = self._memory.blocks[sequence].home
        if segment is not None:
            segment.journal.note(kind, sequence)

    def _as_record(self, sequence: int, segment: Segment | None, block: Block | None, attempts: int) -> Record | None:
        if block is not None:
            return Record(sequence, block.payload, block.token, block.meta, attempts, block.put_at)
        segment = cast(Segment, segment)
        index = cast(int, segment.index_of(sequence))
        try:
            with self._reading:
                return segment.read(index, attempts)
        except (Unreadable, OSError) as error:
            self._lose(sequence, segment, index, str(error))
            return None

    def _lose(self, sequence: int, segment: Segment, index: int, reason: str) -> None:
        """Damaged since it was written."""
        store = cast(Store, self._store)
        start, end = segment.span(index)
        kept = 0
        try:
            quarantine(store.files, store.folder, segment, Hole(start, end, reason), (sequence, sequence))
            kept = 1
        except OSError as error:
            log.warning("%s: cannot quarantine: %s", segment.path, error, extra={"action": "spool_quarantine"})
        with self._lock:
            if segment.states[index] != DONE:
                self._ledger.quarantined += kept
                self._flight.pop(sequence, None)
                self._returned.remove(sequence)
                self._finish(sequence, segment, Kind.CORRUPT)
        log.error("%s: record %d is damaged and lost", segment.path, sequence, extra={"action": "spool_corrupt"})
        self._sweep()

    def _found_damage(self, segment: Segment, hole: Hole) -> None:
        """By the reading back after a failed fsync."""
        for index, offset in enumerate(segment.offsets):
            if hole.at <= offset < hole.end and segment.states[index] != DONE:
                sequence = segment.sequence_at(index)
                if sequence not in self._flight:
                    self._lose(sequence, segment, index, hole.reason)

    # Ending

    def ack(self, id: int) -> None:
        """Delivered. Survives kill -9 at once, power loss within `meta_sync`; before, it may be delivered again. Raises
        UnknownRecord if it is not in flight."""
        with self._lock:
            self._finish(id, self._landed(id), Kind.ACKED)
            doomed = self._doomed
        if doomed:
            self._sweep()

    def ack_many(self, ids: Sequence[int]) -> None:
        """All of them, or none if one is not in flight. One note for neighbours."""
        with self._lock:
            if len(set(ids)) != len(ids) or not all(map(self._flight.__contains__, ids)):
                raise UnknownRecord()
            at = 0
            while at < len(ids):
                at += self._ack_run(ids, at)
            self._room.notify_all()
        self._sweep()

    def _ack_run(self, ids: Sequence[int], at: int) -> int:
        """The neighbours from there on; how many."""
        first, segment = ids[at], self._flight[ids[at]]
        if segment is None:
            self._finish(first, self._landed(first), Kind.ACKED)
            return 1
        count = len(ids) - at
        if (
            ids[-1] != first + count - 1
            or self._flight[ids[-1]] is not segment
            or list(ids[at:]) != list(range(first, first + count))
        ):
            count = 1
            while at + count < len(ids) and ids[at + count] == first + count and self._flight[first + count] is segment:
                count += 1
        for id in range(first, first + count):
            del self._flight[id]
        for facts in (self._leases, self._places, self._memory.recent):
            if facts:
                self._forget_facts(range(first, first + count))
                break
        self._ledger.ack(count, segment.end_run(cast(int, segment.index_of(first)), count))
        segment.journal.note(Kind.ACKED, first, count)
        self._forget_if_finished(cast(Store, self._store), segment)
        return count

    def _forget_facts(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._leases.pop(id, None)
            self._places.pop(id, None)
            self._memory.forget_recent(id)

    def nack(self, id: int, *, delay: float = 0.0, reason: str = "") -> None:
        """Not delivered: it comes again, in its place, after so many seconds. The delay does not survive a restart; the
        attempt does. With its last attempt used up, it is dead."""
        with self._lock:
            if id not in self._flight:
                raise UnknownRecord()
            attempts, most = self._leases.get(id, 0) + 1, self.options.max_attempts
            if reason:
                self._ledger.last_error = reason
            dies = most is not None and attempts >= most
            if not dies:
                del self._flight[id]
                self._leases[id] = attempts
                self._come_back(id, delay)
        if dies:
            self.reject(id, reason or f"leased {attempts} times without an end")

    def release(self, id: int) -> None:
        """Give it back untried: it is the next in its place again, and the lease does not count as an attempt."""
        with self._lock:
            self._note(Kind.RELEASED, id, self._landed(id))
            self._come_back(id, 0.0)

    def end_delays(self) -> None:
        """The destination is well again: nacked records need not wait any longer."""
        with self._lock:
            self._returned.end_delays()
            self._arrived.notify_all()

    def holds(self, id: int) -> bool:
        """Whether a record that was leased once has not come to an end, by whatever way."""
        with self._lock:
            return id in self._flight or id in self._leases or id in self._returned

    def reject(self, id: int, reason: str) -> None:
        """It can never be delivered: to dead/, with the reason. If it cannot be written there, this raises and the
        record stays in flight."""
        with self._lock:
            if id not in self._flight:
                raise UnknownRecord()
            segment, block = self._flight[id], self._memory.find(id)
            attempts = self._leases.get(id, 0) + 1
        record = self._as_record(id, segment, block, attempts)
        if record is not None:
            self._bury(record, segment, reason)

    def replace(self, id: int, parts: Sequence[NewRecord | tuple[bytes, str, Mapping[str, str]]]) -> list[int]:
        """Cut a record in flight into parts, which take its place in the order: all of them or, after a crash in
        between, the record as it was. Parts of a part share the first record's place, after its other parts. The parts
        are durable when this returns; they may take the spool beyond `max_size`, since refusing them would keep the
        record from ever leaving."""
        if not parts:
            raise ValueError("a record is replaced by one part at least")
        given = [each if isinstance(each, NewRecord) else NewRecord(*each) for each in parts]
        with self._lock:
            if id not in self._flight:
                raise UnknownRecord()
            blocks = self._make_parts(id, given)
        self._charge(blocks)
        with self._lock:
            for block in blocks:
                self._append(block)
        if self._writer is not None and not self._settle(blocks):
            raise SpoolDiskFull()
        with self._lock:
            segment = self._landed(id)
            place = blocks[0].place or id
            charge = self._forget(id, segment, Kind.REPLACED)
            self._ledger.replace(charge, len(blocks), sum(block.charge for block in blocks))
            for block in blocks:
                self._places[block.sequence] = place
                self._returned.add((place, block.sequence))
                if self._store is not None:
                    self._take_part(block.sequence)
            self._arrived.notify(len(blocks))
        if segment is not None:  # it must not come again beside its parts, whose tokens are others
            self._sync_journal(segment.journal)
        self._sweep()
        return [block.sequence for block in blocks]

    def _make_parts(self, id: int, given: Sequence[NewRecord]) -> list[Block]:
        now = time.time()
        place = self._places.get(id, id)
        blocks = [Block(bytes(each.payload), each.token, each.meta, NO_PAIRS, now, True) for each in given]
        for number, block in enumerate(blocks):
            block.make_part(Part(id, number, len(blocks)), place)
        return blocks

    def _take_part(self, sequence: int) -> None:
        segment = cast(Store, self._store).segment_of(sequence)
        index = segment.index_of(sequence) if segment is not None else None
        if segment is not None and index is not None:
            segment.take(index)

    def _bury(self, record: Record, segment: Segment | None, reason: str) -> None:
        facts = {"id": record.id, "token": record.token, "meta": dict(record.meta), "attempts": record.attempts}
        facts |= {"put_at": record.put_at, "died_at": time.time(), "reason": reason}
        if self._store is not None:
            folder = self._store.folder / DEAD
            try:
                set_aside(self._store.files, folder, f"{record.id:016x}", facts, record.payload)
            except OSError as error:
                raise write_error(error) from error
        with self._lock:
            self._finish(record.id, self._landed(record.id), Kind.DEAD)
            self._ledger.last_error = reason
        self._sweep()
        log.error("record %d is dead: %s", record.id, reason, extra={"action": "spool_dead"})

    def _landed(self, id: int) -> Segment | None:
        """No longer in flight. Where it is."""
        try:
            return self._flight.pop(id)
        except KeyError:
            raise UnknownRecord() from None

    def _come_back(self, id: int, delay: float) -> None:
        place = (self._places.get(id, id), id)
        self._returned.add(place, time.monotonic() + delay if delay > 0 else None)
        self._arrived.notify()

    def _finish(self, sequence: int, segment: Segment | None, kind: Kind, reason: str = "") -> None:
        self._ledger.end(kind, self._forget(sequence, segment, kind), reason)
        if self._blocked:
            self._room.notify_all()

    def _forget(self, sequence: int, segment: Segment | None, kind: Kind) -> int:
        """It has an end. What it was charged."""
        self._leases.pop(sequence, None)
        self._places.pop(sequence, None)
        if segment is None:
            return self._memory.finish(sequence, kind).charge
        index = cast(int, segment.index_of(sequence))
        segment.end(index)
        segment.journal.note(kind, sequence)
        self._memory.forget_recent(sequence)
        if not segment.live:
            self._forget_if_finished(cast(Store, self._store), segment)
        return segment.charges[index]

    def _forget_if_finished(self, store: Store, segment: Segment) -> None:
        if not segment.live and segment is not store.active and segment is not store.segments[-1]:
            self._doomed += store.forget_finished(segment)

    def _leases_of(self, block: Block) -> int:
        if block.end or not (self._flight or self._leases):
            return 0
        return self._leases.get(block.sequence, 0) + (block.sequence in self._flight)

    def _moved_to_disk(self, segment: Segment, blocks: Sequence[Block]) -> None:
        if not (self._flight or self._returned):
            return
        for block in blocks:
            if block.sequence in self._flight:
                self._flight[block.sequence] = segment
            elif block.sequence not in self._returned:
                continue
            segment.take(cast(int, segment.index_of(block.sequence)))

    # Keeping

    def marks(self) -> dict[str, str]:
        """The newest value of every mark that was put durably; acks, restarts and deleted segments change nothing."""
        with self._lock:
            return dict(self._marks)

    def flush(self) -> None:
        """Everything that was put is on disk when this returns."""
        with self._lock:
            if self._closed:
                raise SpoolClosed()
        try:
            self._flush()
        except OSError as error:
            raise write_error(error) from error

    def _flush(self) -> None:
        if self._writer is None:
            return
        with self._lock:
            target = self._numbers.next - 1
        error = self._writer.wait(lambda: self._numbers.synced >= target, sync=True)
        self._sweep()
        if error is not None:
            raise error

    def maintain(self) -> None:
        """What has to be done now and then: write what waits in memory too long, sync journals, refresh the hint."""
        store = self._store
        if store is None:
            return
        with self._lock:
            stale = bool(self._memory.blocks) and time.monotonic() - self._memory_since >= self.options.stale_flush
        try:
            if stale:
                self._flush()
            self._sync_journals(store)
            if not store.ballast:
                store.make_ballast()
            self._tell_meta(store)
        except OSError as error:
            self._ledger.last_error = str(error)
            log.warning("spool %s: %s", store.folder, error, extra={"action": "spool_maintain"})
        self._sweep()

    def _keep(self) -> None:
        while not self._stop.wait(min(self.options.meta_sync, max(self.options.stale_flush, 0.01))):
            self.maintain()

    def _sync_journals(self, store: Store) -> None:
        with self._lock:
            journals = [segment.journal for segment in store.segments if segment.journal.needs_sync]
        with self._cleaning:
            for journal in journals:
                journal.sync()

    def _tell_meta(self, store: Store) -> None:
        with self._lock:
            told = (self._numbers.next, self._numbers.synced, self._ledger.size, self._ledger.bytes)
            facts = {"segments": [segment.path.name for segment in store.segments], "written_at": time.time()}
        if told == self._meta_told:
            return
        names = ("next_sequence", "synced", "size", "bytes")
        try:
            write_meta(store.files, store.folder, {**facts, **dict(zip(names, told, strict=True))})
        except OSError as error:  # only a hint
            self._ledger.last_error = str(error)
            return
        self._meta_told = told
        self._ledger.meta_syncs += 1

    def _sweep(self) -> None:
        """Remove finished segments, without the lock: it takes an fsync of the directory."""
        while self._doomed:
            with self._cleaning:
                with self._lock:
                    if not self._doomed:
                        return
                    segment, older = self._doomed.pop(0)
                with self._reading:
                    cast(Store, self._store).remove(segment, older)
            with self._lock:
                self._room.notify_all()

    def stats(self) -> SpoolStats:
        """One consistent answer."""
        store = self._store
        available = None if store is None else store.files.available(store.folder)
        with self._lock:
            files = {} if store is None else store.figures()
            return SpoolStats(
                **self._ledger.counts(),
                **files,
                max_size=self.options.max_size,
                max_bytes=self.options.max_bytes,
                in_flight=len(self._flight),
                delayed=self._returned.delayed(time.monotonic()),
                inmemory_blocks=len(self._memory.blocks),
                inmemory_bytes=self._memory.bytes,
                disk_available=available,
                oldest_put_at=self._oldest_put_at(),
                next_id=self._numbers.next,
                durable_id=self._numbers.synced if store is not None else 0,
            )

    def _oldest_put_at(self) -> float | None:
        found = self._store.oldest_live() if self._store is not None else None
        if found is None:
            block = next(iter(self._memory.blocks.values()), None)
            return block.put_at if block is not None else None
        segment, index = found
        sequence = segment.sequence_at(index)
        if self._oldest[0] != sequence:
            block = self._memory.recent.get(sequence)
            self._oldest = (sequence, block.put_at if block is not None else _put_at(segment, index))
        return self._oldest[1]


def _put_at(segment: Segment, index: int) -> float | None:
    try:
        head = decode_head(segment.read_bytes(segment.offsets[index], HEADER_BYTES), 0, segment.salt)
    except OSError:
        return None
    return head.put_at_us / 1e6 if head is not None else None


def take_lock(files: Files, folder: Path) -> int:
    for left in reversed(range(LOCK_TRIES)):
        try:
            handle = files.lock(folder / LOCK)
        except BlockingIOError:
            if not left:
                break
            time.sleep(LOCK_PAUSE_S)
        else:
            _tell_holder(files, handle)
            return handle
    holder = read_all(files, folder / LOCK).decode("ascii", "replace").strip() or "unknown"
    raise SpoolBusy(
        f"Process {holder} has the spool {folder} open. Nothing was touched; stop that process, or use another"
        " directory."
    )


def _tell_holder(files: Files, handle: int) -> None:
    try:
        files.truncate(handle, 0)
        files.write(handle, f"{os.getpid()}\n".encode())
    except OSError:
        pass  # the lock is held all the same; only its message will say less


def write_error(error: OSError) -> SpoolError:
    """As the caller sees it."""
    if is_no_space(error):
        return SpoolDiskFull()
    return SpoolWriteFailed(
        f"The spool's disk failed: {error}. The record was not accepted; what was accepted before is kept. Look at the"
        " disk, then put it again."
    )
