"""Back-test a rule: how often it would have fired in the last 24 hours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.alerts.replay import ReplayClock, ReplayedIncident, ReplayHistory, replay_rule
from headrace.alerts.rule_values import FINE_TIER, choose_tier, needs_gauges
from headrace.alerts.rules import AVERAGE, Rule, RuleMetric
from headrace.warehouse import alert_samples
from headrace.warehouse.alert_history import SlidingCut, read_sliding_pieces, read_watermarks
from headrace.warehouse.query_runner import QueryRunner

PERIOD_S = 86_400


@dataclass(frozen=True)
class BacktestResult:
    start_at: datetime
    end_at: datetime
    every_s: int
    evaluations: int
    unknown: int  # evaluations without known values, which changed nothing
    queues: int  # queues that were evaluated
    incidents: list[ReplayedIncident]  # in the order of firing


def backtest_rule(queries: QueryRunner, rule: Rule, now_ms: int, interval_s: float, max_lag_s: float) -> BacktestResult:
    """Replay the rule over the last 24 hours, as if it had been created at their start.

    It is evaluated every `interval_s`, rounded up to a multiple of 5 s. Raises BacktestTooLarge and the errors of
    history queries.
    """
    tier = choose_tier(rule.window_s)
    every_s = math.ceil(interval_s / FINE_TIER.seconds) * FINE_TIER.seconds
    step_s = every_s if every_s % tier.seconds == 0 else tier.seconds
    end_s = now_ms // 1000 // every_s * every_s
    start_s = end_s - PERIOD_S // every_s * every_s
    clock = ReplayClock(start_s, every_s, read_watermarks(queries, start_s, end_s, every_s), max_lag_s)
    ends_s = [each for each in clock.compute_window_ends(step_s) if each is not None] or [start_s]
    cut = SlidingCut(tier, rule.window_s, step_s, ends_s[0], ends_s[-1])
    needs_history = rule.metric != RuleMetric.NO_DATA and clock.watermarks_ms[-1] is not None
    history = _read_history(queries, rule, cut) if needs_history else ReplayHistory({}, {})
    result = replay_rule(rule, clock, cut, history)
    return BacktestResult(
        datetime.fromtimestamp(start_s, UTC),
        datetime.fromtimestamp(end_s, UTC),
        every_s,
        result.evaluations,
        result.unknown,
        len(history.pieces.keys() | history.carried.keys()),
        result.incidents,
    )


def _read_history(queries: QueryRunner, rule: Rule, cut: SlidingCut) -> ReplayHistory:
    env, is_slo = rule.environment, rule.metric == RuleMetric.SLO
    unknown: list[alert_samples.UnknownPeriod] = []
    if is_slo:
        since_ms = alert_samples.read_progress(queries, cut.last_end_s * 1000).reported_since_ms
        unknown = alert_samples.read_unknown_periods(queries, cut.start_s * 1000, cut.last_end_s * 1000, since_ms)
    pieces = read_sliding_pieces(
        queries, env, rule.queue, cut, histograms=rule.percentile != AVERAGE, slo=is_slo, unknown=unknown
    )
    carried: dict[str, alert_samples.CarriedGauges | None] = {}
    if needs_gauges(rule):
        left = alert_samples.read_carried_gauges(queries, [env], cut.start_s)
        carried = {ref.queue: gauges for ref, gauges in left.items() if rule.queue in (None, ref.queue)}
    return ReplayHistory(pieces, carried, unknown)
