"""Admission of preparers and senders of an exporter: channel size, send limits, pauses and the circuit breaker.

A preparer waits for a slot *before* it leases a record, so that no record is leased that cannot be sent:

- Normally, up to `channel_size` records hold a slot: records being prepared, prepared records, and those of senders
  that wait for a permit to send.
- While the breaker is open or the exporter pauses, no record is leased. When a probe is due, one is.
- While no more records may overtake one with an unknown outcome (`outcomes.py`), only records with an unknown outcome
  proceed. As soon as another record was leased and had to be returned, records are leased one at a time.

A sender is checked again before it sends, because conditions may have changed. `max_sends` limits the sends in progress
of this exporter, `shared` those of all exporters of the process. The number of sender threads is fixed; those beyond
`workers` get no records, so changing `workers` changes the size of the pool. A thread that waits for a point in time
waits in short steps, because the time is that of the breaker's clock, which may not be the real one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headrace.export.breaker import Breaker, BreakerState, Permit
from headrace.export.destination import SendBatch
from headrace.export.outcomes import UnknownOutcomes
from headrace.spool.record import SpoolRecord

TICK_S = 0.05  # interval of waits that end by time
IDLE_S = 0.2  # interval of waits that end by notification


@dataclass(frozen=True)
class PreparedRecord:
    record: SpoolRecord
    batches: tuple[SendBatch, ...]
    prepare_s: float


class FlowControl:
    def __init__(
        self,
        breaker: Breaker,
        outcomes: UnknownOutcomes,
        clock: Callable[[], float],
        *,
        channel_size: int,
        workers: int,
        max_sends: int,
        shared: threading.Semaphore,  # of all exporters of the process
    ) -> None:
        self._breaker = breaker
        self._outcomes = outcomes
        self._clock = clock
        self._channel_size = channel_size
        self._max_sends = max_sends
        self._shared = shared
        self.sending = 0
        self.workers = workers
        self.stopping = False
        self.recalls = 0
        self._changed = threading.Condition()
        self._channel: deque[PreparedRecord] = deque()
        self._reserved_slots = 0
        self._paused_until = float("-inf")
        self._is_throttled = False  # the last leased record had to go back

    # --- for preparers ---------------------------------------------------------------------------

    def wait_to_lease(self) -> bool:
        """Wait until a record may be leased, and reserve a slot for it. Return False when stopping."""
        turned_away = False
        with self._changed:
            while not self.stopping:
                if self._can_lease():
                    self._reserved_slots += 1
                    return True
                if not turned_away and not self._breaker.can_permit():
                    turned_away = True
                    self._breaker.count_rejection()
                self._changed.wait(TICK_S)
            return False

    def can_prepare(self) -> bool:
        """Return True if a record that was just leased may be prepared. Checked after leasing, because the wait for a
        record may have been long."""
        with self._changed:
            return not self.stopping and not self._is_paused() and self._breaker.can_permit()

    def release_slot(self) -> None:
        """Release a slot that is not needed: there was no record, or it went back."""
        with self._changed:
            self._reserved_slots -= 1
            self._changed.notify_all()

    def throttle_leasing(self) -> None:
        """Lease one record at a time from now on, because the last one had to go back: it would have passed a record
        with an unknown outcome too far."""
        with self._changed:
            self._is_throttled = True

    def submit(self, item: PreparedRecord, recalls: int) -> bool:
        """Pass a prepared record to the senders. Return False if there was a recall since `recalls` was read, before
        leasing."""
        with self._changed:
            if recalls != self.recalls:
                return False
            self._channel.append(item)
            self._is_throttled = False
            self._changed.notify_all()
            return True

    # --- for senders -----------------------------------------------------------------------------

    def next_prepared(self, number: int) -> PreparedRecord | None:
        """Wait for a prepared record for sender `number`; None when stopping."""
        with self._changed:
            while not self.stopping:
                if self._channel and number < self.workers:
                    return self._channel.popleft()
                self._changed.wait(IDLE_S)
            return None

    def wait_to_send(self) -> Permit | None:
        """Wait until a record may be sent, and return the permit; None when stopping. Frees the record's slot. Call
        `finish_send` when the send is over, whatever its result."""
        with self._changed:
            while not self.stopping:
                if permit := self._try_get_permit():
                    self._reserved_slots -= 1
                    self.sending += 1
                    self._changed.notify_all()
                    return permit
                self._changed.wait(TICK_S)
            return None

    def finish_send(self) -> None:
        with self._changed:
            self.sending -= 1
            self._shared.release()
            self._changed.notify_all()

    # --- for the exporter ------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Lease and send nothing for this many seconds; a longer pause in progress stays."""
        with self._changed:
            self._paused_until = max(self._paused_until, self._clock() + seconds)

    def end_pause(self) -> None:
        with self._changed:
            self._paused_until = float("-inf")
            self._changed.notify_all()

    @property
    def pause_left_s(self) -> float:
        return max(0.0, self._paused_until - self._clock())

    def set_workers(self, workers: int) -> None:
        with self._changed:
            self.workers = workers
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def recall(self) -> list[PreparedRecord]:
        """Take back all prepared records that no sender has, to return them to the spool, which keeps the order.
        Records being prepared now are not accepted by `submit` any more."""
        with self._changed:
            items = list(self._channel)
            self._channel.clear()
            self._reserved_slots -= len(items)
            self.recalls += 1
            return items

    def _is_paused(self) -> bool:
        return self._clock() < self._paused_until

    def _try_get_permit(self) -> Permit | None:
        if self._is_paused() or self.sending >= self._max_sends or not self._breaker.can_permit():
            return None
        if not self._shared.acquire(blocking=False):
            return None
        permit = self._breaker.permit()
        if permit is None:
            self._shared.release()
        return permit

    def _can_lease(self) -> bool:
        if self._is_paused() or not self._breaker.can_permit():
            return False
        if self._breaker.state is not BreakerState.CLOSED or (self._is_throttled and not self._outcomes.has_room()):
            return self._reserved_slots == 0
        return self._reserved_slots < self._channel_size
