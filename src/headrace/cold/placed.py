"""Rows of one queue that are jobs in Valkey already and are deleted in PostgreSQL once that copy is safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.queue.scripts import ColdRow, PlacedRow

Position = tuple[int, float, int]
"""Where a row stands in the order of refill: priority, due ms, number."""

RESCAN_ROWS = 2000
RESCAN_S = 0.2


@dataclass
class PlacedRows:
    """What a mover placed, in its memory; Valkey keeps the same numbers in `moving`, for the next mover."""

    rows: dict[int, PlacedRow] = field(default_factory=dict[int, PlacedRow])
    position: Position | None = None  # claims go on behind it
    version: int = -1  # of the queue in PostgreSQL when the rows before `position` were last known to be all placed
    scanned_at: float = 0.0
    _batches: deque[tuple[float, list[PlacedRow]]] = field(default_factory=deque[tuple[float, list[PlacedRow]]])

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: Iterable[PlacedRow], placed_at: float) -> None:
        new = [row for row in rows if row.seq not in self.rows]
        if new:
            self.rows.update((row.seq, row) for row in new)
            self._batches.append((placed_at, new))

    def take_safe(self, before: float, most: int) -> list[PlacedRow]:
        """Return rows that were placed before that moment, about `most` of them, oldest first; `forget` or `add_again`
        must follow."""
        taken: list[PlacedRow] = []
        while self._batches and self._batches[0][0] < before and len(taken) < most:
            taken += [row for row in self._batches.popleft()[1] if row.seq in self.rows]
        return taken

    def add_again(self, rows: Sequence[PlacedRow]) -> None:
        """Put back rows that `take_safe` returned and that could not be deleted."""
        self._batches.appendleft((0.0, [*rows]))

    def forget(self, rows: Iterable[PlacedRow]) -> None:
        for row in rows:
            self.rows.pop(row.seq, None)

    def keep_only(self, seqs: set[int]) -> None:
        """Forget rows that are not among these: Valkey lost their jobs, so they are claimed again."""
        lost = self.rows.keys() - seqs
        if not lost:
            return
        for seq in lost:
            del self.rows[seq]
        # A lost row that is placed again must not be taken as safe because of when it was placed first.
        kept = [(placed_at, [row for row in rows if row.seq not in lost]) for placed_at, rows in self._batches]
        self._batches = deque(batch for batch in kept if batch[1])
        self.restart()

    def restart(self) -> None:
        """Claim from the head again, past the rows that are placed."""
        self.position, self.version = None, -1

    def can_go_on(self, version: int, now: float) -> bool:
        """Return whether no row before `position` can be missing: nothing has changed in PostgreSQL since it was
        reached. A search past many placed rows is made some times a second only."""
        if self.position is None:
            return False
        return version == self.version or (len(self.rows) > RESCAN_ROWS and now < self.scanned_at + RESCAN_S)

    def has_scanned(self, version: int, now: float) -> None:
        self.version, self.scanned_at = version, now

    def advance(self, claimed: Sequence[ColdRow], handled: set[int]) -> None:
        """Move `position` behind the claimed rows, up to the first that found no room."""
        for row in claimed:
            if row.seq not in handled:
                return
            self.position = (row.priority, row.due_ms, row.seq)
