"""Lease, ack, nack, release and reject records.

A lease is noted in the journal before the record is returned. Consecutive records on disk are read and checked
together, also when they are leased one by one: records read ahead are kept here, and used only while they are next. A
corrupt record is counted and quarantined, and affects no other. A record that cannot be read temporarily (the disk is
away for a moment, too many open files) is kept; it counts as corrupt only after its disk has failed to read it for
READ_ERROR_TIMEOUT_S.
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

AHEAD_RECORDS, AHEAD_BYTES = 64, 256 * 1024  # read, checked and decompressed together
PATIENCE_S = 60.0  # read errors (EIO) of a record for this long mean that it is corrupt


class Ahead:
    """Records of a segment that were read but not leased, in reverse order."""

    __slots__ = ("index", "is_next", "records", "segment")

    def __init__(self, segment: Segment, index: int, records: list[Record]) -> None:
        self.segment = segment
        self.index = index  # index of the next record
        self.records = records
        self.is_next = False  # it is the next record of the spool; once it is leased, so is the one after it


class Leasing:
    def __init__(self, state: State, upkeep: Upkeep) -> None:
        self._state = state
        self._upkeep = upkeep
        self._ahead: Ahead | None = None
        self._unread: dict[int, float] = {}  # records with read errors, and since when

    # Leasing

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
                    continue  # corrupt on disk, and counted
            if record is None or not (record.attempts and self._is_worn_out(record)):
                return record

    def _lease_ahead(self, ahead: Ahead) -> Record | None:
        """Lease the next record if it was read ahead; None if it was not."""
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
        """Lease consecutive records on disk, if they are next and need nothing but reading; empty otherwise."""
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
        if len(records) < count:  # at least one is corrupt or unreadable
            records = self._one_by_one(numbers, segment, tried)
        if state.options.max_attempts is not None:
            records = [record for record in records if not self._is_worn_out(record)]
        return records

    def _one_by_one(self, numbers: range, segment: Segment, tried: Iterable[int]) -> list[Record]:
        """Read leased records one by one and return the intact ones. If one cannot be read now, release those after
        it."""
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
        """Move the record to dead/ and return True if its attempts are used up."""
        most = self._state.options.max_attempts
        if most is None or record.attempts < most:
            return False
        self._bury(record, f"leased {record.attempts} times without being acknowledged (max_attempts)")
        return True

    # Reading, and read errors

    def _as_record_or_release(
        self, sequence: int, segment: Segment | None, block: Block | None, attempts: int
    ) -> Record | None:
        try:
            return self._as_record(sequence, segment, block, attempts)
        except SpoolReadFailed:
            self.release(sequence)
            raise

    def _as_record(self, sequence: int, segment: Segment | None, block: Block | None, attempts: int) -> Record | None:
        """Return a leased record; None if it is corrupt, in which case it is counted. Raises SpoolReadFailed if it
        cannot be read now."""
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
                    segment.stop_reading()  # only a new handle works after the disk has come back
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
        """Return True if the record is lost: its file is missing, or reading it has failed with EIO for
        READ_ERROR_TIMEOUT_S. Other errors, such as too many open files, may pass."""
        if error.errno != errno.EIO:
            return isinstance(error, FileNotFoundError)
        now = time.monotonic()
        return now - self._unread.setdefault(sequence, now) >= PATIENCE_S

    def _lose(self, sequence: int, segment: Segment, index: int, reason: str) -> None:
        """Quarantine the bytes of a corrupt record and count it as lost."""
        self._unread.pop(sequence, None)
        state, store = self._state, cast(Store, self._state.store)
        start, end = segment.span(index)
        kept = 0
        try:
            quarantine(store.files, store.folder, segment, Hole(start, end, reason), (sequence, sequence))
            kept = 1
        except OSError as error:
            log.warning(
                "%s: could not copy damaged bytes to quarantine/: %s",
                segment.path,
                error,
                extra={"action": "spool_quarantine"},
            )
        with state.lock:
            if segment.states[index] != DONE:
                state.ledger.quarantined += kept
                state.flight.pop(sequence, None)
                state.returned.remove(sequence)
                state.finish(sequence, segment, Kind.CORRUPT)
        log.error(
            "%s: lost record %d: its bytes are corrupt", segment.path, sequence, extra={"action": "spool_corrupt"}
        )
        self._upkeep.sweep()

    def found_damage(self, segment: Segment, hole: Hole) -> None:
        """Mark the records in an unreadable range as corrupt, except those in flight. Called for ranges found after a
        failed fsync."""
        for index, offset in enumerate(segment.offsets):
            if hole.at <= offset < hole.end and segment.states[index] != DONE:
                sequence = segment.sequence_at(index)
                if sequence not in self._state.flight:
                    self._lose(sequence, segment, index, hole.reason)

    # Finishing

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
            self.reject(id, reason or f"leased {attempts} times without being acknowledged (max_attempts)")

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
        log.error("moved record %d to dead/: %s", record.id, reason, extra={"action": "spool_dead"})
