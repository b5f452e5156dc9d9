"""Records that wait until every earlier record is finished (*held*), because they must not be delivered before them.

The leaser of a record decides that it is such a *follower*; nothing about it is stored. After a restart, a follower is
leased in its position, so all earlier records were leased before it and are known here. A follower does not wait for
earlier followers, so that many of them can be delivered at once, unless it was declared that the earlier one holds
later ones back.

The oldest unfinished record that holds followers back is searched for only when the last one found is finished. No
clock is read, and no lock is taken: the caller holds the spool's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from headrace.spool.requeued import OrderKey


class HeldRecords:
    def __init__(self, list_leased: Callable[[], Iterable[OrderKey]]) -> None:
        self._list_leased = list_leased  # positions of unfinished records that were leased before and are not held
        self._holds_later: dict[int, bool] = {}  # of every unfinished follower, held or not
        self._held: set[int] = set()
        self._order: list[OrderKey] = []  # heap of held records; may contain others
        self._held_blocking: list[OrderKey] = []  # heap of held records that hold later ones; may contain others
        self._blocker: OrderKey | None = None  # oldest record that holds followers; None: to be searched

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._held

    @property
    def is_tracking(self) -> bool:
        """Return True if `finish` must be called for finished records."""
        return bool(self._holds_later) or self._blocker is not None

    def declare(self, sequence: int, holds_later: bool) -> bool:
        """Declare that a leased record is a follower. `holds_later`: followers behind it wait for it. Return True if
        held records may have become ready."""
        self._holds_later[sequence] = holds_later
        if holds_later or self._blocker is None or self._blocker[1] != sequence:
            return False
        self._blocker = None  # it was found before it was declared
        return bool(self._held)

    def must_wait(self, place: OrderKey) -> bool:
        """Return True if an unfinished record before this follower holds it back."""
        blocker = self._find_blocker()
        return blocker is not None and blocker < place

    def add(self, place: OrderKey) -> None:
        self._held.add(place[1])
        heappush(self._order, place)
        if self._holds_later[place[1]]:
            heappush(self._held_blocking, place)

    def remove(self, sequence: int) -> None:
        """Remove a record that was leased. Its heap entries are dropped lazily."""
        self._held.discard(sequence)

    def finish(self, sequence: int) -> bool:
        """Forget a finished record. Return True if held records may have become ready."""
        self._held.discard(sequence)
        self._holds_later.pop(sequence, None)
        if self._blocker is None or self._blocker[1] != sequence:
            return False
        self._blocker = None
        return bool(self._held)

    def finish_run(self, numbers: Iterable[int]) -> bool:
        """Forget finished records. Return True if held records may have become ready."""
        freed = [self.finish(number) for number in numbers]
        return any(freed)

    def find_oldest(self) -> OrderKey | None:
        """Return the oldest held record, ready or not, or None."""
        return self._peek(self._order)

    def next_ready(self) -> OrderKey | None:
        """Return the oldest held record if no earlier record holds it back any more, else None."""
        oldest = self._peek(self._order)
        return None if oldest is None or self.must_wait(oldest) else oldest

    def _find_blocker(self) -> OrderKey | None:
        if self._blocker is None:
            found = [place for place in self._list_leased() if self._holds_later.get(place[1], True)]
            if held := self._peek(self._held_blocking):
                found.append(held)
            self._blocker = min(found, default=None)
        return self._blocker

    def _peek(self, heap: list[OrderKey]) -> OrderKey | None:
        while heap and heap[0][1] not in self._held:
            heappop(heap)
        return heap[0] if heap else None
