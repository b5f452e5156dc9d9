"""How much work a group of a stream has: what it was not given yet, and what it was given and has not acknowledged.

A stream's length says nothing about that: entries that are done stay in it until they are trimmed. Nor does the
server's `lag` alone: it leaves out what is running, is missing after deletions and moves, and wrong after a trim that
passed the group. Here a number is right, or it is None and says why; it is never a guess, and never 0 for "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.streams.ids import time_of
from headrace.streams.scripts import script
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import Call, run
from headrace.valkey.stream_groups import of_group

COUNT_BOUND = 10_000


@dataclass(frozen=True)
class Depth:
    """A group's work, all of one instant."""

    stream: str
    group: str
    undelivered: int | None  # None: unknown, see `reason`
    pending: int  # delivered and not acknowledged
    oldest_undelivered_ms: int | None  # when the oldest such entry was added; None: there is none, or its id is no time
    oldest_pending_ms: int | None
    longest_idle_ms: int | None  # since a worker last gave a sign about one of the 100 oldest pending entries
    reason: str = ""  # why `undelivered` is unknown; empty when it is known

    @property
    def load(self) -> int | None:
        """All that is left to do; None: unknown."""
        return None if self.undelivered is None else self.undelivered + self.pending


def read_depth(client: Valkey, stream: str, group: str, *, count_bound: int = COUNT_BOUND) -> Depth:
    """Costs the same for a thousand entries and a million; only where the server cannot tell, up to `count_bound`
    entries are counted, on either side of the group. Changes nothing.

    Raises NoSuchGroup, NotAStream or QueueUnavailable."""
    call = Call(script("depth"), [stream], [group, count_bound], list[Any])
    with of_group(stream, group):
        undelivered, pending, first_undelivered, first_pending, idle_ms = run(client, call)
    unknown = undelivered < 0
    return Depth(
        stream,
        group,
        None if unknown else undelivered,
        pending,
        time_of(first_undelivered.decode()),
        time_of(first_pending.decode()),
        None if idle_ms < 0 else idle_ms,
        why_unknown(count_bound) if unknown else "",
    )


def why_unknown(count_bound: int) -> str:
    return (
        f"The server cannot tell (entries were deleted, or the group was moved), and both before and behind the group "
        f"there are more than {count_bound} entries to count."
    )
