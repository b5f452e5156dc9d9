"""The service `headrace alerts run`: evaluator and outbox under one lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread

from headrace.alerts.evaluator import EvaluationReport, Evaluator
from headrace.alerts.lease import EvaluatorFenced, EvaluatorLease
from headrace.alerts.metrics import AlertServiceMetrics
from headrace.alerts.outbox import Outbox
from headrace.alerts.queries import QUERIES
from headrace.errors import HeadraceError
from headrace.postgres.connect import Pool, transaction
from headrace.runtime.loop import LoopStats

log = logging.getLogger(__name__)

TICK_S = 0.5
PURGE_EVERY_S = 3600.0
STOP_S = 15.0
PURGE_QUERIES = (
    QUERIES["purge_incidents"],
    QUERIES["purge_transitions"],
    QUERIES["purge_messages"],
    QUERIES["purge_silences"],
)


@dataclass(frozen=True)
class AlertServiceOptions:
    every_s: float = 30.0
    lease_s: float = 15.0
    keep_s: float = 90 * 86_400.0
    tick_s: float = TICK_S


class AlertService:
    """Alert service with three independent loops: renew the lease, evaluate rules, send messages."""

    def __init__(
        self,
        pool: Pool,
        lease: EvaluatorLease,
        evaluator: Evaluator,
        outbox: Outbox,
        options: AlertServiceOptions | None = None,
    ) -> None:
        self._pool = pool
        self._lease = lease
        self._evaluator = evaluator
        self._outbox = outbox
        self._options = options or AlertServiceOptions()
        self._next_purge = time.monotonic() + PURGE_EVERY_S
        self.metrics = AlertServiceMetrics(lambda: lease.is_held)

    def run_forever(self, stop: Event) -> None:
        renew_s, metrics = self._options.lease_s / 3, self.metrics
        leasing = [stop, self._renew, renew_s, False, metrics.lease]
        sending = [stop, self._send, 0.0, True, metrics.sending]
        threads = [
            Thread(target=self._repeat, args=leasing, name="alerts-lease", daemon=True),
            Thread(target=self._repeat, args=sending, name="alerts-outbox", daemon=True),
        ]
        self._run_step(self._renew, metrics.lease)
        for thread in threads:
            thread.start()
        self._repeat(stop, self._evaluate, self._options.every_s, True, metrics.evaluating)
        for thread in threads:
            thread.join(STOP_S)
        self._outbox.wait_idle(STOP_S)
        self._outbox.close()
        self._lease.release()

    def _repeat(self, stop: Event, step: Callable[[], object], every_s: float, led: bool, rounds: LoopStats) -> None:
        """Run `step` every `every_s` until `stop`; with `led` only while this process holds the lease.

        Failures are logged and retried.
        """
        due = time.monotonic()
        while not stop.is_set():
            if time.monotonic() >= due and (self._lease.is_held or not led):
                due = time.monotonic() + every_s
                self._run_step(step, rounds)
            stop.wait(min(self._options.tick_s, max(every_s, 0.05)))

    def _run_step(self, step: Callable[[], object], rounds: LoopStats) -> None:
        began = time.monotonic()
        try:
            step()
            rounds.record_success(time.monotonic() - began)
        except EvaluatorFenced as error:
            log.info("%s", error, extra={"action": "fenced"})
            rounds.record_superseded()
        except HeadraceError as error:
            log.warning("alert step failed, retrying: %s", error, extra={"action": "alerts_wait"})
            rounds.record_failure(error)
        except Exception as error:
            log.exception("alert step failed unexpectedly, continuing", extra={"action": "alerts_failed"})
            rounds.record_failure(error)

    def _renew(self) -> None:
        self._lease.acquire()

    def _evaluate(self) -> None:
        began = time.monotonic()
        done = self._evaluator.run_once(time.time_ns() // 1_000_000)
        _log_report(done, time.monotonic() - began)
        self.metrics.record_evaluation(done)
        if time.monotonic() >= self._next_purge:
            self._next_purge = time.monotonic() + PURGE_EVERY_S
            self._purge_old_rows()

    def _send(self) -> None:
        while begun := self._outbox.run_once():
            self.metrics.record_send_attempts(begun)
            self._outbox.send_finished.clear()
            self._outbox.send_finished.wait(self._options.tick_s)

    def _purge_old_rows(self) -> None:
        with transaction(self._pool) as conn:
            self._lease.fence(conn)
            for query in PURGE_QUERIES:
                conn.execute(query, {"keep_s": self._options.keep_s})


def _log_report(done: EvaluationReport, seconds: float) -> None:
    level = logging.INFO if done.transitions or done.unknown else logging.DEBUG
    log.log(
        level,
        "evaluated %s rules of %s environments in %.2f s: %s transitions, %s unknown",
        *(done.rules, done.environments, seconds, done.transitions, done.unknown),
        extra={"action": "round"},
    )
