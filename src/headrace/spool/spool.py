"""The spool: a queue with a memory layer in front of files, in one order across both.

Guarantees:

- When a durable `put` has returned, its record is delivered, in order and again after crashes, until it is acked,
  rejected or replaced (or dropped, if `full_behavior` is `drop_oldest`). It is not leased before it is on disk.
- `lease` never removes a record: unless it is acked, rejected or replaced, it is leased again, in its position and with
  its attempts counted, also after a crash.
- The limits on records and bytes hold after every put; records in flight count too. Only the parts that replace a
  record may exceed them.
- Dropped, corrupt and dead records are counted (dropped ones by reason), and
  `pushed = acked + dropped + corrupt + dead + size` holds in every result of `stats`.

Implemented by `state.py` (what the lock guards), `admission.py` (put), `leasing.py` (lease, ack, nack, reject),
`writer.py` (memory to disk) and `maintenance.py` (background work). The lock is never held during an fsync or while a
payload is read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.errors import SpoolClosed
from headrace.spool.admission import Admission
from headrace.spool.directory_lock import take_lock
from headrace.spool.files import Files, to_spool_error
from headrace.spool.journal import NoteKind
from headrace.spool.leasing import Leasing
from headrace.spool.maintenance import SpoolMaintenance
from headrace.spool.memory import BufferedRecord
from headrace.spool.options import SpoolOptions, SpoolStats
from headrace.spool.record import NO_PAIRS, NewRecord, SpoolRecord
from headrace.spool.recovery import RecoveryResult, recover
from headrace.spool.state import SpoolState
from headrace.spool.store import SegmentStore
from headrace.spool.writer import SpoolWriter


class Spool:
    """A durable queue. Open with `Spool.open`; use from any number of threads; call `close`, or use as a context
    manager."""

    def __init__(self, options: SpoolOptions, recovered: RecoveryResult, store: SegmentStore | None) -> None:
        self.options = options
        self._always_durable = options.sync == "always"
        self._state = SpoolState(options, recovered, store)
        writer = None if store is None else SpoolWriter(self._state, store)
        self._maintenance = SpoolMaintenance(self._state, writer)
        self._admission = Admission(self._state, writer, self._maintenance)
        self._leasing = Leasing(self._state, self._maintenance)
        if writer is not None:
            writer.on_damage = self._leasing.handle_damage

    # Opening and closing

    @classmethod
    def open(
        cls,
        options: SpoolOptions,
        *,
        files: Files | None = None,
        background: bool = True,
    ) -> Spool:
        """Lock the directory, recover it and open the spool. Without `background`, the caller must call `maintain`
        regularly.

        Raises SpoolBusy, SpoolFormatError, SpoolDiskFull or SpoolWriteFailed.
        """
        if options.type == "memory" or options.path is None:
            return cls(options, RecoveryResult(), None)
        files = files or Files()
        folder = options.path.absolute()
        try:
            files.make_directory(folder)
            lock = take_lock(files, folder)
            try:
                spool = cls._recover(options, files, folder, lock)
            except BaseException:
                files.close(lock)
                raise
        except OSError as error:
            raise to_spool_error(error) from error
        if background:
            spool._maintenance.start()
        return spool

    @classmethod
    def _recover(cls, options: SpoolOptions, files: Files, folder: Path, lock: int) -> Spool:
        found = recover(files, folder)
        store = SegmentStore(files, folder, found.segments, lock)
        spool = cls(options, found, store)
        if found.reusable is not None:
            store.adopt(found.reusable)
        else:
            if found.segments and found.next_sequence > found.first_void:
                journal = found.segments[-1].journal
                journal.note(NoteKind.GONE, found.first_void, found.next_sequence - found.first_void)
                journal.sync()
            store.adopt(store.open_segment(found.next_sequence, found.marks, 0, use_ballast=True))
        store.make_ballast()
        for segment in list(store.segments):
            spool._state.detach_if_finished(segment)
        spool._maintenance.sweep()
        spool._maintenance.measure_retained(store)
        return spool

    def close(self) -> None:
        """Write the memory layer to disk, release records in flight and unlock the directory; nothing is lost. If the
        disk fails, the directory is unlocked anyway, and this raises."""
        state, store = self._state, self._state.store
        with state.lock:
            if state.closed:
                return
            state.closed = True
            state.arrived.notify_all()
            state.room.notify_all()
        self._maintenance.stop()
        if store is None:
            return
        try:
            self._maintenance.finish(store)
        except OSError as error:
            raise to_spool_error(error) from error
        finally:
            self._maintenance.sweep()
            with self._maintenance.reading, self._maintenance.cleaning:
                store.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exception: object) -> None:
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
        """Put a record. Return its id, or DROPPED (0) if `drop_newest` dropped it. A durable put returns when the
        record is as safe as the sync policy makes it.

        Raises SpoolFull (`block` timed out, or nothing can be dropped), SpoolDiskFull, SpoolWriteFailed or
        RecordTooLarge; the record was not accepted then.
        """
        durable = durable or self._always_durable
        return self._admission.put((BufferedRecord(bytes(payload), token, meta, marks, time.time(), durable),))

    def put_many(
        self, records: Sequence[NewRecord], *, marks: Mapping[str, str] = NO_PAIRS, durable: bool = True
    ) -> list[int]:
        """Put records; all are accepted or none. Return their ids; empty if they were dropped. The marks apply to all
        of them: after a crash they count only if all records are there. Raises as `put` does."""
        durable = durable or self._always_durable
        now, last = time.time(), len(records)
        if not records:
            return []
        blocks = [
            BufferedRecord(
                *(bytes(each.payload), each.token, each.meta, marks if number == last else NO_PAIRS, now, durable)
            )
            for number, each in enumerate(records, 1)
        ]
        return [block.sequence for block in blocks] if self._admission.put(blocks) else []

    def replace(self, id: int, parts: Sequence[NewRecord]) -> list[int]:
        """Replace a record in flight by parts that take its position in the order. Return their ids.

        After a crash, either all parts are there or the record as it was. Parts of a part share the position of the
        first record, after its other parts. The parts are durable when this returns; they may exceed `max_size`,
        because the record could otherwise never leave.
        """
        if not parts:
            raise ValueError("a record must be replaced by at least one part")
        return self._admission.replace(id, parts)

    def flush(self) -> None:
        """Write every record that was put to disk. Raises SpoolClosed, SpoolDiskFull or SpoolWriteFailed."""
        if self._state.closed:
            raise SpoolClosed()
        try:
            self._maintenance.flush()
        except OSError as error:
            raise to_spool_error(error) from error

    # Leasing

    def lease(self, *, timeout: float | None = 0) -> SpoolRecord | None:
        """Lease the oldest record that is not in flight and whose delay has passed. Wait up to `timeout` seconds (None:
        forever). Return None if there is none, or if the spool was closed."""
        return self._leasing.lease(timeout)

    def lease_many(self, count: int) -> list[SpoolRecord]:
        """Lease up to `count` records without waiting. Much cheaper than one by one, for small records on disk."""
        return self._leasing.lease_many(count)

    def ack(self, id: int) -> None:
        """Finish a delivered record. Survives kill -9 at once and power loss within `meta_sync`; until then it may be
        delivered again. Raises UnknownRecord if it is not in flight."""
        self._leasing.ack(id)

    def ack_many(self, ids: Sequence[int]) -> None:
        """Finish delivered records: all, or none if one is not in flight. Consecutive records take one note."""
        self._leasing.ack_many(ids)

    def nack(self, id: int, *, delay: float = 0.0, reason: str = "") -> None:
        """Return an undelivered record: it is leased again in its position after `delay` seconds. The attempt survives
        a restart, the delay does not. After its last attempt the record moves to dead/."""
        self._leasing.nack(id, delay, reason)

    def release(self, id: int) -> None:
        """Return a record untried to its position, without counting an attempt."""
        self._leasing.release(id)

    def hold(self, id: int, *, holds_later: bool = False) -> bool:
        """Return a record in flight, untried, if a record before it is unfinished; it is leased again when all of them
        are finished. Return False if there is none: the record stays in flight and may be delivered.

        Records for which this was called do not wait for one another, unless `holds_later` was True for the earlier
        one. Nothing is stored: after a restart, the record is leased in its position, and this must be called again.
        """
        return self._leasing.hold(id, holds_later)

    def reject(self, id: int, reason: str) -> None:
        """Move a record that can never be delivered to dead/, with the reason. If it cannot be written there, this
        raises and the record stays in flight."""
        self._leasing.reject(id, reason)

    def end_delays(self) -> None:
        """Make nacked records ready now, for example when the destination has recovered."""
        with self._state.lock:
            self._state.requeued.end_delays()
            self._state.arrived.notify_all()

    # Reading

    def is_unfinished(self, id: int) -> bool:
        """Return True if a record that was leased at least once is not finished yet."""
        state = self._state
        with state.lock:
            return id in state.in_flight or id in state.leases or id in state.requeued or id in state.held

    def read_marks(self) -> dict[str, str]:
        """Return the newest value of every durable mark; acks, restarts and deleted segments do not change it."""
        with self._state.lock:
            return dict(self._state.marks)

    def maintain(self) -> None:
        """Do regular maintenance: flush old records in memory, sync journals, write the metadata."""
        self._maintenance.maintain()

    def stats(self) -> SpoolStats:
        state, store, maintenance = self._state, self._state.store, self._maintenance
        available = None if store is None else store.files.free_bytes(store.folder)
        with state.lock:
            return SpoolStats(
                **state.ledger.read_counts(),
                **({} if store is None else store.stats()),
                max_size=self.options.max_size,
                max_bytes=self.options.max_bytes,
                in_flight=len(state.in_flight),
                delayed=state.requeued.count_delayed(time.monotonic()),
                held=len(state.held),
                inmemory_blocks=len(state.memory.blocks),
                inmemory_bytes=state.memory.bytes,
                disk_available=available,
                quarantine_bytes=maintenance.quarantine_bytes,
                dead_bytes=maintenance.dead_bytes,
                oldest_put_at=state.read_oldest_put_at(),
                next_id=state.numbers.next,
                durable_id=state.numbers.synced if store is not None else 0,
            )
