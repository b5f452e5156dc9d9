"""State of a rule for one queue: ok → pending → firing → resolved. Pure.

- pending   the condition holds, but not yet for `for_s`, or the cooldown is running
- firing    an incident is open
- resolved  the incident ended; kept until the cooldown and the flapping window are over

Unknown values neither fire nor resolve, and restart the clean period.

Only time differences are used; if the clock goes back, waits become longer, never shorter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import NAMESPACE_OID, uuid5

from headrace.alerts.rules import Rule

Values = Mapping[str, float | None]
"""Measured values by queue. None, or an absent queue, means that there was nothing to measure, which is clean;
UNKNOWN_VALUE means that the value of this queue is unknown, which changes nothing."""

UNKNOWN_VALUE = math.nan

FLAPPING_AFTER = 3
"""Firings within the flapping window from which a rule counts as flapping."""
MAX_FIRINGS_KEPT = 6
MAX_CLEAN_FACTOR = 8
"""Maximum factor by which flapping lengthens the clean period."""
FLAP_WINDOW_FACTOR = 6
"""The flapping window is this many times the longest of cooldown, window and MIN_FLAP_BASE_S."""
MIN_FLAP_BASE_S = 600


class Phase(StrEnum):
    OK = "ok"
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True)
class RuleState:
    phase: Phase = Phase.OK
    since_ms: int = 0  # start of the phase
    clean_ms: int | None = None  # FIRING: start of the period in which the condition is false
    fired_ms: tuple[int, ...] = ()  # times of the last firings, oldest first
    incident: str | None = None
    told: bool = False  # channels were notified of the incident
    value: float | None = None
    measured_ms: int | None = None  # FIRING: time of the last evaluation with a known value, which is `value`


@dataclass(frozen=True)
class Transition:
    id: str
    queue: str
    kind: Phase
    at_ms: int
    value: float | None
    incident: str | None
    since_ms: int  # start of the incident, or of the pending phase
    told: bool  # True if channels are notified
    reason: str | None = None


INITIAL_STATE = RuleState()


def evaluate(
    rule: Rule,
    values: Values | None,
    states: Mapping[str, RuleState],
    now_ms: int,
    is_silenced: Callable[[str], bool] = lambda queue: False,
) -> tuple[dict[str, RuleState], list[Transition]]:
    """Return the changed states and their transitions.

    `values` None means that all of them are unknown. `is_silenced` says whether a queue's messages are suppressed.
    """
    changed: dict[str, RuleState] = {}
    transitions: list[Transition] = []
    queues = states if values is None else _select_queues_to_evaluate(rule, values, states)
    for queue in queues:
        before = states.get(queue, INITIAL_STATE)
        value = UNKNOWN_VALUE if values is None else values.get(queue)
        if value is not None and math.isnan(value):
            after, new = replace(before, clean_ms=None), []
        else:
            after, new = _compute_next_state(rule, queue, value, before, now_ms, is_silenced(queue))
        if after != before:
            changed[queue] = after
        transitions += new
    return changed, transitions


def resolve_state(
    rule: Rule, queue: str, state: RuleState, now_ms: int, reason: str
) -> tuple[RuleState, list[Transition]]:
    """Resolve regardless of the values: the rule was deleted or disabled, or an operator resolved the incident."""
    state = _shift_to_clock(state, now_ms)
    if state.phase != Phase.FIRING:
        return INITIAL_STATE, []
    return _resolve(rule, queue, state, now_ms, reason)


def _select_queues_to_evaluate(rule: Rule, values: Values, states: Mapping[str, RuleState]) -> list[str]:
    """Return the queues with a stored state and those that meet the condition. Others cost one comparison each."""
    mine = values if rule.queue is None else {rule.queue: values.get(rule.queue)}
    met = [queue for queue, value in mine.items() if queue not in states and rule.is_met(value)]
    return [*states, *met]


def _compute_next_state(
    rule: Rule, queue: str, value: float | None, state: RuleState, now_ms: int, is_silenced: bool
) -> tuple[RuleState, list[Transition]]:
    state = _shift_to_clock(state, now_ms)
    met = rule.is_met(value) and rule.queue in (None, queue)
    if state.phase == Phase.FIRING:
        state = replace(state, value=value, measured_ms=now_ms)
        return _step_while_firing(rule, queue, state, met, now_ms, is_silenced)
    if not met:
        return _step_while_clean(rule, queue, state, value, now_ms)
    transitions: list[Transition] = []
    if state.phase != Phase.PENDING:
        state = replace(state, phase=Phase.PENDING, since_ms=now_ms, value=value)
        transitions.append(_make_transition(rule, queue, Phase.PENDING, state, now_ms, told=False))
    if _can_fire(rule, state, now_ms):
        fired = (*state.fired_ms, now_ms)[-MAX_FIRINGS_KEPT:]
        # The id includes earlier firings, because a clock that goes back repeats times.
        incident = derive_id(rule.id, queue, "incident", str(fired))
        state = RuleState(Phase.FIRING, now_ms, None, fired, incident, not is_silenced, value, measured_ms=now_ms)
        transitions.append(_make_transition(rule, queue, Phase.FIRING, state, now_ms, told=not is_silenced))
    return state, transitions


def _can_fire(rule: Rule, state: RuleState, now_ms: int) -> bool:
    cooled = not state.fired_ms or now_ms - state.fired_ms[-1] >= rule.cooldown_s * 1000
    return cooled and now_ms - state.since_ms >= rule.for_s * 1000


def _step_while_clean(
    rule: Rule, queue: str, state: RuleState, value: float | None, now_ms: int
) -> tuple[RuleState, list[Transition]]:
    if state.phase == Phase.PENDING:
        after = replace(state, phase=Phase.RESOLVED, since_ms=now_ms, value=value) if state.fired_ms else INITIAL_STATE
        return after, [_make_transition(rule, queue, Phase.OK, state, now_ms, told=False, value=value)]
    if state.fired_ms and now_ms - state.fired_ms[-1] >= max(_compute_flap_window_ms(rule), rule.cooldown_s * 1000):
        return INITIAL_STATE, []
    return state, []


def _step_while_firing(
    rule: Rule, queue: str, state: RuleState, met: bool, now_ms: int, is_silenced: bool
) -> tuple[RuleState, list[Transition]]:
    if met:
        state = replace(state, clean_ms=None)
        if state.told or is_silenced:
            return state, []
        state = replace(state, told=True)  # the silence has ended
        return state, [_make_transition(rule, queue, Phase.FIRING, state, now_ms, told=True)]
    clean_ms = now_ms if state.clean_ms is None else state.clean_ms
    state = replace(state, clean_ms=clean_ms)
    if rule.auto_resolve and now_ms - clean_ms >= compute_required_clean_ms(rule, state, now_ms):
        return _resolve(rule, queue, state, now_ms, None)
    return state, []


def compute_required_clean_ms(rule: Rule, state: RuleState, now_ms: int) -> int:
    """Return how long the condition must be false before the incident resolves, in ms.

    Doubles with each recent firing of a flapping rule (up to MAX_CLEAN_FACTOR), so that one incident stays open instead
    of many.
    """
    recent = sum(now_ms - fired < _compute_flap_window_ms(rule) for fired in state.fired_ms)
    if recent < FLAPPING_AFTER:
        return rule.clean_window_s * 1000
    return max(rule.clean_window_s, rule.window_s) * 1000 * min(2 ** (recent - FLAPPING_AFTER + 1), MAX_CLEAN_FACTOR)


def _compute_flap_window_ms(rule: Rule) -> int:
    return FLAP_WINDOW_FACTOR * max(rule.cooldown_s, rule.window_s, MIN_FLAP_BASE_S) * 1000


def _resolve(
    rule: Rule, queue: str, state: RuleState, now_ms: int, reason: str | None
) -> tuple[RuleState, list[Transition]]:
    transition = _make_transition(rule, queue, Phase.RESOLVED, state, now_ms, told=state.told, reason=reason)
    return RuleState(Phase.RESOLVED, now_ms, None, state.fired_ms, value=state.value), [transition]


def _shift_to_clock(state: RuleState, now_ms: int) -> RuleState:
    """Shift stored times back if the clock is behind the newest of them, keeping their distances."""
    ahead = max(state.since_ms, state.clean_ms or 0, *state.fired_ms, 0) - now_ms
    if ahead <= 0 or state == INITIAL_STATE:
        return state
    return replace(
        state,
        since_ms=state.since_ms - ahead,
        clean_ms=None if state.clean_ms is None else state.clean_ms - ahead,
        fired_ms=tuple(fired - ahead for fired in state.fired_ms),
    )


def _make_transition(
    rule: Rule,
    queue: str,
    kind: Phase,
    state: RuleState,
    now_ms: int,
    *,
    told: bool,
    value: float | None = None,
    reason: str | None = None,
) -> Transition:
    shown = state.value if value is None else value
    transition_id = derive_id(rule.id, queue, kind, str(now_ms), state.incident or "")
    return Transition(transition_id, queue, kind, now_ms, shown, state.incident, state.since_ms, told, reason)


def derive_id(*parts: str) -> str:
    """Derive an id from these parts, so that a repeated decision gets the same id."""
    return str(uuid5(NAMESPACE_OID, "\x1f".join(parts)))
