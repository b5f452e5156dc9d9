"""Rows of one queue that are placed in Valkey, and are deleted in PostgreSQL once that copy is safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.queue.scripts import ColdRow, PlacedRow

RowPosition = tuple[int, float, int]
"""Position of a row in the refill order: priority, due ms, number."""

RESCAN_ROWS = 2000
RESCAN_S = 0.2


@dataclass
class PlacedRows:
    """Placed rows in the mover's memory. Valkey has the same numbers in `moving`, for the next mover."""

    rows: dict[int, PlacedRow] = field(default_factory=dict[int, PlacedRow])
    position: RowPosition | None = None  # claims continue after it
    version: int = -1  # of the queue in PostgreSQL when all rows before `position` were last known to be placed
    scanned_at: float = 0.0
    _batches: deque[tuple[float, list[PlacedRow]]] = field(default_factory=deque[tuple[float, list[PlacedRow]]])

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: Iterable[PlacedRow], placed_at: float) -> None:
        new = [row for row in rows if row.seq not in self.rows]
        if new:
            self.rows.update((row.seq, row) for row in new)
            self._batches.append((placed_at, new))

    def take_safe(self, before: float, limit: int) -> list[PlacedRow]:
        """Return about `limit` rows that were placed before `before` (monotonic clock), oldest first. The caller must
        then call `remove` or `put_back`."""
        safe: list[PlacedRow] = []
        while self._batches and self._batches[0][0] < before and len(safe) < limit:
            safe += [row for row in self._batches.popleft()[1] if row.seq in self.rows]
        return safe

    def put_back(self, rows: Sequence[PlacedRow]) -> None:
        """Put back rows from `take_safe` that could not be deleted."""
        self._batches.appendleft((0.0, [*rows]))

    def remove(self, rows: Iterable[PlacedRow]) -> None:
        for row in rows:
            self.rows.pop(row.seq, None)

    def keep_only(self, seqs: set[int]) -> None:
        """Remove all other rows: Valkey lost their jobs, so they must be claimed again."""
        lost = self.rows.keys() - seqs
        if not lost:
            return
        for seq in lost:
            del self.rows[seq]
        # A lost row that is placed again must not count as safe because of the time of its first placement.
        kept = [(placed_at, [row for row in rows if row.seq not in lost]) for placed_at, rows in self._batches]
        self._batches = deque(batch for batch in kept if batch[1])
        self.restart()

    def restart(self) -> None:
        """Let the next claim start from the first row again, skipping placed rows."""
        self.position, self.version = None, -1

    def can_continue(self, version: int, now: float) -> bool:
        """Return whether the next claim may start at `position`: no row before it can be unplaced, because PostgreSQL
        has not changed since. With many placed rows, changes are ignored for RESCAN_S, because a scan is expensive."""
        return version == self.version or (len(self.rows) > RESCAN_ROWS and now < self.scanned_at + RESCAN_S)

    def record_scan(self, version: int, now: float) -> None:
        self.version, self.scanned_at = version, now

    def advance(self, claimed: Sequence[ColdRow], handled: set[int]) -> None:
        """Move `position` past the claimed rows, up to the first that did not fit."""
        for row in claimed:
            if row.seq not in handled:
                return
            self.position = (row.priority, row.due_ms, row.seq)
