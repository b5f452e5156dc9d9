"""The service `headrace alerts run`: evaluator and outbox under one lease."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from threading import Event

from headrace.alerts.evaluator import Evaluator
from headrace.alerts.lease import EvaluatorFenced, EvaluatorLease
from headrace.alerts.metrics import AlertServiceMetrics
from headrace.alerts.outbox import Outbox
from headrace.alerts.queries import QUERIES
from headrace.postgres.connect import Pool, transaction
from headrace.runtime.loop import TICK_S, ErrorPolicy, Loop, run_in_thread

log = logging.getLogger(__name__)

PURGE_EVERY_S = 3600.0
STOP_S = 15.0
PURGE_QUERIES = (
    QUERIES["purge_incidents"],
    QUERIES["purge_last_firings"],
    QUERIES["purge_transitions"],
    QUERIES["purge_messages"],
    QUERIES["purge_silences"],
)
ERROR_POLICY = ErrorPolicy(
    superseded=EvaluatorFenced,
    log_superseded=partial(log.info, "%s", extra={"action": "fenced"}),
    log_failed=partial(log.warning, "alert step failed, retrying: %s", extra={"action": "alerts_wait"}),
    log_unexpected=partial(
        log.exception, "alert step failed unexpectedly, continuing", extra={"action": "alerts_failed"}
    ),
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
        options, metrics = self._options, self.metrics
        renewing = Loop(metrics.lease, self._lease.acquire, ERROR_POLICY, options.lease_s / 3, options.tick_s)
        sending = Loop(metrics.sending, self._send, ERROR_POLICY, tick_s=options.tick_s)
        evaluating = Loop(metrics.evaluating, self._evaluate, ERROR_POLICY, options.every_s, options.tick_s)
        renewing.run_if_due()
        with (
            run_in_thread(renewing.run_forever, "alerts-lease", STOP_S, stop),
            run_in_thread(sending.run_forever, "alerts-outbox", STOP_S, stop),
        ):
            evaluating.run_forever(stop)
        self._outbox.wait_idle(STOP_S)
        self._outbox.close()
        self._lease.release()

    def _evaluate(self) -> None:
        began = time.monotonic()
        done = self._evaluator.run_once(time.time_ns() // 1_000_000)
        log.log(
            logging.INFO if done.transitions or done.unknown else logging.DEBUG,
            "evaluated %s rules of %s environments in %.2f s: %s transitions, %s unknown",
            *(done.rules, done.environments, time.monotonic() - began, done.transitions, done.unknown),
            extra={"action": "round"},
        )
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
