"""Background threads of an API process: refresh keys, store last-used times, purge old rows; sample Valkey's memory."""

from __future__ import annotations

import logging
import time
from threading import Event

from headrace.api import api_keys as keys
from headrace.api import audit_log, sessions
from headrace.api.services import Services
from headrace.errors import HeadraceError
from headrace.postgres.connect import transaction
from headrace.queue.server_memory import SAMPLE_EVERY_MS

log = logging.getLogger(__name__)

FLUSH_EVERY_S = 60.0
PURGE_EVERY_S = 3600.0
STOP_S = 5.0


class ApiHousekeeping:
    def __init__(self, services: Services) -> None:
        self._to = services
        self._flushed_at = self._purged_at = time.monotonic()

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
        self._to.key_ring.refresh()
        if now - self._flushed_at >= FLUSH_EVERY_S:
            self._flushed_at = now
            self.flush_used()
        if now - self._purged_at >= PURGE_EVERY_S:
            self._purged_at = now
            self.purge_old_rows()

    def flush_used(self) -> None:
        with transaction(self._to.postgres) as conn:
            keys.mark_keys_used(conn, _drain(self._to.used_key_ids))
            sessions.mark_sessions_used(conn, _drain(self._to.used_session_ids))

    def purge_old_rows(self) -> None:
        with transaction(self._to.postgres) as conn:
            sessions.purge_expired(conn)
            audit_log.purge_old_entries(conn, self._to.settings.audit_keep)


def sample_memory_forever(services: Services, stop: Event) -> None:
    """Add samples of Valkey's memory, so that a forecast is ready when it is requested. In a thread of its own, because
    keys must be refreshed while Valkey does not respond."""
    last_error = ""
    while not stop.is_set():
        error = ""
        try:
            services.read_memory()
        except Exception as failure:
            error = str(failure) or type(failure).__name__
        if error and error != last_error:
            log.warning("could not sample Valkey's memory: %s", error, extra={"action": "memory_not_sampled"})
        last_error = error
        stop.wait(SAMPLE_EVERY_MS / 1000)


def _drain(names: set[str]) -> set[str]:
    """Remove and return all names. Safe while other threads add more."""
    return {names.pop() for _ in range(len(names))}
