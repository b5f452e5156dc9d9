"""Compute the value that a rule is compared with, from pieces of history. Pure.

Gauges keep their last value while a queue has no events, so a stuck and idle queue is measured by its last state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.alerts.rules import AVERAGE, PERCENTILES, TIER_5S_MAX_S, Metric, Rule
from headrace.model.histogram import added, percentile
from headrace.warehouse.alert_samples import Carried, Piece
from headrace.warehouse.tiers import TIERS, Tier

GAUGES = frozenset({Metric.BACKLOG, Metric.OLDEST_AGE})

FINE, COARSE = TIERS[0], TIERS[1]


def tier_of(window_s: int) -> Tier:
    return FINE if window_s <= TIER_5S_MAX_S else COARSE


@dataclass(frozen=True)
class Cut:
    """How to read one tier for a set of windows that end at the same time."""

    tier: Tier
    windows_s: tuple[int, ...]  # longest first
    gauges: bool  # some rule needs the last gauges before the windows
    histograms: bool  # some rule needs percentiles

    def end_s(self, horizon_ms: int) -> int:
        """Return the end of the last complete bucket."""
        return horizon_ms // 1000 // self.tier.seconds * self.tier.seconds

    def starts_s(self, end_s: int) -> list[int]:
        return [end_s - window_s for window_s in self.windows_s]


def cuts(rules: Iterable[Rule]) -> tuple[Cut, ...]:
    """Return at most one read plan per tier.

    Rules that differ only in thresholds give equal plans, so their environments are read together.
    """
    by_tier: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.metric != Metric.NO_DATA:
            by_tier.setdefault(tier_of(rule.window_s).name, []).append(rule)
    return tuple(
        Cut(
            tier,
            tuple(sorted({rule.window_s for rule in chosen}, reverse=True)),
            any(rule.metric in GAUGES for rule in chosen),
            any(rule.percentile != AVERAGE for rule in chosen),
        )
        for tier in (FINE, COARSE)
        if (chosen := by_tier.get(tier.name))
    )


@dataclass
class Measured:
    """Values of one environment for one read plan; each is computed once per metric and window."""

    cut: Cut
    end_s: int
    pieces: Mapping[str, Sequence[Piece]]  # by queue
    carried: Mapping[str, Carried | None]
    _known: dict[tuple[str, str, int], dict[str, float | None]] = field(
        default_factory=dict[tuple[str, str, int], dict[str, float | None]]
    )

    def values(self, rule: Rule) -> dict[str, float | None]:
        wanted = (rule.metric, rule.percentile, rule.window_s)
        if wanted not in self._known:
            queues = self.carried.keys() | self.pieces.keys()
            self._known[wanted] = {queue: self._value(queue, *wanted) for queue in queues}
        return self._known[wanted]

    def _value(self, queue: str, metric: str, wanted: str, window_s: int) -> float | None:
        first = self.cut.windows_s.index(window_s) + 1
        every = self.pieces.get(queue, ())
        inside = [piece for piece in every if piece.number >= first]
        if metric == Metric.LATENCY:
            return _latency(inside, wanted)
        if metric == Metric.ERROR_RATE:
            begun = sum(piece.dequeues for piece in inside)
            return sum(piece.failures for piece in inside) / begun if begun else None
        before = [piece for piece in every if piece.number < first]
        left = Carried(before[-1].depth, before[-1].oldest_ms) if before else self.carried.get(queue)
        if metric == Metric.BACKLOG:
            depths = [piece.max_depth for piece in inside] + ([left.depth] if left else [])
            return max(depths, default=None)
        return _oldest_age(inside, left, self.end_s - window_s, self.end_s)


def _latency(inside: Sequence[Piece], wanted: str) -> float | None:
    if wanted == AVERAGE:
        waits = sum(piece.waits for piece in inside)
        return sum(piece.wait_ms for piece in inside) / waits if waits else None
    return percentile(added(piece.histogram for piece in inside), PERCENTILES[wanted])


def _oldest_age(inside: Sequence[Piece], left: Carried | None, start_s: int, end_s: int) -> float | None:
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
