"""Background work of a spool: flush, journal sync, removal of finished segments, metadata.

All of it may need an fsync, so none of it happens under the spool's lock. `cleaning` prevents one thread from syncing a
journal while another removes it; `reading` prevents a segment from being removed while it is read.
"""

from __future__ import annotations

import logging
import threading
import time

from headrace.spool.aside import DEAD, QUARANTINE, AsideSize, aside_size
from headrace.spool.journal import Journal, Kind
from headrace.spool.meta import write_meta
from headrace.spool.state import State
from headrace.spool.store import Store
from headrace.spool.writer import Writer

log = logging.getLogger(__name__)

RESERVE = 65_536  # sequence numbers reserved by one synced note for records held only in memory
ASIDE_EVERY_S = 30.0  # how often quarantine/ and dead/ are measured: files may have been deleted


class Upkeep:
    """Background maintenance of a spool on disk. Does nothing for a spool in memory."""

    def __init__(self, state: State, writer: Writer | None) -> None:
        self.reading = threading.Lock()  # guards the segments' read windows
        self.cleaning = threading.Lock()  # guards removing segments and syncing journals
        self.quarantine = self.dead = AsideSize(0, 0)
        self._state = state
        self._writer = writer
        self._meta_told: tuple[int, ...] = ()
        self._asides_counted_at = float("-inf")
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None

    def start(self) -> None:
        self._keeper = threading.Thread(target=self._keep, name="spool-keeper", daemon=True)
        self._keeper.start()

    def stop(self) -> None:
        self._stop.set()
        if self._keeper is not None:
            self._keeper.join()

    def _keep(self) -> None:
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
            self._tell_meta(store)
        except OSError as error:
            state.ledger.last_error = str(error)
            log.warning("maintenance of spool %s failed: %s", store.folder, error, extra={"action": "spool_maintain"})
        if time.monotonic() - self._asides_counted_at >= ASIDE_EVERY_S:
            self.count_asides(store)
        self.sweep()

    def flush(self) -> None:
        """Write every record that was put to disk. Raises OSError."""
        state = self._state
        if self._writer is None:
            return
        with state.lock:
            target = state.numbers.next - 1
        error = self._writer.wait(lambda: state.numbers.synced >= target, sync=True)
        self.sweep()
        if error is not None:
            raise error

    def sweep(self) -> None:
        """Remove finished segments."""
        state = self._state
        while state.doomed and state.store is not None:
            with self.cleaning:
                with state.lock:
                    if not state.doomed:
                        return
                    segment, older = state.doomed.pop(0)
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
            journal.note(Kind.RESERVED, state.numbers.reserved)
        self.sync_journal(journal)

    def _reserve_no_more(self, store: Store) -> None:
        """Withdraw the reservation when the spool is closed."""
        numbers = self._state.numbers
        with self._state.lock:
            if numbers.reserved >= numbers.next:
                store.segments[-1].journal.note(Kind.RESERVED, numbers.next - 1)

    # Journals and metadata

    def sync_journal(self, journal: Journal) -> None:
        try:
            with self.cleaning:
                journal.sync()
        except OSError as error:
            self._state.ledger.last_error = str(error)

    def _sync_journals(self, store: Store) -> None:
        with self._state.lock:
            journals = [segment.journal for segment in store.segments if segment.journal.needs_sync]
        with self.cleaning:
            for journal in journals:
                journal.sync()

    def _tell_meta(self, store: Store) -> None:
        numbers, ledger = self._state.numbers, self._state.ledger
        with self._state.lock:
            values = (numbers.next, numbers.synced, ledger.size, ledger.bytes)
            facts = {"segments": [segment.path.name for segment in store.segments], "written_at": time.time()}
        if values == self._meta_told:
            return
        names = ("next_sequence", "synced", "size", "bytes")
        try:
            write_meta(store.files, store.folder, {**facts, **dict(zip(names, values, strict=True))})
        except OSError as error:  # the file is only a hint
            ledger.last_error = str(error)
            return
        self._meta_told = values
        ledger.meta_syncs += 1

    def count_asides(self, store: Store) -> None:
        self._asides_counted_at = time.monotonic()
        self.quarantine = aside_size(store.files, store.folder / QUARANTINE)
        self.dead = aside_size(store.files, store.folder / DEAD)

    def finish(self, store: Store) -> None:
        """Release records in flight, write everything to disk and sync the journals, before the directory is
        unlocked."""
        self._give_back_all()
        self.flush()
        self._reserve_no_more(store)
        self._sync_journals(store)
        self._tell_meta(store)

    def _give_back_all(self) -> None:
        """Release all records in flight, because a lease cut short by closing the spool is no attempt."""
        state = self._state
        with state.lock:
            for sequence, segment in state.flight.items():
                state.note(Kind.RELEASED, sequence, segment)
            state.flight.clear()
