"""Depth of a consumer group: undelivered entries, and delivered entries that are not acknowledged.

A stream's length is not the depth: acknowledged entries stay in it until they are trimmed. Nor is the server's `lag`:
it excludes pending entries, is null after deletions and after the group was moved, and is wrong after a trim past the
group's position. Here a number is exact, or it is None with a reason; it is never a guess, and never 0 for "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.model.entry_id import parse_time_ms
from headrace.streams.scripts import script
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import ScriptCall, run
from headrace.valkey.stream_groups import translate_group_errors

COUNT_BOUND = 10_000


@dataclass(frozen=True)
class GroupDepth:
    """Depth of a group at one instant."""

    stream: str
    group: str
    undelivered: int | None  # None: unknown, see `reason`
    pending: int  # delivered and not acknowledged
    oldest_undelivered_ms: int | None  # when the oldest was added; None: there is none, or its id is not a time
    oldest_pending_ms: int | None
    longest_idle_ms: int | None  # of the 100 oldest pending entries; None: no consumer holds one of them
    total_messages: int  # length of the stream, including entries that every group has finished
    reason: str = ""  # why `undelivered` is unknown; empty if it is known

    @property
    def load(self) -> int | None:
        """Return the number of entries that are not acknowledged; None: unknown."""
        return None if self.undelivered is None else self.undelivered + self.pending


def read_depth(client: Valkey, stream: str, group: str, *, count_bound: int = COUNT_BOUND) -> GroupDepth:
    """Return the depth of a group. The cost does not depend on the number of entries, unless the server does not know
    the lag: then up to `count_bound` entries on each side of the group's position are counted. Changes nothing.

    Raises UnknownGroup, NotAStream or StreamsUnavailable."""
    call = ScriptCall(script("depth"), [stream], [group, count_bound], list[Any])
    with translate_group_errors(stream, group):
        undelivered, pending, first_undelivered, first_pending, idle_ms, total_messages = run(client, call)
    unknown = undelivered < 0
    return GroupDepth(
        stream,
        group,
        None if unknown else undelivered,
        pending,
        parse_time_ms(first_undelivered.decode()),
        parse_time_ms(first_pending.decode()),
        None if idle_ms < 0 else idle_ms,
        total_messages,
        explain_unknown_depth(count_bound) if unknown else "",
    )


def explain_unknown_depth(count_bound: int) -> str:
    return (
        "The server does not know the lag (entries were deleted or the group was moved), and more than "
        f"{count_bound} entries lie on each side of the group's position, too many to count."
    )
