"""Completeness of a time window: compare the operations that history counted with the queue's own totals. No I/O.

- An *odometer* is the total of one operation of a queue, counted by the queue's scripts since its epoch began.
- An *epoch* is a period in which the odometers only grow. It is named by its start in ms, when all of them were 0; a
  queue gets a new epoch if its data in Valkey was lost.
- A *reading* is the value of an odometer in an event. Readings exist only where there are events.
- A *span* holds what history has of one epoch in the window (`EpochTotals`): the operations counted, and the readings
  before the first and after the last event of each operation.

The difference between the newest reading before the window and the newest reading in it is what happened. What exceeds
the counted operations is missing. A loss therefore belongs to the window in which the next reading shows it, and
consecutive windows add up. If an odometer moved between the last reading in the window and the first one after it, it
is unknown how much of that happened in the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.event import Op
from headrace.warehouse.series import EpochTotals

OdometerReadings = Mapping[int, Mapping[Op, int]]
"""Epoch → operation → reading: the newest before a window starts, or the first after it ends."""


@dataclass(frozen=True)
class WindowCompleteness:
    """Operations in a window that history contains, and those that it lacks."""

    counted: Mapping[Op, int]  # all operations, also those with 0
    missing: Mapping[Op, int]  # only operations with at least one missing
    known: bool  # False if it cannot be determined whether more than `missing` is missing

    @property
    def totals(self) -> dict[Op, int]:
        """Counts per operation, including the missing ones."""
        return {op: count + self.missing.get(op, 0) for op, count in self.counted.items()}

    @property
    def pct(self) -> float | None:
        """Share of the operations that were counted, in percent: 100 only if nothing is missing, None if unknown."""
        if not self.known:
            return None
        counted, missing = sum(self.counted.values()), sum(self.missing.values())
        # Rounded down: 99.9996 is not 100.
        return math.floor(1e5 * counted / (counted + missing)) / 1e3 if missing else 100.0


def sum_counts(spans: Iterable[EpochTotals]) -> dict[Op, int]:
    """Return the counts of all epochs together, for every operation."""
    counted = [span.counts for span in spans]
    return {op: sum(counts.get(op, 0) for counts in counted) for op in Op}


def compute_completeness(
    spans: Iterable[EpochTotals], before: OdometerReadings, kept_since_ms: int
) -> WindowCompleteness:
    """Compare the counts of a window with the movement of the odometers. `before` has the newest readings before it.

    `kept_since_ms` is the time from which history is retained. It decides what a missing reading before the window
    means. An epoch that began later is fully retained: the odometer was still 0. Of an older epoch, the reading may
    have been deleted: the odometer's value before its first event in the window is used instead, and unless that is 0,
    the result is not `known`, because losses between the start of the window and that event do not show.
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
    """Return True if an odometer moved, or may have moved, between its last reading up to the end of a window and its
    first reading after it (`after`)."""
    known: dict[int, Mapping[Op, int]] = dict(before)
    for span in spans:
        known[span.epoch_ms] = {**known.get(span.epoch_ms, {}), **span.last}
    if known and max(known) not in after:
        return True  # the newest epoch has no later reading
    return any(
        reading > known.get(epoch_ms, {}).get(op, 0)
        for epoch_ms, readings in after.items()
        for op, reading in readings.items()
    )
