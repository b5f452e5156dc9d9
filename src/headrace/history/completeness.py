"""Completeness of a window: compare counted operations with the movement of the queues' odometers. Pure.

An odometer is known at each reading and is 0 at the start of its epoch. Its movement from the newest reading before a
window to the newest reading inside it is what happened in the window; the uncounted part is missing. Losses belong to
the window in which they are detected, so consecutive windows add up. If an odometer moved between the last reading in a
window and the next one after it, the share inside the window is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.event import Op
from headrace.warehouse.series import EpochTotals

OdometerReadings = Mapping[int, Mapping[Op, int]]
"""Odometer readings by epoch (ms): the newest before a window starts, or the first after it ends."""


@dataclass(frozen=True)
class WindowCompleteness:
    counted: Mapping[Op, int]
    missing: Mapping[Op, int]  # only operations with at least one missing
    known: bool  # False if more than `missing` may be missing

    @property
    def totals(self) -> dict[Op, int]:
        """Counts per operation, including the missing ones."""
        return {op: count + self.missing.get(op, 0) for op, count in self.counted.items()}

    @property
    def pct(self) -> float | None:
        """Counted operations in percent; 100 only if nothing is missing, None if unknown."""
        if not self.known:
            return None
        counted, missing = sum(self.counted.values()), sum(self.missing.values())
        # Rounded down: 99.9996 is not 100.
        return math.floor(1e5 * counted / (counted + missing)) / 1e3 if missing else 100.0


def sum_counts(spans: Iterable[EpochTotals]) -> dict[Op, int]:
    counted = [span.counts for span in spans]
    return {op: sum(counts.get(op, 0) for counts in counted) for op in Op}


def compute_completeness(
    spans: Iterable[EpochTotals], before: OdometerReadings, kept_since_ms: int
) -> WindowCompleteness:
    """Compare the counts of a window with its odometers.

    An epoch that began at or after `kept_since_ms` is fully retained, so an odometer without a reading before the
    window started at 0. For an older epoch without such a reading the movement before its first event in the window is
    unknown, unless the odometer was still 0.
    """
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
    return WindowCompleteness(sum_counts(spans), {op: count for op, count in missing.items() if count}, known)


def has_unseen_movement(spans: Iterable[EpochTotals], before: OdometerReadings, after: OdometerReadings) -> bool:
    """Return True if an odometer moved, or may have, between its last reading in a window and its next one."""
    known: dict[int, Mapping[Op, int]] = dict(before)
    for span in spans:
        known[span.epoch_ms] = {**known.get(span.epoch_ms, {}), **span.last}
    if known and max(known) not in after:
        return True  # no reading since
    return any(
        reading > known.get(epoch_ms, {}).get(op, 0)
        for epoch_ms, readings in after.items()
        for op, reading in readings.items()
    )
