"""Send the records of a spool to one destination, through failures of the destination and of this process.

All data goes through the spool, so a put never waits for a destination. Two kinds of threads work on the records:
preparers lease and prepare them, senders send them. A bounded channel connects the two; `FlowControl` decides when a
thread may proceed.

Guarantees:
- A lease does not remove a record. It leaves the spool when the destination has stored it (ack), when it is invalid
  (dead letter), or when it was split (replace). After anything else, including internal errors, it is sent again.
- The circuit breaker is checked before a record is leased.
- A record whose outcome is unknown is sent again unchanged, and only a few others are sent before that happens
  (`UnknownOutcomes`).
- `stop` loses nothing. Prepared records go back to the spool, and their lease does not count as an attempt. Sends in
  progress may finish until the deadline; a record that is still being sent at the deadline stays leased and is
  delivered again when the spool is next opened.

Order: with one worker, records arrive in the order in which they were put, also after an outage; a record that keeps
failing blocks all others until its attempts are used up. With several workers, records are sent in parallel, and others
overtake a failed record until its delay has passed, except those that the destination declares to follow earlier ones
(`OrderedDestination`): they stay in the spool until the earlier ones are finished (`Spool.hold`).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from headrace.errors import SpoolError
from headrace.export.adaptive import CounterRate, ExportLoad, WorkerBounds, compute_worker_count
from headrace.export.breaker import Breaker, BreakerState, Permit
from headrace.export.destination import (
    Destination,
    OrderedDestination,
    PermanentSendError,
    RetryableSendError,
    SendBatch,
    SendError,
    SendOrder,
    TooLargeSendError,
)
from headrace.export.flow_control import IDLE_S, TICK_S, FlowControl, PreparedRecord
from headrace.export.health import UNHEALTHY_AFTER, DestinationHealth
from headrace.export.outcomes import UnknownOutcomes
from headrace.export.stats import ExportCounters, ExporterStats
from headrace.runtime.backoff import Backoff
from headrace.spool.record import SpoolRecord
from headrace.spool.spool import Spool

log = logging.getLogger(__name__)

ADAPT_EVERY_S = 10.0


@dataclass(frozen=True)
class ExporterOptions:
    workers: int = 4
    preparers: int = 2
    channel_size: int = 64
    max_sends: int = 0  # sends in progress; 0: one per sender
    adaptive: bool = False
    bounds: WorkerBounds = field(default=WorkerBounds(1, 8))
    target_utilization: float = 0.85
    backoff: Backoff = field(default=Backoff())
    breaker: bool = True
    breaker_threshold: int = 5
    breaker_reset_s: float = 30.0

    @property
    def senders(self) -> int:
        """Number of sender threads; those above the current number of workers wait."""
        return self.bounds.maximum if self.adaptive else self.workers

    @property
    def send_limit(self) -> int:
        """Largest number of sends in progress: each sender has one at a time."""
        return self.max_sends or self.senders

    @property
    def preparer_threads(self) -> int:
        """Number of threads that lease and prepare records; one with a single sender, because two could reorder
        records."""
        return 1 if self.senders == 1 else self.preparers


class Exporter:
    def __init__(
        self,
        spool: Spool,
        destination: Destination,
        options: ExporterOptions,
        shared: threading.Semaphore | None = None,  # limits the sends of all exporters of the process
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._spool = spool
        self._destination = destination
        self._ordered = destination if isinstance(destination, OrderedDestination) else None
        self._options = options
        self._clock = clock
        self._draw = draw
        self._breaker = Breaker(
            options.breaker_threshold,
            options.breaker_reset_s,
            enabled=options.breaker,
            clock=clock,
            on_change=self._on_breaker_change,
        )
        self._outcomes = UnknownOutcomes(destination.dedup_window_blocks)
        self._flow = FlowControl(
            self._breaker,
            self._outcomes,
            clock,
            channel_size=options.channel_size,
            workers=min(options.workers, options.senders),
            max_sends=options.send_limit,
            shared=shared or threading.BoundedSemaphore(options.send_limit),
        )
        self._health = DestinationHealth()
        self._last_error = ""
        self._counters = ExportCounters()
        self._arrivals = CounterRate()
        self._burst = False
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._abandoned = False

    # --- running ---------------------------------------------------------------------------------

    def start(self) -> None:
        name = self._destination.name
        loops: list[tuple[str, Callable[[], None]]] = [("adapt", self._adapt_forever)]
        loops += [(f"prepare-{n}", self._prepare_forever) for n in range(self._options.preparer_threads)]
        loops += [(f"send-{n}", partial(self._send_forever, n)) for n in range(self._options.senders)]
        # Daemon threads: a hanging send must not keep the process alive, and its record is safe in the spool.
        self._threads = [
            threading.Thread(target=loop, name=f"export-{name}-{what}", daemon=True) for what, loop in loops
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Stop all threads. Return False if a send did not finish in time; its record stays leased."""
        self._flow.stop()
        self._stopped.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for item in self._flow.recall():
            self._put_back(item)
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if alive:
            self._abandoned = True
            log.warning(
                "stopped before these sends finished: %s; unacknowledged records are sent again at the next start",
                ", ".join(alive),
                extra={"action": "export_stop_late"},
            )
        return not alive

    @property
    def problem(self) -> str | None:
        """Return why the destination counts as unhealthy; None while it is healthy."""
        failures = self._health.failures_in_a_row
        return f"{failures} consecutive sends failed. {self._last_error}" if failures >= UNHEALTHY_AFTER else None

    def stats(self) -> ExporterStats:
        return self._counters.stats(
            destination=self._destination.name,
            healthy=self._health.healthy,
            workers=self._flow.workers,
            senders=self._options.senders,
            sending=self._flow.sending,
            unclear=self._outcomes.count(),
            passed_blocks=self._outcomes.count_passed_blocks(),
            backoff_s=self._flow.pause_left_s,
            breaker=self._breaker.stats(),
        )

    # --- preparing -------------------------------------------------------------------------------

    def _prepare_forever(self) -> None:
        while self._flow.wait_to_lease():
            submitted = False
            try:
                recalls = self._flow.recalls
                record = self._spool.lease(timeout=IDLE_S)
                submitted = record is not None and self._process_leased(record, recalls)
            except Exception:
                self._log_internal_error("could not lease a record")
                self._stopped.wait(IDLE_S)  # do not retry an unreadable disk in a tight loop
            finally:
                if not submitted:
                    self._flow.release_slot()

    def _process_leased(self, record: SpoolRecord, recalls: int) -> bool:
        """Prepare a leased record and submit it to the senders. Return False if it was finished or released instead."""
        try:
            return self._prepare_and_submit(record, recalls)
        except Exception:
            self._rescue(record, "could not process a leased record")
            return False

    def _prepare_and_submit(self, record: SpoolRecord, recalls: int) -> bool:
        if not self._flow.can_prepare():
            self._spool.release(record.id)
            return False
        if self._hold(record):
            return False
        if record.attempts and not self._outcomes.was_tried(record.id):
            self._outcomes.mark_possibly_sent(record.id)
        with self._counters.track_active("preparers_active"):
            item = self._prepare(record)
        if item is None:
            return False
        if not item.batches:
            self._finish(record, self._spool.ack)
            return False
        if not self._outcomes.reserve(record.id, len(item.batches)):
            self._spool.release(record.id)
            self._flow.throttle_leasing()
            self._wait_for_unknown_outcomes()
            return False
        if not self._flow.submit(item, recalls):
            self._put_back(item)
            return False
        return True

    def _hold(self, record: SpoolRecord) -> bool:
        """Return the record to the spool until earlier ones are finished, if it must follow them. Return False if it
        may be sent."""
        if self._ordered is None or (order := self._ordered.get_order(record)) is SendOrder.ANY:
            return False
        return self._spool.hold(record.id, holds_later=order is SendOrder.IN_SEQUENCE)

    def _wait_for_unknown_outcomes(self) -> None:
        """Stop tracking records that the spool no longer holds, then wait one tick for the other unknown outcomes."""
        for record_id in self._outcomes.unknown_ids():
            if not self._spool.is_unfinished(record_id):
                self._outcomes.resolve(record_id)
        self._stopped.wait(TICK_S)

    def _prepare(self, record: SpoolRecord) -> PreparedRecord | None:
        began = self._clock()
        try:
            batches = tuple(self._destination.prepare(record))
        except PermanentSendError as error:
            self._counters.record_failure(error.label, record.attempts > 0)
            self._bury(record, error)
            return None
        except Exception as error:
            # Out of memory, or a bug: the record may be fine, so it is kept. Other records do not wait for it, unless
            # order is kept.
            self._log_internal_error("could not prepare a record")
            self._counters.record_failure("prepare", record.attempts > 0)
            delay_s = self._options.backoff.delay_s(record.attempts + 1, self._draw())
            self._nack(record, delay_s, f"prepare: {error!r}")
            self._pause_to_keep_order(delay_s)
            return None
        return PreparedRecord(record, batches, self._clock() - began)

    # --- sending ---------------------------------------------------------------------------------

    def _send_forever(self, number: int) -> None:
        while item := self._flow.next_prepared(number):
            try:
                self._send_when_allowed(item)
            except Exception:
                self._outcomes.mark_possibly_sent(item.record.id)  # its outcome is unknown
                self._rescue(item.record, "could not record the outcome of a send")

    def _send_when_allowed(self, item: PreparedRecord) -> None:
        permit = self._flow.wait_to_send()
        if permit is None:
            self._put_back(item)
            return
        try:
            with permit, self._counters.track_active("senders_active"):
                self._send(item, permit)
        finally:
            self._flow.finish_send()

    def _send(self, item: PreparedRecord, permit: Permit) -> None:
        record, began = item.record, self._clock()
        mark = self._outcomes.start_send(record.id, len(item.batches))
        if mark is None:
            self._put_back(item)
            return
        try:
            failure = self._send_batches(item, mark)
            if failure is None:
                permit.record_success()
                self._handle_delivery(item, began)
            else:
                self._handle_failure(item, *failure, permit, began)
        finally:
            self._outcomes.end_send(record.id)

    def _handle_delivery(self, item: PreparedRecord, began: float) -> None:
        record = item.record
        self._finish(record, self._spool.ack)
        self._counters.record_sent(len(record.payload), record.attempts > 0, item.prepare_s + self._clock() - began)
        if self._health.record_success():
            log.info("%s is healthy again", self._destination.name, extra={"action": "export_healthy"})

    def _send_batches(self, item: PreparedRecord, mark: int) -> tuple[int, SendError] | None:
        """Send the batches in order. Return the number of the batch that failed and its error; None if all were
        sent."""
        for number, batch in enumerate(item.batches):
            try:
                self._send_batch(batch)
            except SendError as error:
                # The earlier batches are applied and will be repeated, so they must stay in the window too.
                maybe_applied = range(number + 1 if error.outcome_unknown else number)
                for each in maybe_applied:
                    self._outcomes.mark_unknown(item.record.id, mark, each)
                return number, error
        return None

    def _send_batch(self, batch: SendBatch) -> None:
        began = self._clock()
        try:
            self._destination.send(batch)
        except SendError:
            raise
        except BaseException as error:  # also exceptions that would end this thread: the send needs an outcome
            self._log_internal_error("destination raised an unexpected error")
            raise RetryableSendError(
                f"{type(error).__name__}: {error}", outcome_unknown=True, kind="unknown"
            ) from error
        finally:
            self._counters.record_response(self._clock() - began)

    def _handle_failure(
        self, item: PreparedRecord, number: int, error: SendError, permit: Permit, began: float
    ) -> None:
        record = item.record
        self._counters.record_failure(error.label, record.attempts > 0)
        if error.is_outage:
            permit.record_failure()
        match error:
            case TooLargeSendError():
                self._split(item, number, error)
            case PermanentSendError():
                self._bury(record, error)
            case _:
                self._schedule_retry(record, error, began, permit.is_probe)

    def _schedule_retry(self, record: SpoolRecord, error: SendError, began: float, was_probe: bool) -> None:
        self._last_error = f"{error.label}: {error}"
        rounds = self._health.record_failure(began, self._clock())
        if self._health.failures_in_a_row == UNHEALTHY_AFTER:
            log.warning(
                "%s is unhealthy after %d consecutive failures: %s", self._destination.name, UNHEALTHY_AFTER, error,
                extra={"action": "export_unhealthy"},
            )  # fmt: skip
        draw, backoff = self._draw(), self._options.backoff
        # The record's delay grows with its own failures, the pause of all with those of the destination: one record
        # that always fails slows down only itself. Both use the same draw, so that after an outage the first to fail is
        # the first to be retried.
        delay_s = backoff.delay_s(record.attempts + 1, draw, error.retry_after_s)
        if was_probe and self._options.senders > 1:
            # Probe with another record next time: the failure may be due to this one.
            delay_s = max(delay_s, 2 * self._options.breaker_reset_s)
        self._nack(record, delay_s, f"{error.label}: {error}")
        # To keep the order, all wait for the record, whose delay may be longer: it may have failed before this start.
        self._flow.pause(
            delay_s if self._is_ordered else min(delay_s, backoff.delay_s(rounds, draw, error.retry_after_s))
        )
        self._recall_prepared()

    def _split(self, item: PreparedRecord, number: int, error: TooLargeSendError) -> None:
        record = item.record
        if not self._outcomes.can_split(record.id, number):
            self._bury(
                record, TooLargeSendError(f"{error} Not split, because an earlier attempt may have been applied.")
            )
            return
        pieces = self._destination.split(record, item.batches, number)
        if not pieces:
            self._bury(record, TooLargeSendError(f"{error} It cannot be split further."))
            return
        self._finish(record, lambda record_id: self._spool.replace(record_id, pieces))
        self._counters.add("splits")
        self._recall_prepared()
        log.info(
            "split an oversized record into %d records", len(pieces), extra={"action": "export_split", "id": record.id}
        )

    def _bury(self, record: SpoolRecord, error: SendError) -> None:
        self._finish(record, lambda record_id: self._spool.reject(record_id, f"{error.label}: {error}"))
        self._counters.record_rejection(error.label)
        log.warning("moved a record to dead/: %s", error, extra={"action": "export_dead", "id": record.id})

    @property
    def _is_ordered(self) -> bool:
        """Return True if records are sent strictly in order, which a single sender guarantees."""
        return self._options.senders == 1

    def _recall_prepared(self) -> None:
        """With a single sender, release the prepared records so that the record just returned to the spool is sent
        first."""
        if self._is_ordered:
            for item in self._flow.recall():
                self._put_back(item)

    def _put_back(self, item: PreparedRecord) -> None:
        self._outcomes.cancel_reservation(len(item.batches))
        self._spool.release(item.record.id)
        self._counters.add("released")

    def _pause_to_keep_order(self, delay_s: float) -> None:
        if self._is_ordered:
            self._flow.pause(delay_s)
            self._recall_prepared()

    def _nack(self, record: SpoolRecord, delay_s: float, reason: str) -> None:
        self._outcomes.record_attempt(record.id)
        self._spool.nack(record.id, delay=delay_s, reason=reason)
        self._counters.add("retries")
        if not self._spool.is_unfinished(record.id):
            self._outcomes.resolve(record.id)  # the last attempt was used up

    def _finish(self, record: SpoolRecord, end: Callable[[int], object]) -> None:
        """Remove the record from the spool by calling `end` (ack, reject or replace), then stop tracking its
        outcome."""
        end(record.id)
        self._outcomes.resolve(record.id)

    def _rescue(self, record: SpoolRecord, what: str) -> None:
        """Nack a record after an internal error (a disk failure or a bug), so that it does not stay leased."""
        if self._abandoned:
            return  # stopped with this send in progress: the record is still in the spool and is sent again
        self._log_internal_error(what)
        try:
            self._spool.nack(record.id, delay=self._options.backoff.longest_s, reason=what)
            self._pause_to_keep_order(self._options.backoff.longest_s)
        except SpoolError:
            pass  # the record was finished already, or the spool is closed

    # --- adapting --------------------------------------------------------------------------------

    def _adapt_forever(self) -> None:
        while not self._stopped.wait(ADAPT_EVERY_S):
            try:
                self.adapt()
            except Exception:
                self._log_internal_error("could not adjust the number of workers")

    def adapt(self) -> int:
        """Recompute the number of workers and return it."""
        stats = self._spool.stats()
        arrivals_per_s = self._arrivals.update(self._clock(), stats.pushed)
        if not self._options.adaptive:
            return self._flow.workers
        backlog = stats.size - stats.in_flight
        self._burst = self._burst and backlog > self._options.bounds.maximum
        load = ExportLoad(arrivals_per_s, self._counters.service.value, backlog)
        wanted = compute_worker_count(self._flow.workers, load, self._options.bounds, self._options.target_utilization)
        self._flow.set_workers(self._options.bounds.maximum if self._burst else wanted)
        return self._flow.workers

    def _on_breaker_change(self, before: BreakerState, after: BreakerState) -> None:
        log.warning(
            "circuit breaker of %s is now %s (was %s)",
            self._destination.name,
            after,
            before,
            extra={"action": "breaker"},
        )
        if after is BreakerState.CLOSED:
            # After recovery, send the backlog at once with all workers, including records whose delay has not passed.
            self._burst = self._options.adaptive
            if self._burst:
                self._flow.set_workers(self._options.bounds.maximum)
            self._spool.end_delays()
            self._flow.end_pause()

    def _log_internal_error(self, what: str) -> None:
        log.exception("%s", what, extra={"action": "export_error"})
        self._counters.add("errors")
