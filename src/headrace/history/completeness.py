"""Is everything counted? Compares what was counted with how far the queues' own odometers moved. Pure.

An odometer is known at its readings, and at the beginning of its epoch, when it was 0. What it moved from the newest
reading before a window to the newest within is what happened in the window; what was counted less is missing. So
windows that follow each other add up, and what is missing belongs to the one in which it was noticed. Where an odometer
moved unseen across the end of a window, nobody can tell how much of that was within.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.event import Op
from headrace.warehouse.series import Span

Readings = Mapping[int, Mapping[Op, int]]
"""Epoch → how far each odometer had come when a window began; or when it was first heard of after its end."""


@dataclass(frozen=True)
class Completeness:
    counted: Mapping[Op, int]
    missing: Mapping[Op, int]  # verbs of which something is
    known: bool  # there is nothing else that could be missing

    @property
    def totals(self) -> dict[Op, int]:
        """What really happened, as far as is known."""
        return {op: count + self.missing.get(op, 0) for op, count in self.counted.items()}

    @property
    def pct(self) -> float | None:
        """100 only if all is counted. None: nobody can tell."""
        if not self.known:
            return None
        counted, missing = sum(self.counted.values()), sum(self.missing.values())
        # Rounded down: 99.9996 is not 100.
        return math.floor(1e5 * counted / (counted + missing)) / 1e3 if missing else 100.0


def added_counts(spans: Iterable[Span]) -> dict[Op, int]:
    counts = dict.fromkeys(Op, 0)
    for span in spans:
        for op, count in span.counts.items():
            counts[op] += count
    return counts


def judge(spans: Iterable[Span], before: Readings, kept_since_ms: int) -> Completeness:
    """`kept_since_ms`: an epoch that began later is kept whole, so what was not read of it before the window was 0."""
    spans = list(spans)
    missing = dict.fromkeys(Op, 0)
    known = bool(spans or before)
    for span in spans:
        for op, reading in span.last.items():
            base = before.get(span.epoch_ms, {}).get(op, 0 if span.epoch_ms >= kept_since_ms else None)
            if base is None:
                base = span.first.get(op, 0)
                known = known and base == 0
            missing[op] += max(0, reading - base - span.counts.get(op, 0))
    return Completeness(added_counts(spans), {op: count for op, count in missing.items() if count}, known)


def moved_unseen(spans: Iterable[Span], before: Readings, after: Readings) -> bool:
    """Whether an odometer moved, or may have, between its last reading up to the end of a window and its next."""
    known: dict[int, Mapping[Op, int]] = dict(before)
    for span in spans:
        known[span.epoch_ms] = {**known.get(span.epoch_ms, {}), **span.last}
    if known and max(known) not in after:
        return True  # it was not heard of since
    return any(
        reading > known.get(epoch_ms, {}).get(op, 0)
        for epoch_ms, readings in after.items()
        for op, reading in readings.items()
    )
