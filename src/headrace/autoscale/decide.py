"""Decide how many workers to run. Pure.

Bounds, tolerance, steps and cooldowns turn the demand (demand.py) into a number of workers, and a sentence explains the
decision (sentences.py). While an input is unknown the number is not lowered, and it is at least one while there may be
work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from headrace.autoscale.demand import Demand, Observation, count_workers, estimate_demand
from headrace.autoscale.sentences import build_sentence, describe_unknown, format_span
from headrace.autoscale.worker_types import Scaling, WorkerType

MAX_SOURCES_STORED = 50
"""Sources stored with a decision: unknown ones first, then those with the highest load."""


class ScalingVerb(StrEnum):
    UP = "up"
    DOWN = "down"
    HOLD = "hold"


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
    needed = count_workers(scaling, demand.allowed)
    may_have_work = bool(not_known) or demand.known_load > 0
    floor = min(max(scaling.min, 1), scaling.max) if may_have_work else scaling.min
    target = min(max(needed, floor), scaling.max)
    if not_known:
        target = max(target, min(current, scaling.max))
    state = _advance_state(state, scaling, target, bool(not_known), now_ms)
    wanted, why = _step(scaling, state, demand, current, target, floor, now_ms)
    if not_known:
        assert state.unknown_ms is not None, "set by _advance_state"
        why = describe_unknown(not_known, state.unknown_ms, needed if needed > current else None, wanted > current)
    return _make_decision(worker, observation, state, now_ms, current, wanted, demand, why)


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
    tolerated = count_workers(scaling, demand.allowed * (1 + scaling.tolerance))
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
            f"{target} would be enough, but {highest} were needed within the last {format_span(scaling.settle_s)}",
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
        sentence=build_sentence(worker.scaling, observation, demand, current, wanted, why),
        inputs=inputs,
        state=after,
    )
