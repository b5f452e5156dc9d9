"""The exporter: carries the records of a spool to one destination, and survives what the destination does not.

Everything goes through the spool (always-queue): nobody who puts a record waits for a destination. Preparers lease
records and make them ready, senders send them, and a bounded channel lies between; `flow` says who may do what.

Promises:
- A record is leased, never popped. It leaves the spool when the destination has it (ack), when it is bad (dead
  letter), or when it is cut into others (replace). Whatever else happens, an error of ours included, it comes again.
- The breaker gates before a record is taken.
- A record whose fate is unclear is sent again as it was, and not much is sent past it (`fates`).
- `stop` loses nothing: what is prepared and unsent goes back without an attempt counted. Sends under way may finish
  until the deadline; what is still out then stays leased, and comes again when the spool is opened.

Order: with one worker, records arrive as they were put, an outage included; one that never gets through then holds up
all the others, until its attempts are used up. With more workers records go side by side, and one that failed is passed
by others until its delay is over.
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
from headrace.spool.adaptive import Bounds, Load, Rate, wanted_workers
from headrace.spool.backoff import OTHERS, Backoff
from headrace.spool.breaker import Breaker, BreakerState, Permit
from headrace.spool.destination import Batch, Destination, Permanent, Retryable, SendError, TooLarge
from headrace.spool.export_stats import ExporterStats, Tally
from headrace.spool.fates import Fates, Inheritance
from headrace.spool.flow import IDLE_S, TICK_S, Flow, FlowLimits, Item, SendLimit
from headrace.spool.health import UNHEALTHY_AFTER, Health
from headrace.spool.record import Record
from headrace.spool.spool import Spool

log = logging.getLogger(__name__)

ADAPT_EVERY_S = 10.0


@dataclass(frozen=True)
class ExporterOptions:
    workers: int = 4
    preparers: int = 2
    channel_size: int = 64
    max_concurrent_sends: int = 4
    adaptive: bool = False
    bounds: Bounds = field(default=Bounds(1, 8))
    target_utilization: float = 0.85
    backoff: Backoff = OTHERS
    breaker: bool = True
    breaker_threshold: int = 5
    breaker_reset_s: float = 30.0

    @property
    def senders(self) -> int:
        """Threads there are; those that are not wanted wait."""
        return self.bounds.most if self.adaptive else self.workers

    @property
    def takers(self) -> int:
        """Threads that take and prepare records: two could overtake each other, and one worker keeps the order."""
        return 1 if self.senders == 1 else self.preparers


class Exporter:
    def __init__(
        self,
        spool: Spool,
        destination: Destination,
        options: ExporterOptions,
        shared: SendLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._spool = spool
        self._destination = destination
        self._options = options
        self._clock = clock
        self._draw = draw
        self._breaker = Breaker(
            options.breaker_threshold,
            options.breaker_reset_s,
            enabled=options.breaker,
            clock=clock,
            on_change=self._breaker_changed,
        )
        self._fates = Fates(destination.window_blocks)
        limits = FlowLimits(
            options.channel_size,
            min(options.workers, options.senders),
            options.max_concurrent_sends,
            shared or SendLimit(options.max_concurrent_sends),
        )
        self._flow = Flow(self._breaker, self._fates, limits, clock)
        self._health = Health()
        self._last_error = ""
        self._tally = Tally()
        self._arrivals = Rate()
        self._burst = False
        self._inheritance = Inheritance()
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._abandoned = False

    # --- running ---------------------------------------------------------------------------------

    def start(self) -> None:
        name = self._destination.name
        loops: list[tuple[str, Callable[[], None]]] = [("adapt", self._adapt_forever)]
        loops += [(f"prepare-{n}", self._prepare_forever) for n in range(self._options.takers)]
        loops += [(f"send-{n}", partial(self._send_forever, n)) for n in range(self._options.senders)]
        # Daemons: a send that hangs must not keep the process, its record is safe in the spool.
        self._threads = [
            threading.Thread(target=loop, name=f"export-{name}-{what}", daemon=True) for what, loop in loops
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Returns whether everything came to an end in time; if not, a record is still out and stays leased."""
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
            log.warning("stopped with sends under way: %s", ", ".join(alive), extra={"action": "export_stop_late"})
        return not alive

    @property
    def problem(self) -> str | None:
        """Return why the destination counts as unhealthy; None while it does not."""
        failures = self._health.failures_in_a_row
        return f"{failures} sends in a row failed. {self._last_error}" if failures >= UNHEALTHY_AFTER else None

    def stats(self) -> ExporterStats:
        return self._tally.stats(
            destination=self._destination.name,
            healthy=self._health.healthy,
            workers=self._flow.workers,
            senders=self._options.senders,
            preparers=self._options.takers,
            sending=self._flow.sending,
            unclear=self._fates.count(),
            passed_blocks=self._fates.passed(),
            backoff_s=self._flow.pause_left_s,
            breaker=self._breaker.stats(),
        )

    # --- preparing -------------------------------------------------------------------------------

    def _prepare_forever(self) -> None:
        while self._flow.wait_to_take():
            handed = False
            try:
                recalls = self._flow.recalls
                record = self._spool.lease(timeout=IDLE_S)
                handed = record is not None and self._take(record, recalls)
            except Exception:
                self._our_error("a record could not be leased")
                self._stopped.wait(IDLE_S)  # a disk that cannot be read is not asked all the time
            finally:
                if not handed:
                    self._flow.give_up()

    def _take(self, record: Record, recalls: int) -> bool:
        """Whether the record went to the senders."""
        try:
            return self._try_take(record, recalls)
        except Exception:
            self._rescue(record, "a record could not be taken")
            return False

    def _try_take(self, record: Record, recalls: int) -> bool:
        if not self._flow.still_open():
            self._spool.release(record.id)
            return False
        if record.attempts and self._inheritance.includes(record.id):
            self._fates.inherit(record.id)
        with self._tally.active("preparers_active"):
            item = self._prepare(record)
        if item is None:
            return False
        if not item.batches:
            self._settle(record, self._spool.ack)
            return False
        if not self._fates.take(record.id, len(item.batches)):
            self._spool.release(record.id)
            self._flow.turn_back()
            self._wait_for_unclear()
            return False
        if not self._flow.hand_over(item, recalls):
            self._put_back(item)
            return False
        return True

    def _wait_for_unclear(self) -> None:
        """What everybody waits for is still delayed or under way, unless the spool has dropped it or given it up."""
        for record_id in self._fates.unclear_ids():
            if not self._spool.holds(record_id):
                self._forget(record_id)
        self._stopped.wait(TICK_S)

    def _prepare(self, record: Record) -> Item | None:
        began = self._clock()
        try:
            batches = tuple(self._destination.prepare(record))
        except Permanent as error:
            self._tally.failed(error.label, record.attempts > 0)
            self._bury(record, error)
            return None
        except Exception as error:
            # Memory ran out, or a bug: not the record's fault for certain, so it is kept. Nobody else waits for it,
            # unless the order counts.
            self._our_error("a record could not be prepared")
            self._tally.failed("prepare", record.attempts > 0)
            self._wait_its_turn(record, self._options.backoff.delay_s(record.attempts + 1, self._draw()), repr(error))
            return None
        return Item(record, batches, self._clock() - began)

    # --- sending ---------------------------------------------------------------------------------

    def _send_forever(self, number: int) -> None:
        while item := self._flow.next_item(number):
            try:
                self._send_when_allowed(item)
            except Exception:
                self._fates.inherit(item.record.id)  # it may have been sent
                self._rescue(item.record, "the outcome of a send could not be noted")

    def _send_when_allowed(self, item: Item) -> None:
        permit = self._flow.wait_to_send()
        if permit is None:
            self._put_back(item)
            return
        try:
            with permit, self._tally.active("senders_active"):
                self._send(item, permit)
        finally:
            self._flow.sent()

    def _send(self, item: Item, permit: Permit) -> None:
        record, began = item.record, self._clock()
        mark = self._fates.start(record.id, len(item.batches))
        if mark is None:
            self._put_back(item)
            return
        try:
            failure = self._send_batches(item, mark)
            if failure is None:
                permit.succeeded()
                self._delivered(item, began)
            else:
                self._failed(item, *failure, permit, began)
        finally:
            self._fates.end(record.id)

    def _delivered(self, item: Item, began: float) -> None:
        record = item.record
        self._settle(record, self._spool.ack)
        self._tally.sent(len(record.payload), record.attempts > 0, item.prepare_s + self._clock() - began)
        if self._health.succeeded():
            log.info("%s is well again", self._destination.name, extra={"action": "export_healthy"})

    def _send_batches(self, item: Item, mark: int) -> tuple[int, SendError] | None:
        """Which batch failed and how; None: all are taken."""
        for number, batch in enumerate(item.batches):
            try:
                self._send_batch(batch)
            except SendError as error:
                # What went before is applied and will be repeated, so it must stay in the window too.
                maybe_applied = range(number + 1 if error.unclear else number)
                for each in maybe_applied:
                    self._fates.unclear(item.record.id, mark, each)
                return number, error
        return None

    def _send_batch(self, batch: Batch) -> None:
        began = self._clock()
        try:
            self._destination.send(batch)
        except SendError:
            raise
        except BaseException as error:  # also what would end this thread: the record must come to an outcome
            self._our_error("a destination failed in a way it does not know")
            raise Retryable(f"{type(error).__name__}: {error}", unclear=True, kind="unknown") from error
        finally:
            self._tally.answered(self._clock() - began)

    def _failed(self, item: Item, number: int, error: SendError, permit: Permit, began: float) -> None:
        record = item.record
        self._tally.failed(error.label, record.attempts > 0)
        if error.means_down:
            permit.failed()
        match error:
            case TooLarge():
                self._split(item, number, error)
            case Permanent():
                self._bury(record, error)
            case _:
                self._again(record, error, began, permit.is_probe)

    def _again(self, record: Record, error: SendError, began: float, was_probe: bool) -> None:
        self._last_error = f"{error.label}: {error}"
        rounds = self._health.failed(began, self._clock())
        if self._health.failures_in_a_row == UNHEALTHY_AFTER:
            log.warning(
                "%s is unhealthy, %d failures in a row: %s", self._destination.name, UNHEALTHY_AFTER, error,
                extra={"action": "export_unhealthy"},
            )  # fmt: skip
        draw, backoff = self._draw(), self._options.backoff
        # The record waits by its own count, everybody by that of the destination: one record that always fails slows
        # itself down, not the others. One draw for both, so that after an outage the first to fail is the first again.
        delay_s = backoff.delay_s(record.attempts + 1, draw, error.retry_after_s)
        if was_probe and self._options.senders > 1:
            # The next probe is to be another record: perhaps it is this one that cannot be taken.
            delay_s = max(delay_s, 2 * self._options.breaker_reset_s)
        self._nack(record, delay_s, f"{error.label}: {error}")
        if self._keeps_order:
            self._flow.pause(delay_s)  # the record's own delay may be longer: it was tried before we were started
        else:
            self._flow.pause(min(delay_s, backoff.delay_s(rounds, draw, error.retry_after_s)))
        self._keep_order()

    def _split(self, item: Item, number: int, error: TooLarge) -> None:
        record = item.record
        if not self._fates.may_split(record.id, number):
            self._bury(record, TooLarge(f"{error} An earlier try may have been applied, so it was not cut."))
            return
        pieces = self._destination.split(record, item.batches, number)
        if not pieces:
            self._bury(record, TooLarge(f"{error} It cannot be cut any further."))
            return
        self._settle(record, lambda record_id: self._spool.replace(record_id, pieces))
        self._tally.add("splits")
        self._keep_order()
        log.info(
            "a record that was too large is now %d", len(pieces), extra={"action": "export_split", "id": record.id}
        )

    def _bury(self, record: Record, error: SendError) -> None:
        self._settle(record, lambda record_id: self._spool.reject(record_id, f"{error.label}: {error}"))
        self._tally.reject(error.label)
        log.warning("a record is dead: %s", error, extra={"action": "export_dead", "id": record.id})

    @property
    def _keeps_order(self) -> bool:
        """One sender, so nothing passes a record that has to wait."""
        return self._options.senders == 1

    def _keep_order(self) -> None:
        """The record that just came back to the spool goes before those that are prepared already."""
        if self._keeps_order:
            for item in self._flow.recall():
                self._put_back(item)

    def _put_back(self, item: Item) -> None:
        self._fates.put_back(len(item.batches))
        self._spool.release(item.record.id)
        self._tally.add("released")

    def _wait_its_turn(self, record: Record, delay_s: float, why: str) -> None:
        self._nack(record, delay_s, f"prepare: {why}")
        if self._keeps_order:
            self._flow.pause(delay_s)
            self._keep_order()

    def _nack(self, record: Record, delay_s: float, reason: str) -> None:
        self._inheritance.remember(record.id)
        self._spool.nack(record.id, delay=delay_s, reason=reason)
        self._tally.add("retries")
        if not self._spool.holds(record.id):
            self._forget(record.id)  # that was its last attempt

    def _settle(self, record: Record, end: Callable[[int], object]) -> None:
        """The record leaves the spool; only then is its fate nobody's concern any more."""
        end(record.id)
        self._forget(record.id)

    def _rescue(self, record: Record, what: str) -> None:
        """Something failed that is not the destination: the disk, or we. The record is not to stay leased for ever."""
        if self._abandoned:
            return  # stopped late: sent or not, the record is still in the spool and comes again
        self._our_error(what)
        try:
            self._spool.nack(record.id, delay=self._options.backoff.longest_s, reason=what)
            if self._keeps_order:
                self._flow.pause(self._options.backoff.longest_s)
                self._keep_order()
        except SpoolError:
            pass  # it had come to its end already, or the spool is closed

    def _forget(self, record_id: int) -> None:
        self._fates.settled(record_id)
        self._inheritance.forget(record_id)

    # --- adapting --------------------------------------------------------------------------------

    def _adapt_forever(self) -> None:
        while not self._stopped.wait(ADAPT_EVERY_S):
            try:
                self.adapt()
            except Exception:
                self._our_error("the number of workers could not be chosen")

    def adapt(self) -> int:
        """Choose the number of workers anew, and return it."""
        stats = self._spool.stats()
        arrivals_per_s = self._arrivals.look(self._clock(), stats.pushed)
        if not self._options.adaptive:
            return self._flow.workers
        backlog = stats.size - stats.in_flight
        self._burst = self._burst and backlog > self._options.bounds.most
        load = Load(arrivals_per_s, self._tally.service.value, backlog)
        wanted = wanted_workers(self._flow.workers, load, self._options.bounds, self._options.target_utilization)
        self._flow.set_workers(self._options.bounds.most if self._burst else wanted)
        return self._flow.workers

    def _breaker_changed(self, before: BreakerState, after: BreakerState) -> None:
        log.warning(
            "the breaker of %s is %s, was %s", self._destination.name, after, before, extra={"action": "breaker"}
        )
        if after is BreakerState.CLOSED:
            # Burst: what piled up goes out at once, what had failed included, by all the workers there may be.
            self._burst = self._options.adaptive
            if self._burst:
                self._flow.set_workers(self._options.bounds.most)
            self._spool.end_delays()
            self._flow.end_pause()

    def _our_error(self, what: str) -> None:
        log.exception("%s", what, extra={"action": "export_error"})
        self._tally.add("errors")
