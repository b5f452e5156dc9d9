"""Load of the queues and streams of a worker type, and the slots that it needs. Pure.

Demand is measured in slots. By Little's law arrivals occupy `arrivals × service time` slots, and draining the backlog
in time takes another `backlog × service time / drain time`. Scheduled jobs that become due before a worker started now
would be ready count as backlog.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.autoscale.worker_types import Scaling

EPSILON = 1e-9
"""Tolerance for sums of floats: 3.0000000001 workers are 3."""


@dataclass(frozen=True)
class LoadSource:
    """Load of a queue or a stream group. None: unknown."""

    name: str  # shown to users
    depth: int | None  # jobs that could run now, in both tiers; undelivered entries of a stream
    running: int | None  # jobs leased by workers; pending entries of a stream that are not in retry backoff
    arrivals_per_s: float | None
    service_s: float | None  # None: use the default of the worker type
    cold: int = 0  # part of `depth` that is in PostgreSQL
    scheduled: int = 0  # stream entries in retry backoff: no slot needed yet, but a worker must exist when they are due
    age_s: float | None = None  # age of the oldest waiting job; None: nothing waits, or unknown
    limit: int | None = None  # concurrency limit
    paused: bool = False
    env: str = ""  # key into `Observation.env_slots`
    unknown: str = ""  # which input is unknown and why; empty if none is
    due_soon: int | None = 0  # scheduled jobs of a queue, in both tiers, that are due within the horizon

    @property
    def load(self) -> int:
        """Known waiting and running jobs."""
        return (self.depth or 0) + (self.running or 0)

    @property
    def is_known(self) -> bool:
        return None not in (self.depth, self.running, self.arrivals_per_s, self.due_soon)


@dataclass(frozen=True)
class Observation:
    sources: Sequence[LoadSource] = ()
    env_slots: Mapping[str, int] = field(default_factory=dict[str, int])  # environment → slots that its limit leaves
    workers: int | None = None  # running workers; None: unknown, because they run elsewhere
    unknown: str = ""  # why nothing could be observed; empty if it could
    horizon_s: float = 0.0  # how far ahead scheduled jobs are counted

    @property
    def unknown_reason(self) -> str:
        """Return which input is unknown and why; empty if all are known."""
        return self.unknown or next(
            (each.unknown or f"load of {each.name}" for each in self.sources if not each.is_known), ""
        )


@dataclass(frozen=True)
class Demand:
    slots: float  # concurrent jobs that the load needs
    allowed: float  # part of `slots` that limits and pauses allow
    known_load: int
    too_old: bool  # True if a job has waited longer than `age_s`


def estimate_demand(scaling: Scaling, observation: Observation) -> Demand:
    """Estimate the slots needed by the known sources.

    Unknown sources count as 0 here; `decide` does not scale down while any is unknown.
    """
    slots = allowed = 0.0
    by_env: dict[str, float] = {}
    too_old = False
    for source in observation.sources:
        wants = estimate_slots(scaling, source)
        slots += wants
        too_old |= is_too_old(scaling, source)
        by_env[source.env] = by_env.get(source.env, 0.0) + min(wants, count_runnable_slots(source))
    for env, wants in by_env.items():
        allowed += min(wants, observation.env_slots.get(env, math.inf))
    known_load = sum(source.load + source.scheduled + (source.due_soon or 0) for source in observation.sources)
    return Demand(slots, allowed, known_load, too_old)


def estimate_slots(scaling: Scaling, source: LoadSource) -> float:
    """Estimate the slots that a source needs, whatever limits and pauses allow."""
    service_s = scaling.service_s if source.service_s is None else source.service_s
    steady = (source.arrivals_per_s or 0.0) * service_s
    # Running jobs are part of the steady load; only those beyond it count as backlog.
    due_soon = source.due_soon or 0
    backlog = (source.depth or 0) + due_soon + max(0.0, (source.running or 0) - steady)
    wants = steady / scaling.utilization + backlog * service_s / scaling.drain_s
    if is_too_old(scaling, source):
        wants *= 2
    # More slots than jobs are useless.
    return min(wants, source.load + due_soon + steady / scaling.utilization)


def count_runnable_slots(source: LoadSource) -> float:
    """Return the slots that the limit or the pause of a queue allows; infinity without either."""
    running = source.running or 0
    if source.paused:
        return running
    return math.inf if source.limit is None else max(source.limit, running)


def is_too_old(scaling: Scaling, source: LoadSource) -> bool:
    """Return True if the oldest job of a source has waited longer than the worker type accepts."""
    return source.age_s is not None and source.age_s > scaling.age_s


def count_workers(scaling: Scaling, slots: float) -> int:
    """Return the number of workers that have this many slots, without regard to the bounds of the type."""
    return math.ceil(slots / scaling.per_worker - EPSILON)
