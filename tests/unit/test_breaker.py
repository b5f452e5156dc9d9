"""The circuit breaker against a model, under a clock that only the model moves."""

from __future__ import annotations

import threading

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from headrace.export.breaker import Breaker, BreakerState, Permit

THRESHOLD = 3
RESET_S = 30.0
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class BreakerMachine(RuleBasedStateMachine):
    """Model of the breaker. A verdict counts only in the state generation in which its permit was issued."""

    permits: Bundle[tuple[Permit, int]] = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.seen: list[tuple[BreakerState, BreakerState]] = []
        self.breaker = Breaker(
            THRESHOLD, RESET_S, clock=self.clock, on_change=lambda before, after: self.seen.append((before, after))
        )
        self.state = CLOSED
        self.era = 0
        self.failures = 0
        self.opened_at = 0.0
        self.probe: Permit | None = None
        self.rejected = 0
        self.transitions: list[tuple[BreakerState, BreakerState]] = []

    def go(self, state: BreakerState) -> None:
        self.transitions.append((self.state, state))
        self.state, self.failures = state, 0
        self.era += 1
        if state is OPEN:
            self.opened_at = self.clock.now

    def expects_permit(self) -> bool:
        if self.state is OPEN:
            return self.clock.now >= self.opened_at + RESET_S
        return self.state is CLOSED or self.probe is None

    @rule(seconds=st.sampled_from([0.0, 1.0, RESET_S - 1.0, RESET_S, 10 * RESET_S]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(target=permits)
    def ask(self) -> tuple[Permit, int]:
        expected = self.expects_permit()
        assert self.breaker.can_permit() is expected
        permit = self.breaker.permit()
        assert (permit is not None) is expected
        if permit is None:
            self.rejected += 1
            permit = Permit(Breaker(), 0)  # of another breaker: its verdict must change nothing
            return permit, -1
        if self.state is OPEN:
            self.go(HALF_OPEN)
        if self.state is HALF_OPEN:
            self.probe = permit
        return permit, self.era

    @rule(held=consumes(permits))
    def succeed(self, held: tuple[Permit, int]) -> None:
        permit, era = held
        with permit:
            permit.record_success()
        self.freed(permit)
        if era == self.era:
            self.failures = 0
            if self.state is HALF_OPEN:
                self.go(CLOSED)

    @rule(held=consumes(permits))
    def fail(self, held: tuple[Permit, int]) -> None:
        permit, era = held
        with permit:
            permit.record_failure()
        self.freed(permit)
        if era == self.era:
            self.failures += 1
            if self.state is HALF_OPEN or self.failures >= THRESHOLD:
                self.go(OPEN)

    @rule(held=consumes(permits))
    def learn_nothing(self, held: tuple[Permit, int]) -> None:
        with held[0]:
            pass
        self.freed(held[0])

    @rule(held=consumes(permits), verdict=st.booleans())
    def die(self, held: tuple[Permit, int], verdict: bool) -> None:
        """Simulate an exception in the sending thread, before its verdict."""
        with pytest.raises(ZeroDivisionError), held[0]:
            raise ZeroDivisionError
        (held[0].record_success if verdict else held[0].record_failure)()  # too late: the permit was returned
        self.freed(held[0])

    def freed(self, permit: Permit) -> None:
        if self.probe is permit:
            self.probe = None

    @invariant()
    def agrees(self) -> None:
        stats = self.breaker.stats()
        assert stats.state is self.breaker.state is self.state
        assert stats.rejected == self.rejected
        assert self.seen == self.transitions
        assert sum(stats.transitions.values()) == len(self.transitions)
        assert stats.opened == sum(to is OPEN for _, to in self.transitions)
        if self.state is CLOSED:
            assert stats.failures == self.failures < THRESHOLD


TestBreaker = BreakerMachine.TestCase


def opened(clock: FakeClock) -> Breaker:
    breaker = Breaker(1, RESET_S, clock=clock)
    permit = breaker.permit()
    assert permit is not None
    with permit:
        permit.record_failure()
    assert breaker.state is OPEN
    return breaker


def test_one_of_many_concurrent_threads_gets_the_probe() -> None:
    clock = FakeClock()
    breaker = opened(clock)
    clock.now += RESET_S
    start, got = threading.Barrier(8), list[Permit | None]()

    def ask() -> None:
        start.wait()
        got.append(breaker.permit())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(permit is not None for permit in got) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_with_the_probe_does_not_keep_it() -> None:
    clock = FakeClock()
    breaker = opened(clock)
    clock.now += RESET_S

    def die() -> None:
        permit = breaker.permit()
        assert permit is not None
        with permit:
            raise SystemExit  # ends a thread silently

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()
    assert breaker.state is HALF_OPEN
    assert breaker.permit() is not None


def test_a_breaker_that_is_switched_off_never_opens() -> None:
    breaker = Breaker(1, enabled=False)
    for _ in range(10):
        permit = breaker.permit()
        assert permit is not None
        with permit:
            permit.record_failure()
    assert breaker.state is CLOSED
