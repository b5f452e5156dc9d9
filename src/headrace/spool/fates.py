"""Records that a destination may have applied already, although nobody was told.

A destination knows a repetition by its token, but only among the newest blocks it took, its window. So
while the fate of a record is unknown, only so much may be sent past it that its repetition is still recognised: a
quarter of the window, because an insert into several partitions fills several places.

Counts are of blocks, in two steps: *taken* when a record is prepared, so that not more is prepared than may be sent,
and *started* when its send begins, because a fate may have become unclear in between. A record of unclear fate counts
from the start of the send that became unclear. While a send is under way its fate is not known either: it counts too.

What an earlier process had tried is unclear too, and that process may have sent past it already. How far is not known,
so such a record may be passed by less: a dozen restarts in a row then still stay within the window. No clock, no I/O.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

SHARE_OF_WINDOW = 4  # one part in so many
SHARE_IF_INHERITED = 4  # and of that again
EVERY_BLOCK = -1


@dataclass
class _Unclear:
    mark: float  # blocks started before the send that became unclear
    blocks: set[int]  # which of its own may have been applied


class Inheritance:
    """Which records an earlier process may have sent: those that were leased before, and not by this one. The spool's
    journal knows; only a power loss can make it forget the leases of its last moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[int] = set()  # tried by this process, which knows how it went

    def includes(self, record_id: int) -> bool:
        """Asked for a record that was tried before."""
        with self._lock:
            return record_id not in self._known

    def remember(self, record_id: int) -> None:
        with self._lock:
            self._known.add(record_id)

    def forget(self, record_id: int) -> None:
        with self._lock:
            self._known.discard(record_id)


class Fates:
    def __init__(self, window_blocks: int | None) -> None:
        # Where no repetition is ever recognised, there is nothing to be gained by waiting.
        self._allowed = math.inf if window_blocks is None else window_blocks // SHARE_OF_WINDOW
        self._lock = threading.Lock()
        self._unclear: dict[int, _Unclear] = {}
        self._sending: dict[int, int] = {}  # marks of sends under way
        self._taken = 0
        self._started = 0

    def inherit(self, record_id: int) -> None:
        """A record that an earlier process may have sent."""
        with self._lock:
            used_up = 0 if math.isinf(self._allowed) else self._allowed - self._allowed // SHARE_IF_INHERITED
            self._unclear.setdefault(record_id, _Unclear(self._started - used_up, {EVERY_BLOCK}))

    def take(self, record_id: int, blocks: int) -> bool:
        """Promise a prepared record its place; False if it would pass a record of unclear fate too far.

        A record of unclear fate is always let through: its settling is what everybody waits for.
        """
        with self._lock:
            if record_id not in self._unclear and not self._room(blocks):
                return False
            self._taken += blocks
            return True

    def put_back(self, blocks: int) -> None:
        """What was taken is not sent after all."""
        with self._lock:
            self._taken -= blocks

    def start(self, record_id: int, blocks: int) -> int | None:
        """A send begins; returns the mark to give to `unclear` if it ends so. None: it must not begin, because it would
        pass a record too far whose fate has become unclear since this one was taken."""
        with self._lock:
            mark = self._started
            if record_id not in self._unclear and mark + blocks - self._oldest_mark() > self._allowed:
                return None
            self._started += blocks
            self._sending[record_id] = mark
            return mark

    def end(self, record_id: int) -> None:
        """The send is over, however it went."""
        with self._lock:
            self._sending.pop(record_id, None)

    def unclear(self, record_id: int, mark: float, block: int) -> None:
        """This block of it may have been applied. The earliest mark counts: which try was applied is unknown."""
        with self._lock:
            found = self._unclear.setdefault(record_id, _Unclear(mark, set()))
            found.mark = min(found.mark, mark)
            found.blocks.add(block)

    def settled(self, record_id: int) -> None:
        """Applied for certain, or given up: it will not be sent again."""
        with self._lock:
            self._unclear.pop(record_id, None)

    def unclear_ids(self) -> list[int]:
        with self._lock:
            return list(self._unclear)

    def may_split(self, record_id: int, block: int) -> bool:
        """Only a block that was certainly never applied may be cut into others."""
        with self._lock:
            found = self._unclear.get(record_id)
            return found is None or not found.blocks & {block, EVERY_BLOCK}

    def open(self) -> bool:
        """Whether there is room for any record at all."""
        with self._lock:
            return self._room(1)

    def count(self) -> int:
        with self._lock:
            return len(self._unclear)

    def passed(self) -> int:
        """Blocks sent, or about to be, past the oldest record whose fate is unknown."""
        with self._lock:
            return int(self._passed())

    def _room(self, blocks: int) -> bool:
        # A record that is larger than the allowance goes alone.
        return not (self._unclear or self._sending) or self._passed() + blocks <= self._allowed

    def _passed(self) -> float:
        return 0 if math.isinf(self._allowed) else max(0, self._taken - self._oldest_mark())

    def _oldest_mark(self) -> float:
        return min([*self._sending.values(), *(each.mark for each in self._unclear.values())], default=math.inf)
