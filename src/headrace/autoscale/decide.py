"""Decide how many workers to run, and explain why. Pure.

Demand is measured in slots. By Little's law arrivals occupy `arrivals × service time` slots, and draining the backlog
in time takes another `backlog × service time / drain time`. Scheduled jobs that become due before a worker started now
would be ready count as backlog. While an input is unknown the number is not lowered, and it is at least one while there
may be work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from headrace.autoscale.worker_types import Scaling, WorkerType

EPSILON = 1e-9
"""Tolerance for sums of floats: 3.0000000001 workers are 3."""
MAX_SOURCES_STORED = 50
"""Sources stored with a decision: unknown ones first, then those with the highest load."""


class ScalingVerb(StrEnum):
    UP = "up"
    DOWN = "down"
    HOLD = "hold"


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
class ScalingState:
    """State carried from one decision to the next."""

    began_ms: int | None = None
    wanted: int | None = None
    up_ms: int | None = None  # time of the last scale-up
    changed_ms: int | None = None
    unknown_ms: int | None = None  # time since which an input is unknown
    peaks: tuple[tuple[int, int], ...] = ()  # (time in ms, workers needed) of targets that no later one exceeds


@dataclass(frozen=True)
class Demand:
    slots: float  # concurrent jobs that the load needs
    allowed: float  # part of `slots` that limits and pauses allow
    known_load: int
    too_old: bool  # True if a job has waited longer than `age_s`


@dataclass(frozen=True)
class Decision:
    type: str
    at_ms: int
    verb: ScalingVerb
    current: int
    wanted: int
    known: bool
    sentence: str
    inputs: Mapping[str, Any]
    state: ScalingState


def decide(worker: WorkerType, observation: Observation, state: ScalingState, now_ms: int) -> Decision:
    scaling = worker.scaling
    current = _count_current(scaling, observation, state)
    if not worker.enabled:
        return _make_decision(worker, observation, state, now_ms, current, current, None, "disabled")
    not_known = observation.unknown_reason
    demand = estimate_demand(scaling, observation)
    needed = math.ceil(demand.allowed / scaling.per_worker - EPSILON)
    may_have_work = bool(not_known) or demand.known_load > 0
    floor = min(max(scaling.min, 1), scaling.max) if may_have_work else scaling.min
    target = min(max(needed, floor), scaling.max)
    if not_known:
        target = max(target, min(current, scaling.max))
    state = _advance_state(state, scaling, target, bool(not_known), now_ms)
    wanted, why = _step(scaling, state, demand, current, target, floor, now_ms)
    if not_known:
        why = _describe_unknown(not_known, state, current, wanted)
    return _make_decision(worker, observation, state, now_ms, current, wanted, demand, why)


def estimate_demand(scaling: Scaling, observation: Observation) -> Demand:
    """Estimate the slots needed by the known sources.

    Unknown sources count as 0 here; `decide` does not scale down while any is unknown.
    """
    slots = allowed = 0.0
    by_env: dict[str, float] = {}
    too_old = False
    for source in observation.sources:
        old = source.age_s is not None and source.age_s > scaling.age_s
        wants = _estimate_slots(scaling, source, old)
        slots += wants
        too_old |= old
        by_env[source.env] = by_env.get(source.env, 0.0) + min(wants, _count_runnable_slots(source))
    for env, wants in by_env.items():
        allowed += min(wants, observation.env_slots.get(env, math.inf))
    known_load = sum(source.load + source.scheduled + (source.due_soon or 0) for source in observation.sources)
    return Demand(slots, allowed, known_load, too_old)


def _estimate_slots(scaling: Scaling, source: LoadSource, old: bool) -> float:
    service_s = scaling.service_s if source.service_s is None else source.service_s
    steady = (source.arrivals_per_s or 0.0) * service_s
    # Running jobs are part of the steady load; only those beyond it count as backlog.
    due_soon = source.due_soon or 0
    backlog = (source.depth or 0) + due_soon + max(0.0, (source.running or 0) - steady)
    wants = steady / scaling.utilization + backlog * service_s / scaling.drain_s
    if old:
        wants *= 2
    # More slots than jobs are useless.
    return min(wants, source.load + due_soon + steady / scaling.utilization)


def _count_runnable_slots(source: LoadSource) -> float:
    running = source.running or 0
    if source.paused:
        return running
    return math.inf if source.limit is None else max(source.limit, running)


def _count_current(scaling: Scaling, observation: Observation, state: ScalingState) -> int:
    if state.wanted is not None:
        return state.wanted
    return scaling.min if observation.workers is None else observation.workers


def _advance_state(state: ScalingState, scaling: Scaling, target: int, unknown: bool, now_ms: int) -> ScalingState:
    since_ms = now_ms - int(scaling.settle_s * 1000)
    kept = [(at_ms, peak) for at_ms, peak in state.peaks if at_ms >= since_ms and peak > target]
    return replace(
        state,
        began_ms=now_ms if state.began_ms is None else state.began_ms,
        unknown_ms=(state.unknown_ms if state.unknown_ms is not None else now_ms) if unknown else None,
        peaks=(*kept, (now_ms, target)),
    )


def _step(
    scaling: Scaling, state: ScalingState, demand: Demand, current: int, target: int, floor: int, now_ms: int
) -> tuple[int, str]:
    """Return the next number of workers, and why it is not the target. Bounds apply regardless of cooldowns."""
    current = min(max(current, floor), scaling.max)
    if target > current:
        return _step_up(scaling, state, demand, current, target, now_ms)
    if target < current:
        return _step_down(scaling, state, demand, current, target, now_ms)
    return current, ""


def _step_up(
    scaling: Scaling, state: ScalingState, demand: Demand, current: int, target: int, now_ms: int
) -> tuple[int, str]:
    if 0 < demand.allowed <= current * scaling.per_worker * (1 + scaling.tolerance):
        return current, f"{target} would fit better, but the difference is within the tolerance"
    if left_s := _compute_remaining_s(state.up_ms, scaling.up_cooldown_s, now_ms):
        return current, f"{target} needed, scale-up cooldown ends in {left_s} s"
    wanted = min(target, current + scaling.up_step)
    return wanted, f"{target} needed, at most {scaling.up_step} more at a time" if wanted < target else ""


def _step_down(
    scaling: Scaling, state: ScalingState, demand: Demand, current: int, target: int, now_ms: int
) -> tuple[int, str]:
    tolerated = math.ceil(demand.allowed * (1 + scaling.tolerance) / scaling.per_worker - EPSILON)
    if tolerated >= current:
        return current, f"{target} would be enough, but the difference is within the tolerance"
    last_ms = state.began_ms if state.changed_ms is None else state.changed_ms
    if left_s := _compute_remaining_s(last_ms, scaling.down_cooldown_s, now_ms):
        return current, f"{target} would be enough, scale-down cooldown ends in {left_s} s"
    if left_s := _compute_remaining_s(state.began_ms, scaling.settle_s, now_ms):
        return current, f"{target} would be enough, confirming for {left_s} s more"
    highest = max(peak for _, peak in state.peaks)
    wanted = max(min(highest, current), current - scaling.down_step)
    if wanted == current:
        return (
            current,
            f"{target} would be enough, but {highest} were needed within the last {_format_span(scaling.settle_s)}",
        )
    return wanted, ""


def _compute_remaining_s(since_ms: int | None, cooldown_s: float, now_ms: int) -> int:
    """Return the remaining seconds of a cooldown; 0 if it is over or never began."""
    return 0 if since_ms is None else max(0, math.ceil(cooldown_s - (now_ms - since_ms) / 1000))


def _make_decision(
    worker: WorkerType,
    observation: Observation,
    state: ScalingState,
    now_ms: int,
    current: int,
    wanted: int,
    demand: Demand | None,
    why: str,
) -> Decision:
    verb = ScalingVerb.UP if wanted > current else ScalingVerb.DOWN if wanted < current else ScalingVerb.HOLD
    outcome = f"kept {wanted}" if verb == ScalingVerb.HOLD else f"{current} → {wanted}"
    reason = "; ".join(part for part in (_describe_load(worker.scaling, observation, demand), why) if part)
    shown = sorted(observation.sources, key=lambda source: (source.is_known, -source.load))[:MAX_SOURCES_STORED]
    inputs: dict[str, Any] = {
        "sources": [asdict(source) for source in shown],
        "more_sources": len(observation.sources) - len(shown),
        "rooms": {
            source.env: observation.env_slots[source.env] for source in shown if source.env in observation.env_slots
        },
        "workers": observation.workers,
        "unknown": observation.unknown_reason or None,
        **({} if demand is None else asdict(demand)),
    }
    after = replace(state, wanted=wanted)
    if verb != ScalingVerb.HOLD:
        after = replace(after, changed_ms=now_ms, up_ms=now_ms if verb == ScalingVerb.UP else state.up_ms)
    return Decision(
        worker.name,
        now_ms,
        verb,
        current,
        wanted,
        known=not observation.unknown_reason,
        sentence=f"{verb}: {reason}, {outcome}",
        inputs=inputs,
        state=after,
    )


def _describe_load(scaling: Scaling, observation: Observation, demand: Demand | None) -> str:
    if demand is None or observation.unknown_reason:
        return ""
    waiting = sum(source.depth or 0 for source in observation.sources)
    running = sum(source.running or 0 for source in observation.sources)
    arriving = sum(source.arrivals_per_s or 0.0 for source in observation.sources)
    scheduled = sum(source.scheduled for source in observation.sources)
    due_soon = sum(source.due_soon or 0 for source in observation.sources)
    if not waiting and not running and not arriving and not scheduled and not due_soon:
        return "no load"
    ages = [source.age_s for source in observation.sources if source.age_s is not None]
    oldest = f" (oldest {_format_span(max(ages))})" if ages else ""
    is_limited = demand.allowed < demand.slots - EPSILON
    parts = [
        f"{waiting} waiting{oldest}, {running} running, {arriving:.3g}/s arriving",
        f"{scheduled} awaiting retry" if scheduled else "",
        f"{due_soon} due within {_format_span(observation.horizon_s)}" if due_soon else "",
        f"demand doubled for waits over {_format_span(scaling.age_s)}" if demand.too_old else "",
        f"limits and pauses allow {math.floor(demand.allowed)} to run" if is_limited else "",
    ]
    return ", ".join(filter(None, parts))


def _describe_unknown(unknown_reason: str, state: ScalingState, current: int, wanted: int) -> str:
    assert state.unknown_ms is not None, "set by _advance_state"
    since = datetime.fromtimestamp(state.unknown_ms / 1000, UTC)
    may = " and there may be work" if wanted > current else ""
    return f"{unknown_reason} unknown since {since:%H:%M}{may}"


def _format_span(seconds: float) -> str:
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    return f"{round(seconds)} s" if seconds < 120 else f"{round(seconds / 60)} min"
