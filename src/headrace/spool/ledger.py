"""Counters of a spool, kept so that `pushed = acked + dropped + corrupt + dead + size` always holds. Not
thread-safe."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.spool.journal import ACKED, NoteKind


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

    def count_recovered(self, count: int, charge: int) -> None:
        """Count records found on disk at open."""
        self.count_accepted(count, charge)
        self.recovered += count

    def count_corrupt_at_open(self, count: int) -> None:
        """Count records of an earlier process that were found corrupt at open."""
        self.pushed += count
        self.corrupt += count

    def count_accepted(self, count: int, charge: int) -> None:
        self.size += count
        self.bytes += charge
        self.pushed += count

    def count_dropped_new(self, count: int, reason: str) -> None:
        """Count new records that were dropped instead of accepted."""
        self.pushed += count
        self.dropped[reason] += count

    def count_end(self, kind: int, charge: int, reason: str = "") -> None:
        self.size -= 1
        self.bytes -= charge
        if kind == ACKED:
            self.acked += 1
        elif kind == NoteKind.DROPPED:
            self.dropped[reason] += 1
        elif kind == NoteKind.DEAD:
            self.dead += 1
        elif kind == NoteKind.CORRUPT:
            self.corrupt += 1

    def count_acked(self, count: int, charge: int) -> None:
        self.size -= count
        self.bytes -= charge
        self.acked += count

    def count_replaced(self, charge: int, parts: int, parts_charge: int) -> None:
        """Count a record replaced by `parts` others: only the difference counts as pushed."""
        self.size += parts - 1
        self.bytes += parts_charge - charge
        self.pushed += parts - 1
        self.replaced += 1

    def read_counts(self) -> dict[str, Any]:
        """Return all counters, named as the fields of `SpoolStats`."""
        return {**vars(self), "dropped": dict(self.dropped)}
