"""Compute the value that a rule is compared with, from pieces of history. Pure.

Gauges keep their last value while a queue has no events, so a stuck and idle queue is measured by its last state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.alerts.rules import AVERAGE, PERCENTILES, TIER_5S_MAX_S, Rule, RuleMetric, compute_burn_rate
from headrace.alerts.state_machine import UNKNOWN_VALUE, Values
from headrace.model.histogram import compute_percentile, count_within, merge_histograms
from headrace.warehouse.alert_samples import CarriedGauges, UnknownPeriod, WindowPiece
from headrace.warehouse.tiers import TIERS, Tier

GAUGES = frozenset({RuleMetric.BACKLOG, RuleMetric.OLDEST_AGE})

FINE_TIER, COARSE_TIER = TIERS[0], TIERS[1]


def choose_tier(window_s: int) -> Tier:
    return FINE_TIER if window_s <= TIER_5S_MAX_S else COARSE_TIER


def needs_gauges(rule: Rule) -> bool:
    """Return True if the rule needs the gauges before its window.

    An SLO rule needs them for the names of idle queues: their values are unknown if part of the window is.
    """
    return rule.metric in GAUGES or rule.metric == RuleMetric.SLO


def is_lag_acceptable(lag_ms: int | None, max_lag_s: float) -> bool:
    """Return True if rules can be evaluated with history that is this far behind; None: it never began."""
    return lag_ms is not None and lag_ms <= max_lag_s * 1000


def compute_no_data_values(rule: Rule, watermark_ms: int | None, now_ms: int) -> Values:
    """Return the seconds since the watermark; without a watermark, since the rule was created."""
    newest_ms = rule.created_ms if watermark_ms is None else watermark_ms
    return {"": max(0.0, (now_ms - newest_ms) / 1000)}


@dataclass(frozen=True)
class TierReadPlan:
    """How to read one tier for a set of windows that end at the same time."""

    tier: Tier
    windows_s: tuple[int, ...]  # longest first
    gauges: bool  # some rule needs the last gauges before the windows
    histograms: bool  # some rule needs percentiles
    slo: bool  # some rule needs the waits of the time that is known completely

    def compute_end_s(self, horizon_ms: int) -> int:
        """Return the end of the last complete bucket."""
        return horizon_ms // 1000 // self.tier.seconds * self.tier.seconds


def plan_tier_reads(rules: Iterable[Rule]) -> tuple[TierReadPlan, ...]:
    """Return at most one read plan per tier.

    Rules that differ only in thresholds give equal plans, so their environments are read together.
    """
    by_tier: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.metric != RuleMetric.NO_DATA:
            by_tier.setdefault(choose_tier(rule.window_s).name, []).append(rule)
    return tuple(
        TierReadPlan(
            tier,
            tuple(sorted({rule.window_s for rule in chosen}, reverse=True)),
            any(needs_gauges(rule) for rule in chosen),
            any(rule.percentile != AVERAGE for rule in chosen),
            any(rule.metric == RuleMetric.SLO for rule in chosen),
        )
        for tier in (FINE_TIER, COARSE_TIER)
        if (chosen := by_tier.get(tier.name))
    )


@dataclass(frozen=True)
class EnvironmentMeasurements:
    plan: TierReadPlan
    end_s: int
    pieces: Mapping[str, Sequence[WindowPiece]]  # by queue
    carried: Mapping[str, CarriedGauges | None]
    unknown: Sequence[UnknownPeriod] = ()

    def compute_values(self, rule: Rule) -> dict[str, float | None]:
        return {queue: self._compute_value(queue, rule) for queue in self.carried.keys() | self.pieces.keys()}

    def _compute_value(self, queue: str, rule: Rule) -> float | None:
        first = self.plan.windows_s.index(rule.window_s) + 1
        every = self.pieces.get(queue, ())
        inside = [piece for piece in every if piece.number >= first]
        before = [piece for piece in every if piece.number < first]
        left = CarriedGauges(before[-1].depth, before[-1].oldest_ms) if before else self.carried.get(queue)
        return compute_window_value(rule, inside, left, self.end_s, self.unknown)


def compute_window_value(
    rule: Rule,
    inside: Sequence[WindowPiece],
    left: CarriedGauges | None,
    end_s: int,
    unknown: Sequence[UnknownPeriod] = (),
) -> float | None:
    """Return the value of one queue for the window that ends at `end_s`.

    `inside` are the pieces of the window, `left` the gauges before it. None: nothing was measured.
    """
    start_s = end_s - rule.window_s
    if rule.metric == RuleMetric.LATENCY:
        return _compute_latency(inside, rule.percentile)
    if rule.metric == RuleMetric.ERROR_RATE:
        begun = sum(piece.dequeues for piece in inside)
        return sum(piece.failures for piece in inside) / begun if begun else None
    if rule.metric == RuleMetric.SLO:
        return _compute_slo(rule, inside, any(each.overlaps(start_s, end_s) for each in unknown))
    if rule.metric == RuleMetric.BACKLOG:
        depths = [piece.max_depth for piece in inside] + ([left.depth] if left else [])
        return max(depths, default=None)
    return _compute_oldest_age(inside, left, start_s, end_s)


def _compute_slo(rule: Rule, inside: Sequence[WindowPiece], is_partly_unknown: bool) -> float | None:
    """Return the burn rate of the jobs that started in known time.

    Unknown time counts neither as good nor as bad; if no job started in the rest, the value is unknown too.
    """
    assert rule.within_ms is not None, "validated by make_rule"
    assert rule.objective is not None, "validated by make_rule"
    histogram = merge_histograms(piece.known_histogram for piece in inside)
    if not (started := sum(histogram.values())):
        return UNKNOWN_VALUE if is_partly_unknown else None
    return compute_burn_rate(1 - count_within(histogram, rule.within_ms) / started, rule.objective)


def _compute_latency(inside: Sequence[WindowPiece], percentile: str) -> float | None:
    if percentile == AVERAGE:
        waits = sum(piece.waits for piece in inside)
        return sum(piece.wait_ms for piece in inside) / waits if waits else None
    return compute_percentile(merge_histograms(piece.histogram for piece in inside), PERCENTILES[percentile])


def _compute_oldest_age(
    inside: Sequence[WindowPiece], left: CarriedGauges | None, start_s: int, end_s: int
) -> float | None:
    """Return the highest age in ms: measured at events, at the start of the window, or at its end. None if unknown."""
    if not inside and left is None:
        return None
    ages = [piece.max_age_ms for piece in inside]
    if left is not None and left.oldest_ms is not None:
        ages.append(start_s * 1000 - left.oldest_ms)
    at_end = inside[-1].oldest_ms if inside else left and left.oldest_ms
    if at_end is not None:
        ages.append(end_s * 1000 - at_end)
    return max(0, *ages, 0)
