"""`headrace snapshot run`: refresh on time, show signs of life, wait longer after each failure in a row."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, field
from threading import Event, Thread

from headrace.errors import HeadraceError, MigrationError, ServiceUnavailable
from headrace.snapshot.families import InvalidFamily
from headrace.snapshot.refresher import Refresher
from headrace.snapshot.sources import Sources
from headrace.snapshot.store import Superseded
from headrace.spool.backoff import Backoff
from headrace.vitals.rounds import LoopFigures, Rounds

log = logging.getLogger(__name__)

STOP_S = 15.0
STUCK_LEASES = 10
"""A refresh that takes this many leases gets no more signs of life: another process may try."""


@dataclass(frozen=True)
class ServiceOptions:
    refresh_interval_s: float = 15.0
    lock_ttl_s: float = 30.0
    backoff: Backoff = field(default_factory=lambda: Backoff(base_s=1.0, longest_s=60.0))


class Service:
    def __init__(self, refresher: Refresher, sources: Sources, options: ServiceOptions | None = None) -> None:
        self._refresher = refresher
        self._sources = sources
        self._options = options or ServiceOptions()
        self._failures = 0
        self._began: float | None = None  # the refresh under way
        self._leads = False
        self._rounds = Rounds("snapshot", lambda: self._leads)
        self.figures = LoopFigures([self._rounds])

    def run_forever(self, stop: Event) -> None:
        """Raises InvalidFamily when the database refuses a family's SQL; its absence is waited out."""
        self._validate()
        heart = Thread(target=self._beat, args=[stop], name="snapshot-lease", daemon=True)
        heart.start()
        try:
            while not stop.is_set():
                stop.wait(self._wait_s(self._refresh(), time.monotonic()))
        finally:
            stop.set()
            heart.join(STOP_S)
            self._refresher.leave()

    def _validate(self) -> None:
        """Also where another process refreshes: what is wrong is found out before it matters."""
        try:
            self._sources.validate()
        except ServiceUnavailable as error:
            log.warning("Families could not be checked yet: %s", error, extra={"action": "not_validated"})

    def _refresh(self) -> float:
        """When it began."""
        self._began = began = time.monotonic()
        try:
            self._refresh_now()
            self._failures = 0
        except Superseded as error:
            self._leads = False
            log.info("%s", error, extra={"action": "superseded"})
            self._rounds.superseded()
        except (InvalidFamily, MigrationError):
            raise  # it would be refused again and again
        except HeadraceError as error:
            log.warning("The snapshot could not be refreshed: %s", error, extra={"action": "refresh_failed"})
            self._rounds.failed(error)
            self._give_way()
        except Exception as error:
            log.exception("The snapshot could not be refreshed", extra={"action": "refresh_failed"})
            self._rounds.failed(error)
            self._give_way()
        finally:
            self._began = None
        return began

    def _give_way(self) -> None:
        """What fails here may work on another machine, which need not wait for the next try."""
        self._failures += 1
        self._leads = False
        self._refresher.leave()

    def _refresh_now(self) -> None:
        done = self._refresher.run_once()
        if (done is not None) != self._leads:
            self._leads = done is not None
            word = "this process refreshes" if self._leads else "another process refreshes"
            log.info("%s", word, extra={"action": "lease"})
        if done is None:
            self._rounds.stands_by()
        else:
            self._rounds.done(done.took_s)
            log.debug(
                "version %s: %s series of %s rows in %.2f s",
                *(done.meta.version, done.meta.series_total, done.meta.rows_total, done.took_s),
                extra={"action": "refreshed"},
            )

    def _wait_s(self, began: float, now: float) -> float:
        if self._failures:
            return self._options.backoff.delay_s(self._failures, random.random())
        # A refresh that took longer than that skips its turn: the servers get a rest in any case.
        return self._options.refresh_interval_s - (now - began) % self._options.refresh_interval_s

    def _beat(self, stop: Event) -> None:
        every_s = self._options.lock_ttl_s / 3
        while not stop.wait(every_s):
            began = self._began
            if began is not None and time.monotonic() - began > STUCK_LEASES * self._options.lock_ttl_s:
                continue
            try:
                if self._leads or began is not None:
                    self._refresher.renew()
            except Exception as error:
                log.warning("No sign of life was given: %s", error, extra={"action": "renew_failed"})
