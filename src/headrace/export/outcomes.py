"""Track records whose send outcome is unknown: the destination may have applied them.

Such a record is sent again, and the destination must recognise its token. It recognises only the tokens of the newest
blocks that it received: its deduplication window. (A block is a part of a record that is inserted at once.) So only a
limited number of blocks of other records may be sent between the send with the unknown outcome and its repetition: a
quarter of the window, because an insert into several partitions uses several places in the window.

Blocks of other records are counted in two steps: as *reserved* when a record is prepared, so that no more is prepared
than may be sent, and as *started* when its send begins, because another outcome may have become unknown in between.
They are counted from the start of the send whose outcome is unknown. A send in progress has no outcome yet, so it is
treated as unknown too.

Records that an earlier process tried to send have an unknown outcome, and that process may have sent others after them.
How many is not known, so fewer blocks may follow such a record: even after a dozen restarts in a row, its token is
still in the window. This module uses no clock and does no I/O.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

SHARE_OF_WINDOW = 4  # one quarter of the deduplication window
SHARE_AFTER_RESTART = 4  # one quarter of that share, for records of an earlier process
EVERY_BLOCK = -1


@dataclass
class _UnknownOutcome:
    started_at: float  # blocks started before the send whose outcome is unknown
    blocks: set[int]  # which of its own blocks may have been applied


class UnknownOutcomes:
    def __init__(self, dedup_window_blocks: int | None) -> None:
        # A destination that never recognises a repetition gains nothing from waiting.
        self._allowed = math.inf if dedup_window_blocks is None else dedup_window_blocks // SHARE_OF_WINDOW
        self._lock = threading.Lock()
        self._unknown: dict[int, _UnknownOutcome] = {}
        self._tried: set[int] = set()  # records that this process has tried, so their outcome is tracked
        self._sending: dict[int, int] = {}  # value of `_started` when each send in progress began
        self._reserved = 0
        self._started = 0

    def record_attempt(self, record_id: int) -> None:
        with self._lock:
            self._tried.add(record_id)

    def was_tried(self, record_id: int) -> bool:
        """Return True if this process has tried the record. If not, and it was leased before, an earlier process may
        have sent it. Only a power loss can remove the last leases from the spool's journal."""
        with self._lock:
            return record_id in self._tried

    def mark_possibly_sent(self, record_id: int) -> None:
        """Track a record that may have been sent: by an earlier process, or by this one without recording the
        outcome."""
        with self._lock:
            used_up = 0 if math.isinf(self._allowed) else self._allowed - self._allowed // SHARE_AFTER_RESTART
            self._unknown.setdefault(record_id, _UnknownOutcome(self._started - used_up, {EVERY_BLOCK}))

    def reserve(self, record_id: int, blocks: int) -> bool:
        """Reserve room for a prepared record. Return False if sending it could push a record with unknown outcome out
        of the deduplication window. A record whose own outcome is unknown always gets room, because the others wait for
        it."""
        with self._lock:
            if record_id not in self._unknown and not self._has_room(blocks):
                return False
            self._reserved += blocks
            return True

    def cancel_reservation(self, blocks: int) -> None:
        """Return the room of a prepared record that is not sent."""
        with self._lock:
            self._reserved -= blocks

    def start_send(self, record_id: int, blocks: int) -> int | None:
        """Register the start of a send. Return the mark to pass to `mark_unknown`, or None if the send must not begin:
        another outcome became unknown since the reservation, and this send would pass that record too far."""
        with self._lock:
            mark = self._started
            if record_id not in self._unknown and mark + blocks - self._find_oldest_mark() > self._allowed:
                return None
            self._started += blocks
            self._sending[record_id] = mark
            return mark

    def end_send(self, record_id: int) -> None:
        """Register the end of a send, whatever its result."""
        with self._lock:
            self._sending.pop(record_id, None)

    def mark_unknown(self, record_id: int, mark: float, block: int) -> None:
        """Record that a block of the record may have been applied. The earliest mark is kept, because any of the
        attempts may have been the one that was applied."""
        with self._lock:
            found = self._unknown.setdefault(record_id, _UnknownOutcome(mark, set()))
            found.started_at = min(found.started_at, mark)
            found.blocks.add(block)

    def resolve(self, record_id: int) -> None:
        """Stop tracking a record that was applied or given up; it will not be sent again."""
        with self._lock:
            self._unknown.pop(record_id, None)
            self._tried.discard(record_id)

    def unknown_ids(self) -> list[int]:
        with self._lock:
            return list(self._unknown)

    def can_split(self, record_id: int, block: int) -> bool:
        """Return True if the block was certainly never applied, so it may be split."""
        with self._lock:
            found = self._unknown.get(record_id)
            return found is None or not found.blocks & {block, EVERY_BLOCK}

    def has_room(self) -> bool:
        """Return True if there is room for at least one block."""
        with self._lock:
            return self._has_room(1)

    def count(self) -> int:
        with self._lock:
            return len(self._unknown)

    def count_passed_blocks(self) -> int:
        """Return the number of blocks sent or reserved past the oldest record with an unknown outcome."""
        with self._lock:
            return int(self._count_passed())

    def _has_room(self, blocks: int) -> bool:
        # A record larger than the allowance is sent alone.
        return not (self._unknown or self._sending) or self._count_passed() + blocks <= self._allowed

    def _count_passed(self) -> float:
        return 0 if math.isinf(self._allowed) else max(0, self._reserved - self._find_oldest_mark())

    def _find_oldest_mark(self) -> float:
        return min([*self._sending.values(), *(each.started_at for each in self._unknown.values())], default=math.inf)
