"""Background loops: how they repeat a step and handle its errors, and their counts, durations and health.

A process is unhealthy while a loop has failed UNHEALTHY_AFTER times in a row. A standby process, which leaves the work
to another one, is healthy.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from headrace.errors import HeadraceError
from headrace.runtime.metrics import DurationHistogram, MetricDeclaration, MetricFamilies, MetricFamily, MetricValues

UNHEALTHY_AFTER = 3  # consecutive failures

OK, ERROR, SUPERSEDED = STATUSES = ("ok", "error", "superseded")
STANDBY = "standby"  # returned by a step that left its work to another process; not counted

TICK_S = 0.5
MIN_PAUSE_S = 0.05

ITERATIONS = MetricDeclaration(
    "headrace_loop_rounds_total",
    "counter",
    "Loop iterations by result: ok, error, or superseded (another process has taken over).",
    ("loop", "status"),
)
SECONDS = MetricDeclaration(
    "headrace_loop_round_seconds", "histogram", "Duration of successful loop iterations.", ("loop",)
)
LAST_SUCCESS = MetricDeclaration(
    "headrace_loop_last_success_timestamp_seconds",
    "gauge",
    "Unix time of the last successful iteration; absent before the first.",
    ("loop",),
)
LEADING = MetricDeclaration(
    "headrace_loop_leading", "gauge", "1 if this process is the leader, 0 if it is on standby.", ("loop",)
)
HEALTHY = MetricDeclaration(
    "headrace_loop_healthy",
    "gauge",
    "0 after three consecutive failed iterations, until a success; otherwise 1.",
    ("loop",),
)
METRICS = (ITERATIONS, SECONDS, LAST_SUCCESS, LEADING, HEALTHY)


LoopShards = tuple[int, ...]
"""Shards that an iteration served; empty if the loop does not work by shard. Failures are counted per set of shards."""


class LoopStats:
    """Counters and health of one background loop. `leads` returns whether this process is the leader; None if the loop
    has no leader."""

    def __init__(self, loop: str, leads: Callable[[], bool] | None = None) -> None:
        self.loop = loop
        self.leads = leads
        self.seconds = DurationHistogram()
        self.counts = dict.fromkeys(STATUSES, 0)
        self.last_success_at: float | None = None
        self._failing: dict[LoopShards, tuple[int, str]] = {}  # consecutive failures, and the last error
        self._lock = threading.Lock()

    @property
    def failures_in_a_row(self) -> int:
        """Highest number of consecutive failures of any set of shards."""
        return max((failures for failures, _ in list(self._failing.values())), default=0)

    @property
    def last_error(self) -> str:
        return max(list(self._failing.values()), default=(0, ""))[1]

    @property
    def healthy(self) -> bool:
        return self.failures_in_a_row < UNHEALTHY_AFTER

    def record_success(self, seconds: float, shards: LoopShards = ()) -> None:
        with self._lock:
            self.counts[OK] += 1
            self.seconds.observe(seconds)
            self.last_success_at = time.time()
            self._failing.pop(shards, None)

    def record_failure(self, error: Exception, shards: LoopShards = ()) -> None:
        with self._lock:
            self.counts[ERROR] += 1
            failures, _ = self._failing.get(shards, (0, ""))
            self._failing[shards] = failures + 1, str(error) or type(error).__name__

    def record_superseded(self, shards: LoopShards = ()) -> None:
        with self._lock:
            self.counts[SUPERSEDED] += 1
            self._failing.pop(shards, None)

    def record_standby(self, shards: LoopShards = ()) -> None:
        """Record that another process is the leader; clears failures."""
        with self._lock:
            self._failing.pop(shards, None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "healthy": self.healthy,
            "leading": None if self.leads is None else self.leads(),
            "failures_in_a_row": self.failures_in_a_row,
            "last_error": self.last_error,
            "last_success_at": self.last_success_at,
        }


@dataclass(frozen=True)
class ErrorPolicy:
    """How a loop logs the errors of its step. The step is tried again after all errors except `fatal` ones."""

    superseded: type[HeadraceError]  # another process has taken over
    log_superseded: Callable[[HeadraceError], None]
    log_failed: Callable[[HeadraceError], None]
    log_unexpected: Callable[[], None]  # called while any other exception is handled
    fatal: tuple[type[HeadraceError], ...] = ()  # raised: the next try would fail the same way


class Loop:
    """A step that is repeated every `every_s` seconds. Results are counted in `stats`, errors also logged.

    If `stats.leads` is set, the step is due only while this process is the leader; this is checked every `tick_s`.
    """

    def __init__(
        self,
        stats: LoopStats,
        step: Callable[[], object],
        policy: ErrorPolicy,
        every_s: float = 0.0,
        tick_s: float = TICK_S,
    ) -> None:
        self._stats = stats
        self._step = step
        self._policy = policy
        self._every_s = every_s
        self._tick_s = tick_s
        self._due = time.monotonic()

    def run_once(self) -> str:
        """Run the step, due or not. Return OK, ERROR, SUPERSEDED or STANDBY. Raises errors that are fatal."""
        began = time.monotonic()
        try:
            if self._step() == STANDBY:
                self._stats.record_standby()
                return STANDBY
        except self._policy.superseded as error:
            self._policy.log_superseded(error)
            self._stats.record_superseded()
            return SUPERSEDED
        except self._policy.fatal:
            raise
        except Exception as error:
            if isinstance(error, HeadraceError):
                self._policy.log_failed(error)
            else:
                self._policy.log_unexpected()
            self._stats.record_failure(error)
            return ERROR
        self._stats.record_success(time.monotonic() - began)
        return OK

    def run_if_due(self) -> None:
        if time.monotonic() >= self._due and (self._stats.leads is None or self._stats.leads()):
            self._due = time.monotonic() + self._every_s
            self.run_once()

    def run_forever(self, stop: Event) -> None:
        while not stop.is_set():
            self.run_if_due()
            stop.wait(min(self._tick_s, max(self._every_s, MIN_PAUSE_S)))


def make_process_name() -> str:
    """Return a name under which a loop of this process can own work: host, process id and random digits."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"


@contextmanager
def run_in_thread(
    run: Callable[[Event], object], name: str, stop_s: float, stop: Event | None = None
) -> Generator[None]:
    """Call `run(stop)` in a daemon thread while the context is open. At its end, set `stop` (by default an event of its
    own) and wait up to `stop_s` seconds for the thread."""
    stop = stop or Event()
    thread = Thread(target=run, args=[stop], name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(stop_s)


class ServiceMetrics:
    """Metrics and health of a service: its loops, and additional values."""

    def __init__(self, loops: Sequence[LoopStats], numbers: Sequence[MetricValues] = ()) -> None:
        self.loops = loops
        self._numbers = numbers

    def families(self) -> MetricFamilies:
        yield ITERATIONS, {(each.loop, status): each.counts[status] for each in self.loops for status in STATUSES}
        yield SECONDS, {(each.loop,): each.seconds for each in self.loops}
        yield (
            LAST_SUCCESS,
            {(each.loop,): each.last_success_at for each in self.loops if each.last_success_at is not None},
        )
        yield LEADING, {(each.loop,): float(each.leads()) for each in self.loops if each.leads is not None}
        yield HEALTHY, {(each.loop,): float(each.healthy) for each in self.loops}
        yield from self.extra_families()

    def extra_families(self) -> MetricFamilies:
        """Return metric families beyond those of the loops."""
        return [numbers.read() for numbers in self._numbers]

    def health(self) -> tuple[int, dict[str, Any]]:
        """Return HTTP status and body of /healthz."""
        healthy = all(each.healthy for each in self.loops)
        loops = {each.loop: each.to_dict() for each in self.loops}
        return (200 if healthy else 503), {"healthy": healthy, "loops": loops}


def single_value_family(metric: MetricDeclaration, value: float | None) -> MetricFamily:
    """Return a family with one value and no labels, or without a value if `value` is None (unknown)."""
    return metric, {} if value is None else {(): value}


def is_loop_running() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_cancelling() -> bool:
    """Return whether the cancellation of the current asyncio task was requested. A CancelledError can also come from
    something that the task awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
