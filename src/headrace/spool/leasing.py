"""Lease, ack, nack, release, hold and reject records.

A lease is noted in the journal before the record is returned. Consecutive records on disk are read and checked
together, even if they are leased one by one: records that were read ahead are kept here, and used only while they are
the next ones to lease. A corrupt record is counted and quarantined; other records are not affected. A record that
temporarily cannot be read (the disk does not respond, too many open files) stays in the spool; it counts as corrupt
only after reading it has failed for READ_ERROR_TIMEOUT_S.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.errors import SpoolReadFailed, UnknownRecord
from headrace.spool.files import to_spool_error
from headrace.spool.journal import ACKED, LEASED, NoteKind
from headrace.spool.maintenance import SpoolMaintenance
from headrace.spool.memory import BufferedRecord
from headrace.spool.record import SpoolRecord, UnreadableRecord
from headrace.spool.recovery import quarantine_range
from headrace.spool.retained_files import DEAD, write_retained_file
from headrace.spool.scan import UnreadableRange
from headrace.spool.segment import DONE, Segment
from headrace.spool.state import SpoolState
from headrace.spool.store import SegmentStore

log = logging.getLogger(__name__)

AHEAD_RECORDS, AHEAD_BYTES = 64, 256 * 1024  # read, checked and decompressed together
READ_ERROR_TIMEOUT_S = 60.0  # read errors (EIO) of a record for this long mean that it is corrupt


@dataclass(slots=True)
class ReadAheadBuffer:
    """Records of a segment that were read but not leased, in reverse order."""

    segment: Segment
    index: int  # index of the next record
    records: list[SpoolRecord]
    is_next: bool = False  # it is the next record of the spool; once it is leased, so is the one after it


class Leasing:
    def __init__(self, state: SpoolState, maintenance: SpoolMaintenance) -> None:
        self._state = state
        self._maintenance = maintenance
        self._ahead: ReadAheadBuffer | None = None
        self._unread: dict[int, float] = {}  # records with read errors, and since when

    # Leasing

    def lease(self, timeout: float | None) -> SpoolRecord | None:
        state = self._state
        deadline = None if timeout is None else time.monotonic() + timeout if timeout > 0 else 0.0
        while True:
            with state.lock:
                record = self._lease_ahead(self._ahead) if self._ahead is not None else None
                taken = self._take_next(deadline) if record is None else None
            if taken is not None:
                record = self._read_record_or_release(*taken)
                if record is None:
                    continue  # corrupt on disk, and counted
            if record is None or not (record.attempts and self._bury_if_exhausted(record)):
                return record

    def _lease_ahead(self, ahead: ReadAheadBuffer) -> SpoolRecord | None:
        """Lease the next record if it was read ahead; None if it was not."""
        state, segment, index = self._state, ahead.segment, ahead.index
        if state.closed or state.find_next_returned(time.monotonic()) is not None:
            return None
        ahead.is_next = ahead.is_next or cast(SegmentStore, state.store).find_next_fresh() == (segment, index)
        if not (ahead.is_next and segment.mark_taken(index)):
            self._ahead = None
            return None
        record = ahead.records.pop()
        ahead.index = index + 1
        if not ahead.records:
            self._ahead = None
        attempts = state.lease(record.id, segment)
        return record._replace(attempts=attempts) if attempts else record

    def _take_next(self, deadline: float | None) -> tuple[int, Segment | None, BufferedRecord | None, int] | None:
        sequence = self._await_next(deadline)
        if sequence is None:
            return None
        segment = self._state.remove_waiting(sequence)
        return sequence, segment, self._state.memory.find(sequence), self._state.lease(sequence, segment)

    def _await_next(self, deadline: float | None) -> int | None:
        state = self._state
        while not state.closed:
            now = time.monotonic()
            found = state.find_next_ready(now)
            if found is not None:
                return found
            if deadline is not None and now >= deadline:
                return None
            due = state.requeued.find_next_due()
            ends = [end - now for end in (deadline, due) if end is not None]
            state.leasers += 1
            try:
                state.arrived.wait(min(ends) if ends else None)
            finally:
                state.leasers -= 1
        return None

    def lease_many(self, count: int) -> list[SpoolRecord]:
        records: list[SpoolRecord] = []
        while len(records) < count:
            found = self._lease_run(count - len(records))
            if not found:
                one = self.lease(0)
                if one is None:
                    break
                found = [one]
            records += found
        return records

    def _lease_run(self, most: int) -> list[SpoolRecord]:
        """Lease consecutive records on disk, if they are next and need nothing but reading; empty otherwise."""
        state = self._state
        with state.lock:
            if state.store is None or state.closed:
                return []
            if state.find_next_returned(time.monotonic()) is not None:
                return []
            found = state.store.find_next_fresh()
            if found is None:
                return []
            segment, index = found
            first = segment.get_sequence(index)
            if state.memory.recent and first >= next(iter(state.memory.recent)):
                return []
            count = segment.mark_run_taken(index, most)
            numbers = range(first, first + count)
            tried = [state.leases.get(each, 0) for each in numbers] if state.leases else bytes(count)
            state.in_flight.update(dict.fromkeys(numbers, segment))
            state.ledger.retries += count - tried.count(0)
            segment.journal.note(LEASED, first, count)
        with self._maintenance.reading:
            records = segment.read_run(index, tried)
        if len(records) < count:  # at least one is corrupt or unreadable
            records = self._read_one_by_one(numbers, segment, tried)
        if state.options.max_attempts is not None:
            records = [record for record in records if not self._bury_if_exhausted(record)]
        return records

    def _read_one_by_one(self, numbers: range, segment: Segment, tried: Iterable[int]) -> list[SpoolRecord]:
        """Read leased records one by one and return the intact ones. If one cannot be read now, release those after
        it."""
        records: list[SpoolRecord] = []
        for number, times in zip(numbers, tried, strict=True):
            try:
                record = self._read_record_or_release(number, segment, None, times)
            except SpoolReadFailed:
                for other in range(number + 1, numbers.stop):
                    self.release(other)
                if records:
                    return records
                raise
            if record is not None:
                records.append(record)
        return records

    def _bury_if_exhausted(self, record: SpoolRecord) -> bool:
        """Move the record to dead/ and return True if its attempts are used up."""
        most = self._state.options.max_attempts
        if most is None or record.attempts < most:
            return False
        self._bury(record, f"leased {record.attempts} times without being acknowledged (max_attempts)")
        return True

    # Reading, and read errors

    def _read_record_or_release(
        self, sequence: int, segment: Segment | None, block: BufferedRecord | None, attempts: int
    ) -> SpoolRecord | None:
        try:
            return self._read_record(sequence, segment, block, attempts)
        except SpoolReadFailed:
            self.release(sequence)
            raise

    def _read_record(
        self, sequence: int, segment: Segment | None, block: BufferedRecord | None, attempts: int
    ) -> SpoolRecord | None:
        """Return a leased record; None if it is corrupt, in which case it is counted. Raises SpoolReadFailed if it
        cannot be read now."""
        if block is not None:
            return SpoolRecord(sequence, block.payload, block.token, block.meta, attempts, block.put_at)
        segment = cast(Segment, segment)
        index = cast(int, segment.find_index(sequence))
        try:
            with self._maintenance.reading:
                records = segment.read_ahead(index, attempts, AHEAD_RECORDS, AHEAD_BYTES)
        except OSError as error:
            if not self._is_unrecoverable(sequence, error):
                with self._maintenance.reading:
                    segment.reader.close()  # only a new handle works after the disk has come back
                raise SpoolReadFailed(f"{SpoolReadFailed.__doc__} ({error})") from error
            self._mark_corrupt(sequence, segment, index, str(error))
            return None
        except UnreadableRecord as error:
            self._mark_corrupt(sequence, segment, index, str(error))
            return None
        self._unread.pop(sequence, None)
        if len(records) > 1:
            self._ahead = ReadAheadBuffer(segment, index + 1, records[:0:-1])
        return records[0]

    def _is_unrecoverable(self, sequence: int, error: OSError) -> bool:
        """Return True if the record is lost: its file is missing, or reading it has failed with EIO for
        READ_ERROR_TIMEOUT_S. Other errors, such as too many open files, may pass."""
        if error.errno != errno.EIO:
            return isinstance(error, FileNotFoundError)
        now = time.monotonic()
        return now - self._unread.setdefault(sequence, now) >= READ_ERROR_TIMEOUT_S

    def _mark_corrupt(self, sequence: int, segment: Segment, index: int, reason: str) -> None:
        """Quarantine the bytes of a corrupt record and count it as lost."""
        self._unread.pop(sequence, None)
        state, store = self._state, cast(SegmentStore, self._state.store)
        hole = UnreadableRange(*segment.byte_range(index), reason)
        kept = quarantine_range(store.files, store.folder, segment, hole, (sequence, sequence))
        with state.lock:
            if segment.states[index] != DONE:
                state.ledger.quarantined += kept
                state.in_flight.pop(sequence, None)
                state.requeued.remove(sequence)
                state.finish(sequence, segment, NoteKind.CORRUPT)
        log.error(
            "%s: lost record %d: its bytes are corrupt", segment.path, sequence, extra={"action": "spool_corrupt"}
        )
        self._maintenance.sweep()

    def handle_damage(self, segment: Segment, hole: UnreadableRange) -> None:
        """Mark the records in an unreadable range as corrupt, except those in flight. Called for ranges found after a
        failed fsync."""
        for index, offset in enumerate(segment.offsets):
            if hole.at <= offset < hole.end and segment.states[index] != DONE:
                sequence = segment.get_sequence(index)
                if sequence not in self._state.in_flight:
                    self._mark_corrupt(sequence, segment, index, hole.reason)

    # Finishing

    def ack(self, id: int) -> None:
        state = self._state
        with state.lock:
            state.finish(id, state.remove_in_flight(id), ACKED)
        if state.finished_segments:
            self._maintenance.sweep()

    def ack_many(self, ids: Sequence[int]) -> None:
        state = self._state
        with state.lock:
            given = set(ids)
            if len(given) != len(ids) or not given <= state.in_flight.keys():
                raise UnknownRecord()
            at = 0
            while at < len(ids):
                at += state.finish_acked_run(ids, at)
            state.room.notify_all()
        self._maintenance.sweep()

    def nack(self, id: int, delay: float, reason: str) -> None:
        state = self._state
        with state.lock:
            if id not in state.in_flight:
                raise UnknownRecord()
            attempts, most = state.leases.get(id, 0) + 1, state.options.max_attempts
            if reason:
                state.ledger.last_error = reason
            dies = most is not None and attempts >= most
            if not dies:
                del state.in_flight[id]
                state.leases[id] = attempts
                state.requeue(id, delay)
        if dies:
            self.reject(id, reason or f"leased {attempts} times without being acknowledged (max_attempts)")

    def release(self, id: int) -> None:
        state = self._state
        with state.lock:
            state.note(NoteKind.RELEASED, id, state.remove_in_flight(id))
            state.requeue(id, 0.0)

    def hold(self, id: int, holds_later: bool) -> bool:
        with self._state.lock:
            return self._state.hold(id, holds_later)

    def reject(self, id: int, reason: str) -> None:
        state = self._state
        with state.lock:
            if id not in state.in_flight:
                raise UnknownRecord()
            segment, block = state.in_flight[id], state.memory.find(id)
            attempts = state.leases.get(id, 0) + 1
        record = self._read_record(id, segment, block, attempts)
        if record is not None:
            self._bury(record, reason)

    def _bury(self, record: SpoolRecord, reason: str) -> None:
        state = self._state
        facts = {"id": record.id, "token": record.token, "meta": dict(record.meta), "attempts": record.attempts}
        facts |= {"put_at": record.put_at, "died_at": time.time(), "reason": reason}
        if state.store is not None:
            folder = state.store.folder / DEAD
            try:
                write_retained_file(state.store.files, folder, f"{record.id:016x}", facts, record.payload)
            except OSError as error:
                raise to_spool_error(error) from error
        with state.lock:
            state.finish(record.id, state.remove_in_flight(record.id), NoteKind.DEAD)
            state.ledger.last_error = reason
        self._maintenance.sweep()
        log.error("moved record %d to dead/: %s", record.id, reason, extra={"action": "spool_dead"})
