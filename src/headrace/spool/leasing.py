"""From `lease` to an end: handing records out, and what those who have them say.

A lease is noted before the record is handed out. Neighbours on disk are read and checked together, also for those who
lease one by one: what was read ahead waits here, and counts only while it is next. A record that cannot be read any
more is counted, quarantined, and costs nobody but itself. One that the system cannot read just now (a disk that is away
for a moment, no more open files) is kept; only if its disk cannot give it for a minute is it damaged.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Sequence
from typing import cast

from headrace.errors import SpoolReadFailed, UnknownRecord
from headrace.spool.aside import DEAD, set_aside
from headrace.spool.files import write_error
from headrace.spool.journal import ACKED, LEASED, Kind
from headrace.spool.memory import Block
from headrace.spool.record import Record, Unreadable
from headrace.spool.recovery import quarantine
from headrace.spool.scan import Hole
from headrace.spool.segment import DONE, Segment
from headrace.spool.state import State
from headrace.spool.store import Store
from headrace.spool.upkeep import Upkeep

log = logging.getLogger(__name__)

AHEAD_RECORDS, AHEAD_BYTES = 64, 256 * 1024  # read, checked and decompressed at once, for those who lease one by one
PATIENCE_S = 60.0  # how long a disk may fail to read a record that is then taken for damaged


class Ahead:
    """Records of a segment that were read but not leased, the first one last."""

    __slots__ = ("index", "is_next", "records", "segment")

    def __init__(self, segment: Segment, index: int, records: list[Record]) -> None:
        self.segment = segment
        self.index = index  # of the first
        self.records = records
        self.is_next = False  # known to come before all that wait; then so does its neighbour when it is taken


class Leasing:
    def __init__(self, state: State, upkeep: Upkeep) -> None:
        self._state = state
        self._upkeep = upkeep
        self._ahead: Ahead | None = None
        self._unread: dict[int, float] = {}  # records that the disk could not give, and since when

    # Handing out

    def lease(self, timeout: float | None) -> Record | None:
        state = self._state
        deadline = None if timeout is None else time.monotonic() + timeout if timeout > 0 else 0.0
        while True:
            with state.lock:
                record = self._lease_ahead(self._ahead) if self._ahead is not None else None
                taken = self._take_next(deadline) if record is None else None
            if taken is not None:
                record = self._as_record_or_release(*taken)
                if record is None:
                    continue  # damaged on disk since it was written; counted
            if record is None or not (record.attempts and self._is_worn_out(record)):
                return record

    def _lease_ahead(self, ahead: Ahead) -> Record | None:
        """The next one, if it was read ahead."""
        state, segment, index = self._state, ahead.segment, ahead.index
        if state.closed or (state.returned and state.returned.ready(time.monotonic()) is not None):
            return None
        ahead.is_next = ahead.is_next or cast(Store, state.store).next_fresh() == (segment, index)
        if not (ahead.is_next and segment.take(index)):
            self._ahead = None
            return None
        record = ahead.records.pop()
        ahead.index = index + 1
        if not ahead.records:
            self._ahead = None
        attempts = state.lease(record.id, segment)
        return record._replace(attempts=attempts) if attempts else record

    def _take_next(self, deadline: float | None) -> tuple[int, Segment | None, Block | None, int] | None:
        sequence = self._await_next(deadline)
        if sequence is None:
            return None
        segment = self._state.take(sequence)
        return sequence, segment, self._state.memory.find(sequence), self._state.lease(sequence, segment)

    def _await_next(self, deadline: float | None) -> int | None:
        state = self._state
        while not state.closed:
            now = time.monotonic()
            found = state.next_ready(now)
            if found is not None:
                return found
            if deadline is not None and now >= deadline:
                return None
            due = state.returned.next_due()
            ends = [end - now for end in (deadline, due) if end is not None]
            state.leasers += 1
            try:
                state.arrived.wait(min(ends) if ends else None)
            finally:
                state.leasers -= 1
        return None

    def lease_many(self, count: int) -> list[Record]:
        records: list[Record] = []
        while len(records) < count:
            found = self._lease_run(count - len(records))
            if not found:
                one = self.lease(0)
                if one is None:
                    break
                found = [one]
            records += found
        return records

    def _lease_run(self, most: int) -> list[Record]:
        """Neighbours on disk, if they are next and none of them needs more than to be read."""
        state = self._state
        with state.lock:
            if state.store is None or state.closed:
                return []
            if state.returned and state.returned.ready(time.monotonic()) is not None:
                return []
            found = state.store.next_fresh()
            if found is None:
                return []
            segment, index = found
            first = segment.sequence_at(index)
            if state.memory.recent and first >= next(iter(state.memory.recent)):
                return []
            count = segment.take_run(index, most)
            numbers = range(first, first + count)
            tried = [state.leases.get(each, 0) for each in numbers] if state.leases else bytes(count)
            state.flight.update(dict.fromkeys(numbers, segment))
            state.ledger.retries += count - tried.count(0)
            segment.journal.note(LEASED, first, count)
        with self._upkeep.reading:
            records = segment.read_run(index, tried)
        if len(records) < count:  # one does not hold
            records = self._one_by_one(numbers, segment, tried)
        if state.options.max_attempts is not None:
            records = [record for record in records if not self._is_worn_out(record)]
        return records

    def _one_by_one(self, numbers: range, segment: Segment, tried: Iterable[int]) -> list[Record]:
        """Those that hold. What comes after one that cannot be read now goes back."""
        records: list[Record] = []
        for number, times in zip(numbers, tried, strict=True):
            try:
                record = self._as_record_or_release(number, segment, None, times)
            except SpoolReadFailed:
                for other in range(number + 1, numbers.stop):
                    self.release(other)
                if records:
                    return records
                raise
            if record is not None:
                records.append(record)
        return records

    def _is_worn_out(self, record: Record) -> bool:
        most = self._state.options.max_attempts
        if most is None or record.attempts < most:
            return False
        self._bury(record, f"leased {record.attempts} times without an end")
        return True

    # Reading, and what cannot be read

    def _as_record_or_release(
        self, sequence: int, segment: Segment | None, block: Block | None, attempts: int
    ) -> Record | None:
        try:
            return self._as_record(sequence, segment, block, attempts)
        except SpoolReadFailed:
            self.release(sequence)
            raise

    def _as_record(self, sequence: int, segment: Segment | None, block: Block | None, attempts: int) -> Record | None:
        """None: it is damaged. Raises SpoolReadFailed if that is not known."""
        if block is not None:
            return Record(sequence, block.payload, block.token, block.meta, attempts, block.put_at)
        segment = cast(Segment, segment)
        index = cast(int, segment.index_of(sequence))
        try:
            with self._upkeep.reading:
                records = segment.read_ahead(index, attempts, AHEAD_RECORDS, AHEAD_BYTES)
        except OSError as error:
            if not self._is_gone(sequence, error):
                with self._upkeep.reading:
                    segment.stop_reading()  # a disk that came back is found by a new handle only
                raise SpoolReadFailed(f"{SpoolReadFailed.__doc__} ({error})") from error
            self._lose(sequence, segment, index, str(error))
            return None
        except Unreadable as error:
            self._lose(sequence, segment, index, str(error))
            return None
        self._unread.pop(sequence, None)
        if len(records) > 1:
            self._ahead = Ahead(segment, index + 1, records[:0:-1])
        return records[0]

    def _is_gone(self, sequence: int, error: OSError) -> bool:
        """A bad sector, and not a disk that hangs on a cable or a network, or a process with too many open files."""
        if error.errno != errno.EIO:
            return isinstance(error, FileNotFoundError)
        now = time.monotonic()
        return now - self._unread.setdefault(sequence, now) >= PATIENCE_S

    def _lose(self, sequence: int, segment: Segment, index: int, reason: str) -> None:
        """Damaged since it was written."""
        self._unread.pop(sequence, None)
        state, store = self._state, cast(Store, self._state.store)
        start, end = segment.span(index)
        kept = 0
        try:
            quarantine(store.files, store.folder, segment, Hole(start, end, reason), (sequence, sequence))
            kept = 1
        except OSError as error:
            log.warning("%s: cannot quarantine: %s", segment.path, error, extra={"action": "spool_quarantine"})
        with state.lock:
            if segment.states[index] != DONE:
                state.ledger.quarantined += kept
                state.flight.pop(sequence, None)
                state.returned.remove(sequence)
                state.finish(sequence, segment, Kind.CORRUPT)
        log.error("%s: record %d is damaged and lost", segment.path, sequence, extra={"action": "spool_corrupt"})
        self._upkeep.sweep()

    def found_damage(self, segment: Segment, hole: Hole) -> None:
        """By the reading back after a failed fsync."""
        for index, offset in enumerate(segment.offsets):
            if hole.at <= offset < hole.end and segment.states[index] != DONE:
                sequence = segment.sequence_at(index)
                if sequence not in self._state.flight:
                    self._lose(sequence, segment, index, hole.reason)

    # Ends

    def ack(self, id: int) -> None:
        state = self._state
        with state.lock:
            state.finish(id, state.land(id), ACKED)
        if state.doomed:
            self._upkeep.sweep()

    def ack_many(self, ids: Sequence[int]) -> None:
        state = self._state
        with state.lock:
            given = set(ids)
            if len(given) != len(ids) or not given <= state.flight.keys():
                raise UnknownRecord()
            at = 0
            while at < len(ids):
                at += state.ack_run(ids, at)
            state.room.notify_all()
        self._upkeep.sweep()

    def nack(self, id: int, delay: float, reason: str) -> None:
        state = self._state
        with state.lock:
            if id not in state.flight:
                raise UnknownRecord()
            attempts, most = state.leases.get(id, 0) + 1, state.options.max_attempts
            if reason:
                state.ledger.last_error = reason
            dies = most is not None and attempts >= most
            if not dies:
                del state.flight[id]
                state.leases[id] = attempts
                state.come_back(id, delay)
        if dies:
            self.reject(id, reason or f"leased {attempts} times without an end")

    def release(self, id: int) -> None:
        state = self._state
        with state.lock:
            state.note(Kind.RELEASED, id, state.land(id))
            state.come_back(id, 0.0)

    def reject(self, id: int, reason: str) -> None:
        state = self._state
        with state.lock:
            if id not in state.flight:
                raise UnknownRecord()
            segment, block = state.flight[id], state.memory.find(id)
            attempts = state.leases.get(id, 0) + 1
        record = self._as_record(id, segment, block, attempts)
        if record is not None:
            self._bury(record, reason)

    def _bury(self, record: Record, reason: str) -> None:
        state = self._state
        facts = {"id": record.id, "token": record.token, "meta": dict(record.meta), "attempts": record.attempts}
        facts |= {"put_at": record.put_at, "died_at": time.time(), "reason": reason}
        if state.store is not None:
            folder = state.store.folder / DEAD
            try:
                set_aside(state.store.files, folder, f"{record.id:016x}", facts, record.payload)
            except OSError as error:
                raise write_error(error) from error
        with state.lock:
            state.finish(record.id, state.land(record.id), Kind.DEAD)
            state.ledger.last_error = reason
        self._upkeep.sweep()
        log.error("record %d is dead: %s", record.id, reason, extra={"action": "spool_dead"})
