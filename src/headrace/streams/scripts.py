"""Typed stubs of the Lua scripts for streams: `GroupStubs` has one method per script that workers and watchers of a
group run, and `publish` adds entries. A stub only builds a `ScriptCall`, with its arguments and the parser of its
reply; the client runs it. The scripts `depth`, `emit_events` and `save_report` are called where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from headrace.model.event import COUNT_COLUMN, generate_event_lua
from headrace.streams.keys import GroupKeys
from headrace.valkey.scripts import Arg, Script, ScriptCall, flatten_args, load_script, parse_flags

T = TypeVar("T")

SCRIPTS = (
    *("publish", "dequeue", "extend", "ack", "nack", "bury", "requeue", "reclaim", "remove_consumers", "redrive"),
    *("depth", "snapshot", "emit_events", "save_report", "defer"),
)
CONSUMER_PREFIX = "headrace:"
"""Start of the names of Headrace's own consumers."""
RETRY_CONSUMER = "headrace:waiting"
"""Consumer that owns entries waiting for a retry (see lua/group.lua)."""

FIRST_ID = "0-0"
"""The id before every entry: the start of a scan, and the cursor of a finished one."""


@cache
def script(name: str) -> Script:
    return load_script(files("headrace.streams") / "lua", name, preamble=generate_event_lua())


@dataclass(frozen=True)
class EntryLease:
    """Lease of an entry. Its delivery number is the token: a result of an older delivery is refused."""

    id: str
    delivery: int  # 1 on the first attempt


@dataclass(frozen=True)
class LeasedEntry(EntryLease):
    """An entry delivered to a consumer."""

    fields: dict[bytes, bytes]
    waited_ms: int  # since the entry was added, or since its retry was due; 0 if the id is not a time


@dataclass(frozen=True)
class DequeuedEntries:
    """Result of `GroupStubs.dequeue`."""

    entries: Sequence[LeasedEntry]
    deleted: int  # retries that were due, but whose entries had been deleted from the stream
    last_id: str  # entries that the group has not received have greater ids; empty: there may be others, too
    next_due_ms: int | None  # time until the next retry is due; None: no entry waits for one
    last_wake_id: str  # id of the last wake; a greater one means that a retry became due earlier than `next_due_ms`


@dataclass(frozen=True)
class EntryDeferral:
    """An entry that a worker gives back because it cannot run it now."""

    entry: EntryLease
    min_delay_ms: int
    max_delay_ms: int  # the delay grows up to this with the time since the entry was first deferred
    reason: str = ""  # reason of the dead letter if the entry is buried
    bury_after_ms: int = 0  # time since the first deferral after which it is buried; 0: never

    DEFERRED, BURIED, LOST = 1, 2, 0


@dataclass(frozen=True)
class ReclaimResult:
    """Result of `GroupStubs.reclaim`."""

    cursor: str  # for the next call; FIRST_ID: all pending entries were examined
    returned: int  # entries that may now be retried
    deleted: int  # pending entries that had been deleted from the stream


@dataclass(frozen=True)
class GroupSnapshot:
    """Gauges and totals of a group at one instant. Ids are empty if there is no such entry."""

    now_us: int  # server time; different for every snapshot
    undelivered: int | None  # entries not yet delivered to any consumer of the group; None: unknown
    pending: int  # entries delivered but not acknowledged, including those that wait for a retry
    first_undelivered: str  # id of the first undelivered entry
    waiting: int  # part of `pending` that is assigned to RETRY_CONSUMER until it is delivered again
    due: int  # part of `waiting` that may be delivered again now
    due_since_ms: int | None  # since when the first of the `due` entries is due; None: there are none
    entries_added: int  # entries ever added to the stream
    entries_read: int | None  # entries ever delivered to the group, as the server counts them; None: unknown
    counted: bool  # workers of Headrace have served this group, so `counts` is meaningful
    counts: Sequence[int]  # totals of operations by these workers, in the order of model.event.COUNT_COLUMN
    samples: Sequence[tuple[str, str, str]]  # (id of the sample, `waits` or `runs`, milliseconds separated by commas)
    first_pending: str = ""  # id of the first pending entry
    longest_idle_ms: int | None = None  # of the 100 oldest pending entries; None: no consumer holds one of them
    total_messages: int = 0  # length of the stream, including entries that every group has finished


@dataclass(frozen=True)
class GroupStubs:
    """Builds the script calls of one consumer of a group. No method contacts the server: "return" in their docstrings
    is what the call returns when it is run."""

    keys: GroupKeys
    consumer: str = ""  # empty: for calls that are not made by a worker

    def dequeue(self, n: int) -> ScriptCall[DequeuedEntries]:
        """Lease up to n entries: due retries first, then new ones."""
        return self._call("dequeue", [n], _parse_dequeued)

    def extend(self, entries: Iterable[EntryLease]) -> ScriptCall[list[bool]]:
        """Extend leases. Return for each: True, or False if the lease was lost."""
        return self._report("extend", ((each.id, each.delivery) for each in entries))

    def ack(self, done: Iterable[tuple[EntryLease, int]]) -> ScriptCall[list[bool]]:
        """Acknowledge entries, given as (entry, run ms). Return for each: True, or False if the lease was lost."""
        return self._report("ack", ((each.id, each.delivery, ms) for each, ms in done))

    def nack(self, failed: Iterable[tuple[EntryLease, int]]) -> ScriptCall[list[bool]]:
        """Schedule retries of entries, given as (entry, delay ms). Return for each: True, or False if the lease was
        lost."""
        return self._report("nack", ((each.id, each.delivery, ms) for each, ms in failed))

    def bury(self, failed: Iterable[tuple[EntryLease, str]]) -> ScriptCall[list[bool]]:
        """Bury entries, given as (entry, reason). Return for each: True, or False if the lease was lost."""
        return self._report("bury", ((each.id, each.delivery, why) for each, why in failed))

    def requeue(self, entries: Iterable[EntryLease]) -> ScriptCall[list[bool]]:
        """Return entries without using an attempt. Return for each: True, or False if the lease was lost."""
        return self._report("requeue", ((each.id, each.delivery) for each in entries))

    def defer(self, deferrals: Iterable[EntryDeferral]) -> ScriptCall[list[int]]:
        """Return entries without using an attempt, to be delivered after a delay. Return for each one of the codes of
        `EntryDeferral`."""
        args = flatten_args(
            (
                *(each.entry.id, each.entry.delivery, each.min_delay_ms, each.max_delay_ms),
                *(each.bury_after_ms, each.reason),
            )
            for each in deferrals
        )
        return self._call("defer", args, list)

    def reclaim(self, idle_ms: int, cursor: str, at_most: int) -> ScriptCall[ReclaimResult]:
        """Make entries that have been pending and idle for `idle_ms` available for a retry now. Examines entries from
        `cursor` on (FIRST_ID: the first) and returns up to `at_most`."""
        return self._call(
            "reclaim", [idle_ms, cursor, at_most], lambda answer: ReclaimResult(answer[0].decode(), *answer[1:])
        )

    def remove_consumers(self, idle_ms: int, *, leaving: bool = False) -> ScriptCall[int]:
        """Remove Headrace's own consumers that have no pending entries and have been idle for `idle_ms`; with
        `leaving`, also this consumer, however long it was idle, unless it has pending entries. Return how many."""
        args = [self.keys.group, self.consumer if leaving else "", idle_ms, CONSUMER_PREFIX]
        return ScriptCall(script("remove_consumers"), self.keys.list_all(), args, int)

    def redrive(self, at_most: int, after: str = "", ids: Iterable[str] = ()) -> ScriptCall[tuple[int, str]]:
        """Move up to `at_most` dead letters after the id `after` (empty: from the first) back to the stream, or those
        with `ids` if any are given. Return how many were moved, and the id of the last letter examined."""
        return self._call("redrive", [at_most, after, *ids], lambda reply: (reply[0], reply[1].decode()))

    def snapshot(self, count_bound: int, after: str, samples: int) -> ScriptCall[GroupSnapshot]:
        """Read gauges and totals of the group, and up to `samples` samples of waits and run times after the id
        `after`. `count_bound` is the maximum number of entries counted to find the undelivered ones."""
        return self._call("snapshot", [count_bound, after, samples, *COUNT_COLUMN], _parse_snapshot)

    def _report(self, name: str, rows: Iterable[tuple[Arg, ...]]) -> ScriptCall[list[bool]]:
        return self._call(name, flatten_args(rows), parse_flags)

    def _call(self, name: str, args: Iterable[Arg], parse: Callable[[Any], T]) -> ScriptCall[T]:
        return ScriptCall(script(name), self.keys.list_all(), [self.keys.group, self.consumer, *args], parse)


def publish(stream: str, maxlen: int, hard_maxlen: int, field: str, values: Iterable[str]) -> ScriptCall[list[str]]:
    """Add one entry per value to a stream, all or none. Return their ids.

    Above `maxlen` entries, those that every group has finished are trimmed, and no others. If the stream would still
    have more than `hard_maxlen`, the script refuses all entries (STREAMFULL).
    """
    args = [maxlen, hard_maxlen, field, *values]
    return ScriptCall(script("publish"), [stream], args, lambda ids: [entry_id.decode() for entry_id in ids])


def _parse_dequeued(answer: list[Any]) -> DequeuedEntries:
    entries, deleted, last_id, next_due, last_wake_id = answer
    next_due_ms = None if next_due < 0 else next_due
    return DequeuedEntries(
        [_parse_entry(*entry) for entry in entries], deleted, last_id.decode(), next_due_ms, last_wake_id.decode()
    )


def _parse_entry(entry_id: bytes, flat: list[bytes], delivery: int, waited_ms: int) -> LeasedEntry:
    return LeasedEntry(entry_id.decode(), delivery, dict(zip(flat[::2], flat[1::2], strict=True)), waited_ms)


def _parse_snapshot(answer: list[Any]) -> GroupSnapshot:
    now_us, undelivered, pending, first, waiting, due, since, added, read = answer[:9]
    counted, counts, samples, first_pending, idle_ms, total_messages = answer[9:]
    return GroupSnapshot(
        now_us,
        None if undelivered < 0 else undelivered,
        pending,
        first.decode(),
        *(waiting, due, int(since) if since else None),
        *(added, None if read == b"" else read),
        counted == 1,
        counts,
        [(entry_id.decode(), flat[0].decode(), flat[1].decode()) for entry_id, flat in samples],
        first_pending.decode(),
        None if idle_ms < 0 else idle_ms,
        total_messages,
    )
