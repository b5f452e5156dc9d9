"""Discrete-event simulation of a queue and its workers.

Jobs start in arrival order in the first free slot, and each wait is exact. New workers need `start_s`; surplus workers
finish their jobs. The policy is applied every `every_s`.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from headrace.autoscale.decide import ScalingState, decide
from headrace.autoscale.demand import LoadSource, Observation
from headrace.autoscale.rate_meter import CounterSample, RateMeter
from headrace.autoscale.worker_types import WorkerType
from headrace.autoscale.workloads import Arrival, Workload

SAMPLE_S = 10


@dataclass(frozen=True)
class PolicyView:
    """State that a policy may use. During an outage nothing is known."""

    known: bool
    depth: int
    running: int
    age_s: float | None  # age of the oldest waiting job
    pending_age_s: float | None  # age of the oldest running job, since its arrival
    entered: int
    ended: int
    workers: int  # last wanted number


class ScalingPolicy(Protocol):
    def wanted(self, view: PolicyView, at_s: int) -> int: ...


@dataclass(frozen=True)
class SimulationOptions:
    per_worker: int = 10
    every_s: int = 10  # interval between decisions of the policy
    start_s: int = 15  # time until a new worker is ready
    workers: int = 1  # initial number


@dataclass
class SimulationResult:
    """Waits, worker time and samples of a simulation. Samples are taken every SAMPLE_S."""

    waits_s: array[float] = field(default_factory=lambda: array("d"))
    worker_s: float = 0.0
    changes: int = 0
    at_s: list[int] = field(default_factory=list[int])
    depth: list[int] = field(default_factory=list[int])
    age_s: list[float] = field(default_factory=list[float])
    workers: list[int] = field(default_factory=list[int])

    @property
    def worker_hours(self) -> float:
        return self.worker_s / 3600

    def compute_wait_quantile_s(self, share: float) -> float:
        """Return the quantile `share` (0 to 1) of the waits, in seconds (nearest rank)."""
        ordered = sorted(self.waits_s)
        return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else 0.0


class Simulation:
    def __init__(self, load: Workload, rule: ScalingPolicy, options: SimulationOptions | None = None) -> None:
        self._load = load
        self._rule = rule
        self._options = options or SimulationOptions()
        self._waiting: deque[Arrival] = deque()
        self._ends: list[float] = []  # heap of the end times of running jobs
        self._held: deque[tuple[float, float]] = deque()  # (arrival, end) of running and finished jobs, by arrival
        self._starting: deque[tuple[int, int]] = deque()  # (time, number) of workers that become ready
        self._ready = self._options.workers
        self._wanted = self._options.workers
        self._entered = self._ended = 0
        self._is_out = False
        self._outcome = SimulationResult()

    def run(self) -> SimulationResult:
        arrivals = iter(self._load.arrivals)
        pending = next(arrivals, None)
        for second in range(self._load.length_s):
            self._begin_second(second)
            while pending is not None and pending[0] < second + 1:
                self._advance(pending[0])
                self._entered += 1
                self._waiting.append(pending)
                self._start_waiting_jobs(pending[0])
                pending = next(arrivals, None)
            self._advance(second + 1)
        # Jobs that still wait count with their wait so far.
        self._outcome.waits_s.extend(self._load.length_s - at_s for at_s, _ in self._waiting)
        return self._outcome

    def _begin_second(self, second: int) -> None:
        self._is_out = any(begins <= second < ends for begins, ends in self._load.outages)
        while self._starting and self._starting[0][0] <= second:
            self._ready += self._starting.popleft()[1]
        self._start_waiting_jobs(second)
        if second % self._options.every_s == 0:
            self._apply_policy(second)
        self._outcome.worker_s += max(self._wanted, math.ceil(len(self._ends) / self._options.per_worker))
        if second % SAMPLE_S == 0:
            self._sample(second)

    def _apply_policy(self, second: int) -> None:
        wanted = self._rule.wanted(self._make_view(second), second)
        if wanted == self._wanted:
            return
        self._outcome.changes += 1
        if wanted > self._wanted:
            self._starting.append((second + self._options.start_s, wanted - self._wanted))
        else:
            self._remove_workers(self._wanted - wanted)
        self._wanted = wanted

    def _remove_workers(self, remaining: int) -> None:
        """Remove workers, starting ones first."""
        while remaining and self._starting:
            at_s, count = self._starting.pop()
            if count > remaining:
                self._starting.append((at_s, count - remaining))
            remaining -= min(count, remaining)
        self._ready -= remaining

    def _make_view(self, second: int) -> PolicyView:
        while self._held and self._held[0][1] <= second:
            self._held.popleft()
        return PolicyView(
            known=not self._is_out,
            depth=len(self._waiting),
            running=len(self._ends),
            age_s=second - self._waiting[0][0] if self._waiting else None,
            pending_age_s=second - self._held[0][0] if self._held else None,
            entered=self._entered,
            ended=self._ended,
            workers=self._wanted,
        )

    def _sample(self, second: int) -> None:
        self._outcome.at_s.append(second)
        self._outcome.depth.append(len(self._waiting))
        self._outcome.age_s.append(second - self._waiting[0][0] if self._waiting else 0.0)
        self._outcome.workers.append(self._wanted)

    def _advance(self, to_s: float) -> None:
        while self._ends and self._ends[0] <= to_s:
            at_s = heappop(self._ends)
            self._ended += 1
            self._start_waiting_jobs(at_s)

    def _start_waiting_jobs(self, at_s: float) -> None:
        slots = 0 if self._is_out else self._ready * self._options.per_worker
        while self._waiting and len(self._ends) < slots:
            arrived_s, service_s = self._waiting.popleft()
            self._outcome.waits_s.append(max(0.0, at_s - arrived_s))
            heappush(self._ends, at_s + service_s)
            self._held.append((arrived_s, at_s + service_s))


class HeadracePolicy:
    """Scaling policy that uses `decide`, with rates measured as in LoadObserver."""

    def __init__(self, worker: WorkerType, window_s: float = 60.0) -> None:
        self._worker = worker
        self._meter = RateMeter(window_s)
        self._state = ScalingState()
        self.sentences: list[str] = []

    def wanted(self, view: PolicyView, at_s: int) -> int:
        decision = decide(self._worker, self._observe(view, at_s * 1000), self._state, at_s * 1000)
        self._state = decision.state
        self.sentences.append(decision.sentence)
        return decision.wanted

    def _observe(self, view: PolicyView, now_ms: int) -> Observation:
        if not view.known:
            return Observation(workers=view.workers, unknown="state of the queue")
        rates = self._meter.add(CounterSample(now_ms, 0, view.entered, view.ended, view.running))
        source = LoadSource("queue", view.depth, view.running, rates.arrivals_per_s, rates.service_s, age_s=view.age_s)
        return Observation([source], workers=view.workers)
