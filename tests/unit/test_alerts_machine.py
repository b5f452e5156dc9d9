"""The state machine of alerts: single steps by name, and promises that hold for every course of things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.alerts.rules import Operator, Rule, RuleMetric
from headrace.alerts.state_machine import (
    FLAPPING_AFTER,
    INITIAL_STATE,
    UNKNOWN_VALUE,
    Phase,
    RuleState,
    Transition,
    Values,
    compute_required_clean_ms,
    evaluate,
    resolve_state,
)

RULE = Rule("r", "o", "p", "e", "deep", RuleMetric.BACKLOG, threshold=100, window_s=300, cooldown_s=900)
SLOW = replace(RULE, metric=RuleMetric.LATENCY, threshold=250)
MINUTE = 60_000
T0 = 1_800_000_000_000


class Watched:
    """A rule and one queue over time."""

    def __init__(self, rule: Rule = RULE, queue: str = "q") -> None:
        self.rule, self.queue = rule, queue
        self.states: dict[str, RuleState] = {}
        self.made: list[Transition] = []

    def at(self, minutes: float, value: float | None, *, known: bool = True, quiet: bool = False) -> list[str]:
        values = {self.queue: value} if known else None
        now_ms = T0 + int(minutes * MINUTE)
        changed, made = evaluate(self.rule, values, self.states, now_ms, lambda queue: quiet)
        self.states |= changed
        self.made += made
        return [each.kind.value for each in made]

    @property
    def state(self) -> RuleState:
        return self.states.get(self.queue, INITIAL_STATE)


def test_it_fires_at_once_and_resolves_when_the_whole_window_is_clean() -> None:
    """BACKLOG is the maximum of the window, so a value below the threshold covers all of it."""
    deep = Watched()
    assert deep.at(0, 100) == []
    assert deep.at(1, 101) == ["pending", "firing"]
    assert deep.at(2, 500) == []
    assert deep.at(3, 100) == ["resolved"]
    assert deep.made[1].incident == deep.made[2].incident
    assert [each.told for each in deep.made] == [False, True, True]


def test_an_average_must_stay_clean_for_the_whole_window() -> None:
    slow = Watched(SLOW)
    assert slow.at(0, 300) == ["pending", "firing"]
    assert slow.at(1, 200) == []
    assert slow.at(4, 200) == []
    assert slow.at(5, 300) == []  # and again from the beginning
    assert slow.at(6, None) == []  # nothing measured is clean
    assert slow.at(10.9, 10) == []
    assert slow.at(11, 10) == ["resolved"]


def test_it_does_not_fire_again_within_the_cooldown_and_does_after_it() -> None:
    deep = Watched()
    deep.at(0, 500)
    assert deep.at(1, 0) == ["resolved"]
    assert deep.at(2, 500) == ["pending"]
    assert deep.at(14.9, 500) == []
    assert deep.at(15, 500) == ["firing"]


def test_an_incident_within_the_cooldown_is_not_notified() -> None:
    deep = Watched()
    deep.at(0, 500)
    deep.at(1, 0)
    assert deep.at(2, 500) == ["pending"]
    assert deep.at(3, 0) == ["ok"]
    assert deep.at(16, 0) == []
    assert [each.kind for each in deep.made if each.told] == [Phase.FIRING, Phase.RESOLVED]


def test_for_says_how_long_the_condition_must_hold() -> None:
    deep = Watched(replace(RULE, for_s=120))
    assert deep.at(0, 500) == ["pending"]
    assert deep.at(1, 0) == ["ok"]
    assert deep.state == INITIAL_STATE
    assert deep.at(2, 500) == ["pending"]
    assert deep.at(3.9, 500) == []
    assert deep.at(4, 500) == ["firing"]
    assert deep.made[-1].at_ms == T0 + 4 * MINUTE


def test_what_is_not_known_neither_fires_nor_resolves() -> None:
    slow = Watched(SLOW)
    assert slow.at(0, None, known=False) == []
    slow.at(1, 300)
    slow.at(2, 10)
    for minute in range(3, 60):
        assert slow.at(minute, None, known=False) == []
        assert slow.state.phase == Phase.FIRING
    assert slow.at(60, 10) == []  # a window that had a hole is not a clean one
    assert slow.at(64, 10) == []
    assert slow.at(65, 10) == ["resolved"]


def test_an_unknown_value_of_one_queue_changes_only_nothing_about_it() -> None:
    slow = Watched(SLOW)
    slow.at(0, 300)
    slow.at(1, 10)
    fired = slow.state
    assert slow.at(7, UNKNOWN_VALUE) == []
    assert slow.state == replace(fired, clean_ms=None)
    other, made = evaluate(SLOW, {"a": UNKNOWN_VALUE, "b": 300}, {}, T0)
    assert (sorted(other), [each.queue for each in made]) == (["b"], ["b", "b"])


def test_a_firing_rule_keeps_its_current_value_and_when_it_was_measured() -> None:
    deep = Watched()
    deep.at(1, 150)
    assert (deep.state.value, deep.state.measured_ms) == (150, T0 + MINUTE)
    deep.at(2, 150)
    assert (deep.state.value, deep.state.measured_ms) == (150, T0 + 2 * MINUTE)
    deep.at(3, None, known=False)
    assert (deep.state.value, deep.state.measured_ms) == (150, T0 + 2 * MINUTE)
    deep.at(4, 120)
    assert (deep.state.value, deep.state.measured_ms) == (120, T0 + 4 * MINUTE)
    deep.at(5, 0)
    assert (deep.state.phase, deep.state.measured_ms) == (Phase.RESOLVED, None)


def test_less_than_fires_below_and_the_way_back_takes_a_window() -> None:
    idle = Watched(replace(RULE, operator=Operator.LESS_THAN, threshold=5))
    assert idle.at(0, 5) == []
    assert idle.at(1, None) == []
    assert idle.at(2, 4) == ["pending", "firing"]
    assert idle.at(3, 5) == []
    assert idle.at(8, 5) == ["resolved"]


def test_all_queues_have_states_of_their_own() -> None:
    values: Values = {"a": 500, "b": 50, "c": 101}
    states, made = evaluate(RULE, values, {}, T0)
    assert sorted(states) == ["a", "c"]
    assert len({each.incident for each in made if each.kind == Phase.FIRING}) == 2
    after, made = evaluate(RULE, {"a": 0, "b": 500, "c": 500}, states, T0 + MINUTE)
    assert {queue: state.phase for queue, state in after.items()} == {
        "a": Phase.RESOLVED,
        "b": Phase.FIRING,
        "c": Phase.FIRING,
    }
    assert sorted((each.queue, each.kind.value) for each in made if each.told) == [("a", "resolved"), ("b", "firing")]


def test_a_deleted_queue_is_clean() -> None:
    states, _ = evaluate(RULE, {"a": 500}, {}, T0)
    after, made = evaluate(RULE, {}, states, T0 + MINUTE)
    assert [each.kind for each in made] == [Phase.RESOLVED]
    assert after["a"].phase == Phase.RESOLVED


def test_a_rule_about_one_queue_leaves_the_others_alone() -> None:
    one = replace(RULE, queue="a")
    states, made = evaluate(one, {"a": 1, "b": 500}, {}, T0)
    assert (states, made) == ({}, [])
    states, _ = evaluate(RULE, {"b": 500}, {}, T0)  # before it was narrowed
    _, made = evaluate(one, {"b": 500}, states, T0 + MINUTE)
    assert [(each.queue, each.kind) for each in made] == [("b", Phase.RESOLVED)]


def test_a_silence_defers_the_notification_of_a_lasting_incident() -> None:
    deep = Watched()
    deep.at(0, 500, quiet=True)
    assert [each.told for each in deep.made] == [False, False]
    assert deep.at(1, 500, quiet=True) == []
    assert deep.at(2, 500) == ["firing"]
    assert deep.made[-1].told
    assert deep.made[-1].incident == deep.made[1].incident
    assert deep.made[-1].since_ms == T0


def test_the_end_of_an_unnotified_incident_is_not_notified() -> None:
    deep = Watched()
    deep.at(0, 500, quiet=True)
    assert deep.at(1, 0, quiet=False) == ["resolved"]
    assert not any(each.told for each in deep.made)


def test_the_end_of_a_notified_incident_is_notified_during_a_silence() -> None:
    deep = Watched()
    deep.at(0, 500)
    assert deep.at(1, 0, quiet=True) == ["resolved"]
    assert deep.made[-1].told


def test_without_auto_resolve_a_person_ends_it() -> None:
    deep = Watched(replace(RULE, auto_resolve=False))
    deep.at(0, 500)
    for minute in range(1, 100):
        assert deep.at(minute, 0) == []
    after, [made] = resolve_state(deep.rule, "q", deep.state, T0 + 100 * MINUTE, "resolved by ann")
    assert (after.phase, made.kind, made.reason) == (Phase.RESOLVED, Phase.RESOLVED, "resolved by ann")


def test_a_rule_that_flaps_keeps_its_incident_open_for_longer() -> None:
    restless = replace(RULE, cooldown_s=0)
    deep = Watched(restless)
    for round_ in range(FLAPPING_AFTER - 1):
        assert "firing" in deep.at(2 * round_, 500)
        assert deep.at(2 * round_ + 1, 0) == ["resolved"]
    deep.at(10, 500)
    assert compute_required_clean_ms(restless, deep.state, T0 + 10 * MINUTE) == 2 * 300_000
    assert deep.at(11, 0) == []
    assert deep.at(20.9, 0) == []
    assert deep.at(21, 0) == ["resolved"]


def test_finished_states_are_removed() -> None:
    deep = Watched()
    deep.at(0, 500)
    deep.at(1, 0)
    assert deep.state != INITIAL_STATE
    deep.at(24 * 60, 0)
    assert deep.state == INITIAL_STATE


def test_a_clock_set_back_delays_nothing() -> None:
    deep = Watched()
    deep.at(1000, 500)
    assert deep.at(0, 0) == ["resolved"]  # 1000 minutes back
    assert deep.at(1, 500) == ["pending"]
    assert deep.at(14, 500) == []
    assert deep.at(15, 500) == ["firing"]


def test_two_incidents_of_the_same_millisecond_are_two() -> None:
    deep = Watched(replace(RULE, cooldown_s=0))
    deep.at(0, 500)
    deep.at(0, 0)
    deep.at(0, 500)
    assert len({each.incident for each in deep.made if each.kind == Phase.FIRING}) == 2


# --- Whatever happens ------------------------------------------------------------------------------

values = st.sampled_from([0.0, 100.0, 101.0, 900.0, None])
steps = st.tuples(
    st.integers(0, 400),  # seconds that really passed
    st.integers(0, 2000),  # seconds that the clock went back
    st.booleans(),  # known
    st.booleans(),  # silenced
    values,
)
courses = st.lists(steps, min_size=1, max_size=60)


def make_restless_rule(metric: RuleMetric, sign: Operator, cooldown_s: int, for_s: int) -> Rule:
    return replace(RULE, metric=metric, operator=sign, cooldown_s=cooldown_s, for_s=for_s, window_s=120)


rules = st.builds(
    make_restless_rule,
    st.sampled_from([RuleMetric.BACKLOG, RuleMetric.LATENCY]),
    st.sampled_from(list(Operator)),
    st.sampled_from([0, 60, 900]),
    st.sampled_from([0, 100]),
)
Step = tuple[int, int, bool, bool, float | None]


class Course:
    """Plays a course and keeps what really happened, by a clock that never goes back."""

    def __init__(self, rule: Rule, course: Sequence[Step], jumps: bool) -> None:
        self.events: list[tuple[int, Transition]] = []  # with the number of the step
        self.steps: list[tuple[int, bool, bool]] = []  # when in seconds, known, met
        states: dict[str, RuleState] = {}
        real_s, offset_s = 0, 0
        for passed, back, known, quiet, value in course:
            real_s += passed
            offset_s -= back if jumps else 0
            now_ms = T0 + (real_s + offset_s) * 1000
            given_values = {"q": value} if known else None
            changed, made = evaluate(rule, given_values, states, now_ms, lambda queue, quiet=quiet: quiet)
            if not known:
                assert not made
                assert all(state.phase == states[queue].phase for queue, state in changed.items())
            states |= changed
            self.events += [(len(self.steps), each) for each in made]
            self.steps.append((real_s, known, rule.is_met(value)))

    def begins(self) -> list[int]:
        """The steps at which incidents began, in order."""
        first: dict[str | None, int] = {}
        for step, made in self.events:
            if made.kind == Phase.FIRING:
                first.setdefault(made.incident, step)
        return list(first.values())

    def just_before(self, step: int, seconds: int) -> list[tuple[bool, bool]]:
        """Return (known, met) of the earlier steps of the last `seconds`."""
        at = self.steps[step][0]
        return [(known, met) for when, known, met in self.steps[:step] if at - when < seconds]


@given(rules, courses, st.booleans())
def test_incidents_begin_and_end_in_turn(rule: Rule, course: list[Step], jumps: bool) -> None:
    open_incident: str | None = None
    told: set[str | None] = set()
    ids: list[str] = []
    for _, made in Course(rule, course, jumps).events:
        if made.kind == Phase.FIRING and made.incident != open_incident:
            assert open_incident is None
            open_incident = made.incident
        elif made.kind == Phase.FIRING:
            assert made.incident not in told, "told twice"
        elif made.kind == Phase.RESOLVED:
            assert made.incident == open_incident
            assert made.told == (made.incident in told)
            open_incident = None
        if made.told:
            told.add(made.incident)
            ids.append(made.id)
    assert len(set(ids)) == len(ids)


@given(rules, courses, st.booleans())
def test_no_two_incidents_begin_within_the_cooldown(rule: Rule, course: list[Step], jumps: bool) -> None:
    played = Course(rule, course, jumps)
    times = [played.steps[step][0] for step in played.begins()]
    assert all(later - earlier >= rule.cooldown_s for earlier, later in pairwise(times))


@given(rules, courses, st.booleans())
def test_nothing_resolves_before_it_was_clean_for_long_enough(rule: Rule, course: list[Step], jumps: bool) -> None:
    played = Course(rule, course, jumps)
    for step, made in played.events:
        if made.kind == Phase.RESOLVED:
            assert played.steps[step][1:] == (True, False)
            assert all(known and not met for known, met in played.just_before(step, rule.clean_window_s))


@given(rules, courses, st.booleans())
def test_nothing_fires_before_it_was_met_for_long_enough(rule: Rule, course: list[Step], jumps: bool) -> None:
    played = Course(rule, course, jumps)
    for step in played.begins():
        assert played.steps[step][1:] == (True, True)
        assert all(met for known, met in played.just_before(step, rule.for_s) if known)


@pytest.mark.parametrize("metric", list(RuleMetric))
def test_maxima_are_clean_at_once_and_the_rest_takes_a_window(metric: RuleMetric) -> None:
    expected = 0 if metric in (RuleMetric.BACKLOG, RuleMetric.OLDEST_AGE) else RULE.window_s
    assert replace(RULE, metric=metric).clean_window_s == expected
    assert replace(RULE, metric=metric, operator=Operator.LESS_THAN).clean_window_s == RULE.window_s
