"""The queue itself: memory first, files behind, one order across both.

Promises. A durable `put` that returned comes out, in order, until it is acked, whatever is killed in between; it is
leased only once it is durable. `lease` never removes: what is not acked, rejected or replaced comes back, in its
place, with its attempts counted, also after a crash. Limits hold at every instant, records in flight included. What is
dropped, damaged or buried is counted under its reason, and `pushed = acked + dropped + corrupt + dead + size` in every
answer of `stats`.

This is the face. Behind it: `state.py` (what one lock guards), `admission.py` (put), `leasing.py` (lease to end),
`writer.py` (memory to disk), `upkeep.py` (the rest). The lock is never held across an fsync or the reading of a
payload.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from headrace.errors import SpoolClosed
from headrace.spool.admission import DROPPED, Admission
from headrace.spool.aside import Aside
from headrace.spool.directory_lock import take_lock
from headrace.spool.files import Files, SystemFiles, write_error
from headrace.spool.inspect import Finding, Inspection, inspect, list_dead, list_quarantine, verify
from headrace.spool.journal import Kind
from headrace.spool.leasing import Leasing
from headrace.spool.memory import Block
from headrace.spool.options import FullBehavior, SpoolOptions, SpoolStats, SyncPolicy
from headrace.spool.record import NO_PAIRS, NewRecord, Record
from headrace.spool.recovery import Recovered, recover
from headrace.spool.state import State
from headrace.spool.store import Store
from headrace.spool.survey import Progress
from headrace.spool.upkeep import Upkeep
from headrace.spool.writer import Writer

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


class Spool:
    """Open with `Spool.open`; use from any number of threads; `close` when done, or use as a context manager."""

    def __init__(self, options: SpoolOptions, found: Recovered, store: Store | None, lock: int | None) -> None:
        self.options = options
        self._directory_lock = lock
        self._always_durable = options.sync == "always"
        self._state = State(options, found, store)
        writer = None if store is None else Writer(self._state, store)
        self._upkeep = Upkeep(self._state, writer)
        self._admission = Admission(self._state, writer, self._upkeep)
        self._leasing = Leasing(self._state, self._upkeep)
        if writer is not None:
            writer.on_damage = self._leasing.found_damage

    # Opening and closing

    @classmethod
    def open(
        cls,
        options: SpoolOptions,
        *,
        files: Files | None = None,
        progress: Progress | None = None,
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
            spool._upkeep.start()
        return spool

    @classmethod
    def _recover(cls, options: SpoolOptions, files: Files, folder: Path, lock: int, progress: Progress | None) -> Spool:
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
            spool._state.forget_if_finished(segment)
        spool._upkeep.sweep()
        spool._upkeep.count_asides(store)
        return spool

    def close(self) -> None:
        """Write what is in memory, give back what is in flight, unlock: nothing is lost. If the disk refuses, the
        directory is unlocked all the same, and this raises."""
        state, store = self._state, self._state.store
        with state.lock:
            if state.closed:
                return
            state.closed = True
            state.arrived.notify_all()
            state.room.notify_all()
        self._upkeep.stop()
        if store is None:
            return
        try:
            self._upkeep.finish(store)
        except OSError as error:
            raise write_error(error) from error
        finally:
            self._upkeep.sweep()
            self._shut(store)

    def _shut(self, store: Store) -> None:
        with self._upkeep.reading, self._upkeep.cleaning:
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
        durable = durable or self._always_durable
        return self._admission.put((Block(bytes(payload), token, meta, marks, time.time(), durable),))

    def put_many(
        self, records: Iterable[NewRecord], *, marks: Mapping[str, str] = NO_PAIRS, durable: bool = True
    ) -> list[int]:
        """All are accepted or none (then the list is empty, or it raises). The marks speak for all of them: they are
        believed after a crash only if all are there."""
        durable = durable or self._always_durable
        now = time.time()
        blocks = [Block(bytes(each.payload), each.token, each.meta, NO_PAIRS, now, durable) for each in records]
        if not blocks:
            return []
        if marks:
            blocks[-1].set_marks(marks)
        return [block.sequence for block in blocks] if self._admission.put(blocks) else []

    def replace(self, id: int, parts: Sequence[NewRecord | tuple[bytes, str, Mapping[str, str]]]) -> list[int]:
        """Cut a record in flight into parts, which take its place in the order: all of them or, after a crash in
        between, the record as it was. Parts of a part share the first record's place, after its other parts. The parts
        are durable when this returns; they may take the spool beyond `max_size`, since refusing them would keep the
        record from ever leaving."""
        if not parts:
            raise ValueError("a record is replaced by one part at least")
        given = [each if isinstance(each, NewRecord) else NewRecord(*each) for each in parts]
        return self._admission.replace(id, given)

    def flush(self) -> None:
        """Everything that was put is on disk when this returns."""
        if self._state.closed:
            raise SpoolClosed()
        try:
            self._upkeep.flush()
        except OSError as error:
            raise write_error(error) from error

    # Leasing

    def lease(self, *, timeout: float | None = 0) -> Record | None:
        """The oldest record that is not in flight and whose delay is over; waits for one up to `timeout` seconds, None:
        for ever. None: there is none, or the spool was closed."""
        return self._leasing.lease(timeout)

    def lease_many(self, count: int) -> list[Record]:
        """The next ones, up to so many, without waiting. Much cheaper than one by one, for small records on disk."""
        return self._leasing.lease_many(count)

    def ack(self, id: int) -> None:
        """Delivered. Survives kill -9 at once, power loss within `meta_sync`; before, it may be delivered again. Raises
        UnknownRecord if it is not in flight."""
        self._leasing.ack(id)

    def ack_many(self, ids: Sequence[int]) -> None:
        """All of them, or none if one is not in flight. One note for neighbours."""
        self._leasing.ack_many(ids)

    def nack(self, id: int, *, delay: float = 0.0, reason: str = "") -> None:
        """Not delivered: it comes again, in its place, after so many seconds. The delay does not survive a restart; the
        attempt does. With its last attempt used up, it is dead."""
        self._leasing.nack(id, delay, reason)

    def release(self, id: int) -> None:
        """Give it back untried: it is the next in its place again, and the lease does not count as an attempt."""
        self._leasing.release(id)

    def reject(self, id: int, reason: str) -> None:
        """It can never be delivered: to dead/, with the reason. If it cannot be written there, this raises and the
        record stays in flight."""
        self._leasing.reject(id, reason)

    def end_delays(self) -> None:
        """The destination is well again: nacked records need not wait any longer."""
        with self._state.lock:
            self._state.returned.end_delays()
            self._state.arrived.notify_all()

    # Looking

    def holds(self, id: int) -> bool:
        """Whether a record that was leased once has not come to an end, by whatever way."""
        state = self._state
        with state.lock:
            return id in state.flight or id in state.leases or id in state.returned

    def marks(self) -> dict[str, str]:
        """The newest value of every mark that was put durably; acks, restarts and deleted segments change nothing."""
        with self._state.lock:
            return dict(self._state.marks)

    def maintain(self) -> None:
        """What has to be done now and then: write what waits in memory too long, sync journals, refresh the hint."""
        self._upkeep.maintain()

    def stats(self) -> SpoolStats:
        """One consistent answer."""
        state, store, upkeep = self._state, self._state.store, self._upkeep
        available = None if store is None else store.files.available(store.folder)
        with state.lock:
            files = {} if store is None else store.figures()
            return SpoolStats(
                **state.ledger.counts(),
                **files,
                max_size=self.options.max_size,
                max_bytes=self.options.max_bytes,
                in_flight=len(state.flight),
                delayed=state.returned.delayed(time.monotonic()),
                inmemory_blocks=len(state.memory.blocks),
                inmemory_bytes=state.memory.bytes,
                disk_available=available,
                quarantine_bytes=upkeep.quarantine.bytes,
                dead_bytes=upkeep.dead.bytes,
                oldest_put_at=state.oldest_put_at(),
                next_id=state.numbers.next,
                durable_id=state.numbers.synced if store is not None else 0,
            )
