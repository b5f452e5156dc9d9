"""Who may do what now: the gates between a spool, the preparers and the senders of an exporter.

A preparer asks *before* it takes a record from the spool, so that nothing is taken that cannot be sent:

- while all is well, up to `channel_size` records are in hand (prepared, being prepared, or held by a sender that waits
  for its permit);
- while the breaker is open, or the destination asked for a pause, none are taken; when it is time for the probe, one;
- while a record of unclear fate must not be passed any further, only those of unclear fate go on; once another one was
  met, the spool is asked for one at a time.

A sender asks again before it sends, because much can happen while an item waits: at most `max_sends` of this exporter
and as many of all exporters of the process as `SendLimit` allows are under way. Senders beyond `workers` get no items,
which is how the pool grows and shrinks. Waits are short and repeated where they end by time, because time is the clock
of the breaker and not of this module.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headrace.spool.breaker import Breaker, BreakerState, Permit
from headrace.spool.destination import Batch
from headrace.spool.fates import Fates
from headrace.spool.record import Record

TICK_S = 0.05  # between looks at a clock
IDLE_S = 0.2  # between looks at nothing in particular


class SendLimit:
    """Sends under way in the whole process; shared by its exporters."""

    def __init__(self, most: int) -> None:
        self._free = threading.BoundedSemaphore(most)

    def try_begin(self) -> bool:
        return self._free.acquire(blocking=False)

    def end(self) -> None:
        self._free.release()


@dataclass(frozen=True)
class FlowLimits:
    channel_size: int
    workers: int
    max_sends: int
    shared: SendLimit


@dataclass(frozen=True)
class Item:
    record: Record
    batches: tuple[Batch, ...]
    prepare_s: float


class Flow:
    def __init__(self, breaker: Breaker, fates: Fates, limits: FlowLimits, clock: Callable[[], float]) -> None:
        self._breaker = breaker
        self._fates = fates
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        self._channel: deque[Item] = deque()
        self._in_hand = 0
        self._sending = 0
        self._workers = limits.workers
        self._paused_until = float("-inf")
        self._stopping = False
        self._recalls = 0
        self._turned_back = False  # the last record that was taken had to go back

    # --- for preparers ---------------------------------------------------------------------------

    def wait_to_take(self) -> bool:
        """Waits for leave to take one record, and reserves its place; False when it is time to stop."""
        turned_away = False
        with self._changed:
            while not self._stopping:
                if self._may_take():
                    self._in_hand += 1
                    return True
                if not turned_away and not self._breaker.ready():
                    turned_away = True
                    self._breaker.turn_away()
                self._changed.wait(TICK_S)
            return False

    def still_open(self) -> bool:
        """Asked again once a record was taken: a wait for one may have been long."""
        with self._changed:
            return not self._stopping and not self._paused() and self._breaker.ready()

    def give_up(self) -> None:
        """The place is not needed: there was no record, or it went back."""
        with self._changed:
            self._in_hand -= 1
            self._changed.notify_all()

    def turn_back(self) -> None:
        """A record had to go back because it would have passed another one too far."""
        with self._changed:
            self._turned_back = True

    @property
    def recalls(self) -> int:
        with self._changed:
            return self._recalls

    def hand_over(self, item: Item, recalls: int) -> bool:
        """To the senders; False if there was a recall since `recalls` was read, before the record was taken."""
        with self._changed:
            if recalls != self._recalls:
                return False
            self._channel.append(item)
            self._turned_back = False
            self._changed.notify_all()
            return True

    # --- for senders -----------------------------------------------------------------------------

    def next_item(self, number: int) -> Item | None:
        """Waits for an item for this sender; None when it is time to stop."""
        with self._changed:
            while not self._stopping:
                if self._channel and number < self._workers:
                    return self._channel.popleft()
                self._changed.wait(IDLE_S)
            return None

    def wait_to_send(self) -> Permit | None:
        """Waits until an item may be sent; None when it is time to stop. Its place in hand is free from then on.
        Say `sent` when it is over, however it went."""
        with self._changed:
            while not self._stopping:
                if permit := self._try_send():
                    self._in_hand -= 1
                    self._sending += 1
                    self._changed.notify_all()
                    return permit
                self._changed.wait(TICK_S)
            return None

    def sent(self) -> None:
        with self._changed:
            self._sending -= 1
            self._limits.shared.end()
            self._changed.notify_all()

    @property
    def sending(self) -> int:
        with self._changed:
            return self._sending

    # --- for the exporter ------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Nothing is taken or sent for this long; a longer pause that is under way stays."""
        with self._changed:
            self._paused_until = max(self._paused_until, self._clock() + seconds)

    def end_pause(self) -> None:
        with self._changed:
            self._paused_until = float("-inf")
            self._changed.notify_all()

    @property
    def pause_left_s(self) -> float:
        with self._changed:
            return max(0.0, self._paused_until - self._clock())

    @property
    def workers(self) -> int:
        with self._changed:
            return self._workers

    def set_workers(self, workers: int) -> None:
        with self._changed:
            self._workers = workers
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    @property
    def stopping(self) -> bool:
        with self._changed:
            return self._stopping

    def recall(self) -> list[Item]:
        """Everything that is prepared and not with a sender, to be given back to the spool, which knows the order. What
        is being prepared now is not handed over any more."""
        with self._changed:
            items = list(self._channel)
            self._channel.clear()
            self._in_hand -= len(items)
            self._recalls += 1
            return items

    def _paused(self) -> bool:
        return self._clock() < self._paused_until

    def _try_send(self) -> Permit | None:
        if self._paused() or self._sending >= self._limits.max_sends or not self._breaker.ready():
            return None
        if not self._limits.shared.try_begin():
            return None
        permit = self._breaker.permit()
        if permit is None:
            self._limits.shared.end()
        return permit

    def _may_take(self) -> bool:
        if self._paused() or not self._breaker.ready():
            return False
        if self._breaker.state is not BreakerState.CLOSED or (self._turned_back and not self._fates.open()):
            return self._in_hand == 0
        return self._in_hand < self._limits.channel_size
