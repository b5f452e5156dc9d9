"""State of a rule for one queue: ok → pending → firing → resolved. Pure.

- pending   the condition holds, but not yet for `for_s`, or the cooldown is running
- firing    an incident is open
- resolved  the incident ended; kept until the cooldown and the flapping window are over

Unknown values neither fire nor resolve, and restart the clean period.

Only time differences are used; if the clock goes back, waits become longer, never shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import NAMESPACE_OID, uuid5

from headrace.alerts.rules import Rule

Values = Mapping[str, float | None]
"""Measured values by queue. None, or an absent queue, means that there was nothing to measure, which is clean."""

FLAPS = 3
"""Firings within the flapping window from which a rule counts as flapping."""
REMEMBERED = 6
LONGEST = 8
"""Maximum factor by which flapping lengthens the clean period."""
SPAN = 6
"""The flapping window is this many times the longest of cooldown, window and MIN_FLAP_BASE_S."""
LEAST_SPAN_S = 600


class Phase(StrEnum):
    OK = "ok"
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True)
class State:
    phase: Phase = Phase.OK
    since_ms: int = 0  # start of the phase
    clean_ms: int | None = None  # FIRING: start of the period in which the condition is false
    fired_ms: tuple[int, ...] = ()  # times of the last firings, oldest first
    incident: str | None = None
    told: bool = False  # channels were notified of the incident
    value: float | None = None


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


FRESH = State()


def nobody(queue: str) -> bool:
    """Return False: the default for callers without silences."""
    return False


def evaluate(
    rule: Rule,
    values: Values | None,
    states: Mapping[str, State],
    now_ms: int,
    quiet: Callable[[str], bool] = nobody,
) -> tuple[dict[str, State], list[Transition]]:
    """Return the changed states and their transitions.

    `values` None means unknown. `is_silenced` says whether a queue's messages are suppressed.
    """
    changed: dict[str, State] = {}
    transitions: list[Transition] = []
    queues = states if values is None else _concerned(rule, values, states)
    for queue in queues:
        before = states.get(queue, FRESH)
        if values is None:
            after, new = _unknown(before), []
        else:
            after, new = _step(rule, queue, values.get(queue), before, now_ms, quiet(queue))
        if after != before:
            changed[queue] = after
        transitions += new
    return changed, transitions


def resolve(rule: Rule, queue: str, state: State, now_ms: int, reason: str) -> tuple[State, list[Transition]]:
    """Resolve regardless of the values: the rule was deleted or disabled, or an operator resolved the incident."""
    state = _rebased(state, now_ms)
    if state.phase != Phase.FIRING:
        return FRESH, []
    return _resolved(rule, queue, state, now_ms, reason)


def _concerned(rule: Rule, values: Values, states: Mapping[str, State]) -> list[str]:
    """Return the queues with a stored state and those that meet the condition. Others cost one comparison each."""
    mine = values if rule.queue is None else {rule.queue: values.get(rule.queue)}
    met = [queue for queue, value in mine.items() if queue not in states and rule.is_met(value)]
    return [*states, *met]


def _unknown(state: State) -> State:
    return replace(state, clean_ms=None) if state.clean_ms is not None else state


def _step(
    rule: Rule, queue: str, value: float | None, state: State, now_ms: int, quiet: bool
) -> tuple[State, list[Transition]]:
    state = _rebased(state, now_ms)
    met = rule.is_met(value) and rule.queue in (None, queue)
    if state.phase == Phase.FIRING:
        return _while_firing(rule, queue, replace(state, value=value), met, now_ms, quiet)
    if not met:
        return _while_clean(rule, queue, state, value, now_ms)
    transitions: list[Transition] = []
    if state.phase != Phase.PENDING:
        state = replace(state, phase=Phase.PENDING, since_ms=now_ms, value=value)
        transitions.append(_transition(rule, queue, Phase.PENDING, state, now_ms, told=False))
    if _may_fire(rule, state, now_ms):
        fired = (*state.fired_ms, now_ms)[-REMEMBERED:]
        # The id includes earlier firings, because a clock that goes back repeats times.
        incident = _id(rule.id, queue, "incident", str(fired))
        state = State(Phase.FIRING, now_ms, None, fired, incident, told=not quiet, value=value)
        transitions.append(_transition(rule, queue, Phase.FIRING, state, now_ms, told=not quiet))
    return state, transitions


def _may_fire(rule: Rule, state: State, now_ms: int) -> bool:
    cooled = not state.fired_ms or now_ms - state.fired_ms[-1] >= rule.cooldown_s * 1000
    return cooled and now_ms - state.since_ms >= rule.for_s * 1000


def _while_clean(
    rule: Rule, queue: str, state: State, value: float | None, now_ms: int
) -> tuple[State, list[Transition]]:
    if state.phase == Phase.PENDING:
        after = replace(state, phase=Phase.RESOLVED if state.fired_ms else Phase.OK, since_ms=now_ms, value=value)
        transition = _transition(rule, queue, Phase.OK, state, now_ms, told=False, value=value)
        return (after if after.fired_ms else FRESH), [transition]
    if state.fired_ms and now_ms - state.fired_ms[-1] >= max(_span_ms(rule), rule.cooldown_s * 1000):
        return FRESH, []
    return state, []


def _while_firing(
    rule: Rule, queue: str, state: State, met: bool, now_ms: int, quiet: bool
) -> tuple[State, list[Transition]]:
    if met:
        state = replace(state, clean_ms=None)
        if state.told or quiet:
            return state, []
        state = replace(state, told=True)  # the silence has ended
        return state, [_transition(rule, queue, Phase.FIRING, state, now_ms, told=True)]
    clean_ms = now_ms if state.clean_ms is None else state.clean_ms
    state = replace(state, clean_ms=clean_ms)
    if rule.auto_resolve and now_ms - clean_ms >= settle_ms(rule, state, now_ms):
        return _resolved(rule, queue, state, now_ms, None)
    return state, []


def settle_ms(rule: Rule, state: State, now_ms: int) -> int:
    """Return how long the condition must be false before the incident resolves, in ms.

    Doubles with each recent firing of a flapping rule (up to MAX_CLEAN_FACTOR), so that one incident stays open instead
    of many.
    """
    recent = sum(now_ms - fired < _span_ms(rule) for fired in state.fired_ms)
    if recent < FLAPS:
        return rule.settle_s * 1000
    return max(rule.settle_s, rule.window_s) * 1000 * min(2 ** (recent - FLAPS + 1), LONGEST)


def _span_ms(rule: Rule) -> int:
    return SPAN * max(rule.cooldown_s, rule.window_s, LEAST_SPAN_S) * 1000


def _resolved(rule: Rule, queue: str, state: State, now_ms: int, reason: str | None) -> tuple[State, list[Transition]]:
    transition = _transition(rule, queue, Phase.RESOLVED, state, now_ms, told=state.told, reason=reason)
    return State(Phase.RESOLVED, now_ms, None, state.fired_ms, value=state.value), [transition]


def _rebased(state: State, now_ms: int) -> State:
    """Shift stored times back if the clock is behind the newest of them, keeping their distances."""
    ahead = max(state.since_ms, state.clean_ms or 0, *state.fired_ms, 0) - now_ms
    if ahead <= 0 or state == FRESH:
        return state
    return replace(
        state,
        since_ms=state.since_ms - ahead,
        clean_ms=None if state.clean_ms is None else state.clean_ms - ahead,
        fired_ms=tuple(fired - ahead for fired in state.fired_ms),
    )


def _transition(
    rule: Rule,
    queue: str,
    kind: Phase,
    state: State,
    now_ms: int,
    *,
    told: bool,
    value: float | None = None,
    reason: str | None = None,
) -> Transition:
    shown = state.value if value is None else value
    transition_id = _id(rule.id, queue, kind, str(now_ms), state.incident or "")
    return Transition(transition_id, queue, kind, now_ms, shown, state.incident, state.since_ms, told, reason)


def _id(*parts: str) -> str:
    """Derive an id from these parts, so that a repeated decision gets the same id."""
    return str(uuid5(NAMESPACE_OID, "\x1f".join(parts)))
