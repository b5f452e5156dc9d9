"""The counts, kept so that `pushed = acked + dropped + corrupt + dead + size` at every moment. Not thread-safe."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.spool.journal import ACKED, Kind


class Ledger:
    def __init__(self) -> None:
        self.size = 0
        self.bytes = 0
        self.pushed = 0
        self.recovered = 0
        self.acked = 0
        self.dead = 0
        self.corrupt = 0
        self.dropped: Counter[str] = Counter()
        self.refused = 0
        self.retries = 0
        self.replaced = 0
        self.flushes = 0
        self.meta_syncs = 0
        self.disk_full = 0
        self.write_errors = 0
        self.quarantined = 0
        self.torn = 0
        self.damaged_notes = 0
        self.last_error = ""

    def found(self, count: int, charge: int) -> None:
        """Was there at open."""
        self.size += count
        self.bytes += charge
        self.pushed += count
        self.recovered += count

    def lost_before(self, count: int) -> None:
        """Was put by an earlier process, and found damaged at open."""
        self.pushed += count
        self.corrupt += count

    def accept(self, count: int, charge: int) -> None:
        self.size += count
        self.bytes += charge
        self.pushed += count

    def turn_away(self, count: int, reason: str) -> None:
        """Dropped at the door."""
        self.pushed += count
        self.dropped[reason] += count

    def end(self, kind: int, charge: int, reason: str = "") -> None:
        self.size -= 1
        self.bytes -= charge
        if kind == ACKED:
            self.acked += 1
        elif kind == Kind.DROPPED:
            self.dropped[reason] += 1
        elif kind == Kind.DEAD:
            self.dead += 1
        elif kind == Kind.CORRUPT:
            self.corrupt += 1

    def ack(self, count: int, charge: int) -> None:
        self.size -= count
        self.bytes -= charge
        self.acked += count

    def replace(self, charge: int, parts: int, parts_charge: int) -> None:
        """One record leaves, several take its place: nothing was pushed but the difference."""
        self.size += parts - 1
        self.bytes += parts_charge - charge
        self.pushed += parts - 1
        self.replaced += 1

    def counts(self) -> dict[str, Any]:
        """By the names of `SpoolStats`."""
        return {**vars(self), "dropped": dict(self.dropped)}
