"""Replaying a rule gives what the live evaluation gives: the same values, the same state machine, the same unknowns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.alerts.replay import ReplayClock, ReplayHistory, ReplayResult, SlidingWindow, replay_rule
from headrace.alerts.rule_values import (
    COARSE_TIER,
    FINE_TIER,
    EnvironmentMeasurements,
    choose_tier,
    compute_no_data_values,
    is_lag_acceptable,
    plan_tier_reads,
)
from headrace.alerts.rules import Rule, make_rule
from headrace.alerts.state_machine import Phase, RuleState, evaluate
from headrace.model.names import EnvRef
from headrace.warehouse.alert_history import SlidingCut
from headrace.warehouse.alert_samples import CarriedGauges, UnknownPeriod, WindowPiece

ENV = EnvRef("acme", "shop", "prod")
START_S = 1_800_000_000
EVERY_S = 30
MAX_LAG_S = 120.0


def make_backlog_rule(**more: Any) -> Rule:
    return make_rule("r", ENV, {"name": "n", "metric": "BACKLOG", "threshold": 100, "window_s": 60, **more})


def make_piece(start_s: int, depth: int = 0, **more: Any) -> WindowPiece:
    fields: dict[str, Any] = dict.fromkeys(("max_age_ms", "dequeues", "failures", "wait_ms", "waits"), 0)
    fields |= {"number": start_s, "max_depth": depth, "depth": depth, "oldest_ms": None, "histogram": {}, **more}
    return WindowPiece(**fields)


def make_clock(watermarks_ms: Sequence[int | None]) -> ReplayClock:
    return ReplayClock(START_S, EVERY_S, watermarks_ms, MAX_LAG_S)


def make_cut(rule: Rule, clock: ReplayClock, step_s: int = EVERY_S) -> SlidingCut:
    ends_s = [each for each in clock.compute_window_ends(step_s) if each is not None] or [START_S]
    return SlidingCut(choose_tier(rule.window_s), rule.window_s, step_s, ends_s[0], ends_s[-1])


def replay(
    rule: Rule,
    pieces: list[WindowPiece],
    watermarks_ms: Sequence[int | None],
    carried: Mapping[str, CarriedGauges | None] | None = None,
) -> ReplayResult:
    clock = make_clock(watermarks_ms)
    return replay_rule(rule, clock, make_cut(rule, clock), ReplayHistory({"q": pieces}, carried or {}))


def make_current_watermarks(count: int) -> list[int | None]:
    return [(START_S + number * EVERY_S) * 1000 for number in range(count)]


def test_a_backlog_fires_and_resolves_when_the_window_is_clean() -> None:
    pieces = [make_piece(START_S + 30, 500), make_piece(START_S + 60, 0)]
    result = replay(make_backlog_rule(), pieces, make_current_watermarks(10))
    [incident] = result.incidents
    assert (incident.queue, incident.value, incident.fired_ms) == ("q", 500, (START_S + 60) * 1000)
    # The window of 60 s begins with the depth that was left until 150 s.
    assert incident.resolved_ms == (START_S + 150) * 1000
    assert (result.evaluations, result.unknown) == (10, 0)


def test_a_condition_that_held_before_fires_once_at_the_start() -> None:
    result = replay(make_backlog_rule(), [], make_current_watermarks(50), carried={"q": CarriedGauges(500, None)})
    [incident] = result.incidents
    assert (incident.fired_ms, incident.resolved_ms) == (START_S * 1000, None)


def test_evaluations_while_history_was_behind_change_nothing() -> None:
    watermarks = make_current_watermarks(20)
    stuck = [*watermarks[:4], *[watermarks[3]] * 12, *watermarks[16:]]  # six minutes without a new watermark
    pieces = [make_piece(START_S + 120, 500), make_piece(START_S + 150, 0)]
    assert len(replay(make_backlog_rule(), pieces, watermarks).incidents) == 1
    result = replay(make_backlog_rule(cooldown_s=0), pieces, stuck)
    assert result.unknown == 8  # later than 120 s after the watermark
    assert result.incidents == []  # as live: no window ended within the short backlog
    never = replay(make_backlog_rule(), pieces, [None] * 20)
    assert (never.unknown, never.incidents) == (20, [])


def test_no_data_is_replayed_by_the_watermarks() -> None:
    rule = make_rule("r", ENV, {"name": "n", "metric": "NO_DATA", "window_s": 60})
    watermarks = make_current_watermarks(30)
    result = replay(rule, [], [*watermarks[:5], *[watermarks[4]] * 5, *watermarks[10:]])
    [incident] = result.incidents
    assert (incident.queue, incident.value) == ("", 90)
    assert result.unknown == 0
    assert replay(rule, [], [None] * 4).incidents[0].value == 90  # since the start


def test_a_rule_about_one_queue_is_replayed_for_it_alone() -> None:
    deep = [make_piece(START_S, 500)]
    rule, clock = make_backlog_rule(queue="b"), make_clock(make_current_watermarks(4))
    result = replay_rule(rule, clock, make_cut(rule, clock), ReplayHistory({"a": deep, "b": deep}, {}))
    assert [each.queue for each in result.incidents] == ["b"]


def test_windows_of_any_length_are_cut_at_their_edges() -> None:
    short = SlidingCut(FINE_TIER, 45, 30, START_S, START_S + 600)
    assert (short.start_s % 30, short.offset_s, short.shared) == (15, 15, (0, 0))
    even = SlidingCut(FINE_TIER, 60, 30, START_S, START_S + 600)
    assert even.offset_s == 0
    long = SlidingCut(COARSE_TIER, 172_800, 60, START_S, START_S + 86_400)
    assert long.shared == (START_S + 86_400 - 172_800, START_S)


# --- The same as the live evaluation, for every course of things ---------------------------------------

BUCKET = st.fixed_dictionaries(
    {
        "depth": st.integers(0, 3),
        "max_age_ms": st.integers(0, 50_000),
        "oldest": st.none() | st.integers(0, 40),
        "dequeues": st.integers(0, 3),
        "failures": st.integers(0, 2),
        "waits": st.lists(st.sampled_from([0, 5, 20, 60]), max_size=3),
    }
)
BUCKETS = 48  # of 5 s
COURSE = st.dictionaries(st.integers(0, BUCKETS - 1), BUCKET, max_size=20)
RULES = st.sampled_from(
    [
        {"metric": "BACKLOG", "threshold": 1},
        {"metric": "BACKLOG", "threshold": 2, "operator": "LESS_THAN"},
        {"metric": "LATENCY", "threshold": 20},
        {"metric": "LATENCY", "threshold": 20, "percentile": "p90"},
        {"metric": "ERROR_RATE", "threshold": 0.4},
        {"metric": "OLDEST_AGE", "threshold": 45_000},
        {"metric": "SLO", "within_ms": 3, "objective": 0.5},
        {"metric": "NO_DATA"},
    ]
)
WINDOWS = st.sampled_from([5, 15, 30, 45, 60, 100])
LAGS = st.lists(st.sampled_from([0, 0, 0, 90, 200, None]), min_size=8, max_size=8)


def make_bucket_piece(start_s: int, bucket: dict[str, Any], *, is_known: bool) -> WindowPiece:
    histogram = dict(Counter(bucket["waits"]))
    oldest_ms = None if bucket["oldest"] is None else (start_s - bucket["oldest"]) * 1000
    return make_piece(
        start_s,
        bucket["depth"],
        max_age_ms=bucket["max_age_ms"],
        oldest_ms=oldest_ms,
        dequeues=bucket["dequeues"],
        failures=bucket["failures"],
        wait_ms=sum(bucket["waits"]),
        waits=len(bucket["waits"]),
        histogram=histogram,
        known_histogram=histogram if is_known else {},
    )


@given(COURSE, RULES, WINDOWS, LAGS, st.booleans(), st.sampled_from([0, 60]), st.none() | st.integers(0, 3))
def test_a_replay_decides_as_the_evaluator_does(
    course: dict[int, dict[str, Any]],
    fields: dict[str, Any],
    window_s: int,
    lags: list[int | None],
    has_gap: bool,
    for_s: int,
    carried: int | None,
) -> None:
    given_fields = {"name": "n", **fields, "window_s": window_s, "cooldown_s": 30, "for_s": for_s}
    rule = make_rule("r", ENV, given_fields, START_S * 1000)
    first_s = START_S - 100
    unknown = [UnknownPeriod((START_S + 20) * 1000, (START_S + 64) * 1000)] if has_gap else []
    pieces = [
        make_bucket_piece(at_s, bucket, is_known=not any(each.overlaps(at_s, at_s + 5) for each in unknown))
        for number, bucket in sorted(course.items())
        if (at_s := first_s + number * 5) < START_S + 7 * EVERY_S
    ]
    left = {"q": None if carried is None else CarriedGauges(carried, None)}
    watermarks = make_lagging_watermarks(lags)
    clock = make_clock(watermarks)
    cut = make_cut(rule, clock)
    inside = [piece for piece in pieces if piece.number >= cut.start_s]
    before = [piece for piece in pieces if piece.number < cut.start_s]
    started = {"q": CarriedGauges(before[-1].depth, before[-1].oldest_ms)} if before else left
    result = replay_rule(rule, clock, cut, ReplayHistory({"q": inside}, started, unknown))
    assert [(each.fired_ms, each.value, each.resolved_ms) for each in result.incidents] == evaluate_live(
        rule, pieces, left, watermarks, unknown
    )


def make_lagging_watermarks(lags: Sequence[int | None]) -> list[int | None]:
    """Return watermarks that are so many seconds behind, or where they were before if that is later."""
    watermarks: list[int | None] = []
    newest_ms: int | None = None
    for number, lag in enumerate(lags):
        if lag is not None:
            newest_ms = max(newest_ms or 0, (START_S + number * EVERY_S - lag) * 1000)
        watermarks.append(newest_ms)
    return watermarks


def evaluate_live(
    rule: Rule,
    pieces: list[WindowPiece],
    left: dict[str, CarriedGauges | None],
    watermarks: list[int | None],
    unknown: list[UnknownPeriod],
) -> list[tuple[int, float | None, int | None]]:
    """Evaluate step by step, with whole windows as the evaluator reads them."""
    states: dict[str, RuleState] = {}
    incidents: dict[str | None, tuple[int, float | None, int | None]] = {}
    for number, watermark_ms in enumerate(watermarks):
        now_s = START_S + number * EVERY_S
        lag_ms = None if watermark_ms is None else now_s * 1000 - watermark_ms
        if rule.metric == "NO_DATA":
            values = compute_no_data_values(rule, watermark_ms, now_s * 1000)
        elif is_lag_acceptable(lag_ms, MAX_LAG_S):
            [plan] = plan_tier_reads([rule])
            end_s = plan.compute_end_s(watermark_ms or 0)
            start_s = end_s - rule.window_s
            before = [piece for piece in pieces if piece.number < start_s]
            carried = {"q": CarriedGauges(before[-1].depth, before[-1].oldest_ms)} if before else left
            inside = [piece for piece in pieces if start_s <= piece.number < end_s]
            values = EnvironmentMeasurements(plan, end_s, {"q": inside}, carried, unknown).compute_values(rule)
        else:
            values = None
        changed, transitions = evaluate(rule, values, states, now_s * 1000)
        states |= changed
        for each in transitions:
            if each.kind == Phase.FIRING:
                incidents[each.incident] = (each.at_ms, each.value, None)
            elif each.kind == Phase.RESOLVED:
                incidents[each.incident] = (*incidents[each.incident][:2], each.at_ms)
    return list(incidents.values())


@given(st.lists(BUCKET, max_size=30), st.integers(1, 8))
def test_a_sliding_window_is_the_merge_of_its_pieces(buckets: list[dict[str, Any]], width: int) -> None:
    pieces = [make_bucket_piece(number, bucket, is_known=True) for number, bucket in enumerate(buckets)]
    window = SlidingWindow(pieces, None)
    for end in range(len(pieces) + width + 1):
        window.move(end - width, end)
        inside = pieces[max(0, end - width) : end]
        if not inside:
            assert window.merge() == []
            continue
        [merged] = window.merge()
        assert (merged.max_depth, merged.depth) == (max(each.max_depth for each in inside), inside[-1].depth)
        assert merged.max_age_ms == max(each.max_age_ms for each in inside)
        assert (merged.oldest_ms, merged.failures) == (inside[-1].oldest_ms, sum(each.failures for each in inside))
        assert dict(merged.histogram) == dict(sum((Counter(each.histogram) for each in inside), Counter[int]()))
