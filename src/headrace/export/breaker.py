"""Circuit breaker: after consecutive failures nothing is sent for a while, then one probe.

closed ──`threshold` consecutive failures──► open ──`reset_s` later, at the next request──► half_open
half_open ──probe succeeds──► closed; half_open ──probe fails──► open

A send needs a permit and ends with a verdict: True if the destination works, False if it failed, None if the response
says nothing about it or the thread died of an exception. Guarantees:

- In the half-open state, there is at most one probe at a time, and only one verdict changes the state.
- A probe that ends without a verdict allows another probe, and changes nothing else.
- A verdict that arrives after the state has changed is ignored: a late response neither opens nor closes the breaker.

The clock that is passed in must be monotonic. This module imports nothing of Headrace.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True)
class BreakerStats:
    state: BreakerState
    failures: int  # consecutive, while closed
    rejected: int  # attempts to send that were turned away
    transitions: Mapping[tuple[BreakerState, BreakerState], int]

    @property
    def opened(self) -> int:
        return sum(count for (_, to), count in self.transitions.items() if to is BreakerState.OPEN)


class Breaker:
    def __init__(
        self,
        threshold: int = 5,
        reset_s: float = 30.0,
        *,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[BreakerState, BreakerState], None] = lambda _before, _after: None,
    ) -> None:
        self._threshold = threshold
        self._reset_s = reset_s
        self._enabled = enabled
        self._clock = clock
        self._on_change = on_change
        self.state = BreakerState.CLOSED
        self._lock = threading.Lock()
        self._generation = 0  # of the current state; a permit keeps the one it was issued in
        self._failures = 0
        self._reopens_at = 0.0
        self._probe: Permit | None = None
        self._rejected = 0
        self._transitions: Counter[tuple[BreakerState, BreakerState]] = Counter()

    def can_permit(self) -> bool:
        """Return True if `permit` would succeed now. Has no side effect, so it can be checked before a record is
        leased."""
        with self._lock:
            return self._would_permit()

    def count_rejection(self) -> None:
        """Count a caller that `can_permit` made wait."""
        with self._lock:
            self._rejected += 1

    def permit(self) -> Permit | None:
        """Return a permit for one send, or None if sending is not allowed now. Use the permit as a context manager."""
        with self._lock:
            if not self._would_permit():
                self._rejected += 1
                return None
            before = self.state
            if before is BreakerState.OPEN:
                self._enter_state(BreakerState.HALF_OPEN)
            permit = Permit(self, self._generation, is_probe=self.state is BreakerState.HALF_OPEN)
            if permit.is_probe:
                self._probe = permit
        if before is BreakerState.OPEN:
            self._on_change(before, BreakerState.HALF_OPEN)
        return permit

    def stats(self) -> BreakerStats:
        with self._lock:
            return BreakerStats(self.state, self._failures, self._rejected, dict(self._transitions))

    def _would_permit(self) -> bool:
        match self.state:
            case BreakerState.CLOSED:
                return True
            case BreakerState.OPEN:
                return self._clock() >= self._reopens_at
            case BreakerState.HALF_OPEN:
                return self._probe is None

    def apply_result(self, permit: Permit, generation: int, verdict: bool | None) -> None:
        """Apply the result of a permit; called once per permit. `verdict` None: nothing was learnt about the
        destination."""
        with self._lock:
            if self._probe is permit:
                self._probe = None
            if verdict is None or generation != self._generation or not self._enabled:
                return
            before = self.state
            self._failures = 0 if verdict else self._failures + 1
            if verdict and before is BreakerState.HALF_OPEN:
                self._enter_state(BreakerState.CLOSED)
            elif not verdict and (before is BreakerState.HALF_OPEN or self._failures >= self._threshold):
                self._reopens_at = self._clock() + self._reset_s
                self._enter_state(BreakerState.OPEN)
            after = self.state
        if after is not before:
            self._on_change(before, after)

    def _enter_state(self, state: BreakerState) -> None:
        self._transitions[self.state, state] += 1
        self.state = state
        self._generation += 1


class Permit:
    """Permission for one send. Record the result inside the `with`; leaving it without one frees the permit."""

    def __init__(self, breaker: Breaker, generation: int, is_probe: bool = False) -> None:
        self.is_probe = is_probe
        self._breaker = breaker
        self._generation = generation
        self._is_finished = False

    def record_success(self) -> None:
        self._finish(True)

    def record_failure(self) -> None:
        """Record that the destination is down, slow or broken. An error caused by the record or by Headrace is no
        failure."""
        self._finish(False)

    def __enter__(self) -> Permit:
        return self

    def __exit__(self, *exception: object) -> None:
        self._finish(None)

    def _finish(self, verdict: bool | None) -> None:
        if not self._is_finished:
            self._is_finished = True
            self._breaker.apply_result(self, self._generation, verdict)
