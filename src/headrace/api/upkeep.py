"""Background thread of an API process: refresh keys, store last-used times, purge old rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Event, Thread

from headrace.api import audit, keys, sessions
from headrace.api.services import Services
from headrace.errors import HeadraceError
from headrace.postgres.connect import connection

log = logging.getLogger(__name__)

NOTE_EVERY_S = 60.0
TIDY_EVERY_S = 3600.0
STOP_S = 5.0


class Upkeep:
    """Periodic tasks of one API process."""

    def __init__(self, to: Services) -> None:
        self._to = to
        self._noted = self._tidied = time.monotonic()

    def run_forever(self, stop: Event) -> None:
        while not stop.is_set():
            try:
                self.run_once(time.monotonic())
            except HeadraceError as error:
                log.warning("housekeeping postponed: %s", error, extra={"action": "upkeep"})
            except Exception:
                log.exception("housekeeping failed, continuing", extra={"action": "upkeep"})
            stop.wait(keys.REFRESH_S)

    def run_once(self, now: float) -> None:
        self._to.keys.refresh()
        if now - self._noted >= NOTE_EVERY_S:
            self._noted = now
            self.note_used()
        if now - self._tidied >= TIDY_EVERY_S:
            self._tidied = now
            self.tidy()

    def note_used(self) -> None:
        used = _emptied(self._to.used)
        used_sessions = _emptied(self._to.used_sessions)
        if used:
            keys.mark_used(self._to.postgres, used)
        if used_sessions:
            with connection(self._to.postgres) as conn:
                sessions.mark_used(conn, used_sessions)

    def tidy(self) -> None:
        with connection(self._to.postgres) as conn:
            sessions.tidy(conn)
            audit.tidy(conn, self._to.settings.audit_keep)


def _emptied(names: set[str]) -> set[str]:
    """Remove and return all names. Safe while other threads add more."""
    return {names.pop() for _ in range(len(names))}


@contextmanager
def upkeep(to: Services) -> Generator[None]:
    """Run housekeeping in a thread while the context is open, and close the services at its end."""
    stop = Event()
    thread = Thread(target=Upkeep(to).run_forever, args=[stop], name="upkeep", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(STOP_S)
        to.close()
