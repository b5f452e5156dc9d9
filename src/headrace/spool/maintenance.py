"""Background work of a spool: flush, journal sync, removal of finished segments, metadata.

All of it may need an fsync, so none of it happens while the spool's lock is held. Two other locks prevent that files
are removed too early: `cleaning` while a thread syncs the journal, `reading` while a thread reads the segment.
"""

from __future__ import annotations

import logging
import threading
import time

from headrace.spool.journal import Journal, NoteKind
from headrace.spool.meta import write_meta
from headrace.spool.retained_files import DEAD, QUARANTINE, measure_retained_files
from headrace.spool.state import SpoolState
from headrace.spool.store import SegmentStore
from headrace.spool.writer import SpoolWriter

log = logging.getLogger(__name__)

RESERVE = 65_536  # sequence numbers reserved by one synced note for records held only in memory
RETAINED_SCAN_S = 30.0  # how often quarantine/ and dead/ are measured: files may have been deleted


class SpoolMaintenance:
    """Background maintenance of a spool on disk. Does nothing for a spool in memory."""

    def __init__(self, state: SpoolState, writer: SpoolWriter | None) -> None:
        self.reading = threading.Lock()  # guards the segments' read windows
        self.cleaning = threading.Lock()  # guards removing segments and syncing journals
        self.quarantine_bytes = self.dead_bytes = 0
        self._state = state
        self._writer = writer
        self._meta_written: tuple[int, ...] = ()
        self._retained_measured_at = float("-inf")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="spool-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        options = self._state.options
        while not self._stop.wait(min(options.meta_sync, max(options.stale_flush, 0.01))):
            self.maintain()

    def maintain(self) -> None:
        """Run one round of maintenance. Errors are logged."""
        state, store = self._state, self._state.store
        if store is None:
            return
        with state.lock:
            stale = bool(state.memory.blocks) and time.monotonic() - state.memory_since >= state.options.stale_flush
        try:
            if stale:
                self.flush()
            self._sync_journals(store)
            if not store.ballast:
                store.make_ballast()
            self._write_meta(store)
        except OSError as error:
            state.ledger.last_error = str(error)
            log.warning("maintenance of spool %s failed: %s", store.folder, error, extra={"action": "spool_maintain"})
        if time.monotonic() - self._retained_measured_at >= RETAINED_SCAN_S:
            self.measure_retained(store)
        self.sweep()

    def flush(self) -> None:
        """Write every record that was put to disk. Raises OSError."""
        state = self._state
        if self._writer is None:
            return
        with state.lock:
            target = state.numbers.next - 1
        error = self._writer.write_until(lambda: state.numbers.synced >= target, sync=True)
        self.sweep()
        if error is not None:
            raise error

    def sweep(self) -> None:
        """Remove finished segments."""
        state = self._state
        while state.finished_segments and state.store is not None:
            with self.cleaning:
                with state.lock:
                    if not state.finished_segments:
                        return
                    segment, older = state.finished_segments.pop(0)
                with self.reading:
                    state.store.remove(segment, older)
            with state.lock:
                state.room.notify_all()

    # Sequence numbers of records held only in memory

    def reserve(self) -> None:
        """Reserve sequence numbers durably, so that none is reused, not even one that existed only in memory before a
        crash."""
        state, store = self._state, self._state.store
        with state.lock:
            if state.closed or store is None:
                return
            journal = store.segments[-1].journal
            state.numbers.reserved = state.numbers.next + RESERVE
            journal.note(NoteKind.RESERVED, state.numbers.reserved)
        self.sync_journal(journal)

    # Journals and metadata

    def sync_journal(self, journal: Journal) -> None:
        try:
            with self.cleaning:
                journal.sync()
        except OSError as error:
            self._state.ledger.last_error = str(error)

    def _sync_journals(self, store: SegmentStore) -> None:
        with self._state.lock:
            journals = [segment.journal for segment in store.segments if segment.journal.needs_sync]
        with self.cleaning:
            for journal in journals:
                journal.sync()

    def _write_meta(self, store: SegmentStore) -> None:
        numbers, ledger = self._state.numbers, self._state.ledger
        with self._state.lock:
            values = (numbers.next, numbers.synced, ledger.size, ledger.bytes)
            facts = {"segments": [segment.path.name for segment in store.segments], "written_at": time.time()}
        if values == self._meta_written:
            return
        names = ("next_sequence", "synced", "size", "bytes")
        try:
            write_meta(store.files, store.folder, {**facts, **dict(zip(names, values, strict=True))})
        except OSError as error:  # the file is only a hint
            ledger.last_error = str(error)
            return
        self._meta_written = values
        ledger.meta_syncs += 1

    def measure_retained(self, store: SegmentStore) -> None:
        self._retained_measured_at = time.monotonic()
        self.quarantine_bytes = measure_retained_files(store.files, store.folder / QUARANTINE)
        self.dead_bytes = measure_retained_files(store.files, store.folder / DEAD)

    def finish(self, store: SegmentStore) -> None:
        """Write everything to disk, before the directory is unlocked. A lease cut short by this is no attempt."""
        state, numbers = self._state, self._state.numbers
        with state.lock:
            for sequence, segment in state.in_flight.items():
                state.note(NoteKind.RELEASED, sequence, segment)
            state.in_flight.clear()
        self.flush()
        with state.lock:
            if numbers.reserved >= numbers.next:  # withdraw the reservation
                store.segments[-1].journal.note(NoteKind.RESERVED, numbers.next - 1)
        self._sync_journals(store)
        self._write_meta(store)
