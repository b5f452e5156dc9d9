"""Records that wait outside their segment's order: nacked records, and parts that replace a record.

Such a record keeps its position in the order: once its delay has passed, it is leased before all younger records. Until
then, it does not delay them. The time is an argument (`now`); no clock is read. Not thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

OrderKey = tuple[int, int]
"""Position of a record in the order: its place, then its sequence number among records of the same place."""


class RequeuedRecords:
    def __init__(self) -> None:
        self._due: dict[int, float] = {}  # when each record is due, by sequence number; 0 if ready
        self._ready: list[OrderKey] = []
        self._delayed: list[tuple[float, int, int]] = []
        self._all: list[OrderKey] = []  # for `find_oldest`; may contain removed records

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[int]:
        return iter(self._due)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._due

    def add(self, place: OrderKey, due: float | None = None) -> None:
        sequence = place[1]
        if due is None:
            self._due[sequence] = 0.0
            heappush(self._ready, place)
        else:
            self._due[sequence] = due
            heappush(self._delayed, (due, *place))
        if len(self._all) > 64 + 2 * len(self._due):
            self._all = [each for each in set(self._all) if each[1] in self._due]
            heapify(self._all)
        heappush(self._all, place)

    def next_ready(self, now: float) -> OrderKey | None:
        """Return the oldest record whose delay has passed, or None."""
        while self._delayed and self._delayed[0][0] <= now:
            due, place, sequence = heappop(self._delayed)
            if self._due.get(sequence) == due:
                self._due[sequence] = 0.0
                heappush(self._ready, (place, sequence))
        while self._ready and self._due.get(self._ready[0][1]) != 0.0:
            heappop(self._ready)
        return self._ready[0] if self._ready else None

    def find_oldest(self) -> OrderKey | None:
        """Return the oldest record, delayed or not, or None."""
        while self._all and self._all[0][1] not in self._due:
            heappop(self._all)
        return self._all[0] if self._all else None

    def remove(self, sequence: int) -> None:
        """Remove a record that was leased or finished. Its heap entries are dropped lazily."""
        self._due.pop(sequence, None)

    def find_next_due(self) -> float | None:
        """Return when the next delayed record is due, or None."""
        while self._delayed and self._due.get(self._delayed[0][2]) != self._delayed[0][0]:
            heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def end_delays(self) -> None:
        self.next_ready(math.inf)

    def count_delayed(self, now: float) -> int:
        return sum(due > now for due in self._due.values())
