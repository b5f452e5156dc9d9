"""Typed stubs of the Lua scripts for streams: one method per verb. Each returns a `ScriptCall`, which the client
runs."""

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
    *("depth", "snapshot", "emit_events", "save_report"),
)
CONSUMER_PREFIX = "headrace:"
RETRY_CONSUMER = "headrace:waiting"
"""Consumer that owns entries waiting for a retry (see lua/group.lua)."""

FIRST_ID = "0-0"


@cache
def script(name: str) -> Script:
    return load_script(files("headrace.streams") / "lua", name, preamble=generate_event_lua())


@dataclass(frozen=True)
class LeasedEntry:
    """An entry delivered to a consumer. Its delivery number is the lease: a result of an older delivery is refused."""

    id: str
    fields: dict[bytes, bytes]
    delivery: int  # 1 on the first attempt
    waited_ms: int


@dataclass(frozen=True)
class DequeuedEntries:
    entries: Sequence[LeasedEntry]
    deleted: int  # entries that were deleted from the stream while they waited for a retry


@dataclass(frozen=True)
class ReclaimResult:
    cursor: str  # for the next call; FIRST_ID: all entries are done
    returned: int
    deleted: int  # pending entries that were deleted from the stream


@dataclass(frozen=True)
class GroupSnapshot:
    """Totals and gauges of a group at one instant."""

    now_us: int  # server time; different for every snapshot
    undelivered: int | None
    pending: int
    first_undelivered: str
    waiting: int  # part of `pending` that waits for a retry
    due: int  # part of `waiting` whose retry is due
    due_since_ms: int | None
    entries_added: int
    entries_read: int | None
    counted: bool  # Headrace's workers have served this group
    counts: Sequence[int]  # totals counted by these workers, in the order of the verbs
    samples: Sequence[tuple[str, str, str]]  # (id, `waits` or `runs`, milliseconds separated by commas)
    first_pending: str = ""
    longest_idle_ms: int | None = None  # longest idle time of the 100 oldest pending entries


@dataclass(frozen=True)
class GroupStubs:
    """Script calls of one consumer of a group."""

    keys: GroupKeys
    consumer: str = ""

    def dequeue(self, n: int) -> ScriptCall[DequeuedEntries]:
        """Lease up to n entries: due retries first, then new ones."""
        return self._call("dequeue", [n], _parse_dequeued)

    def extend(self, entries: Iterable[LeasedEntry]) -> ScriptCall[list[bool]]:
        """Extend leases. Return for each: True, or False if the lease was lost."""
        return self._report("extend", ((each.id, each.delivery) for each in entries))

    def ack(self, done: Iterable[tuple[LeasedEntry, int]]) -> ScriptCall[list[bool]]:
        """Acknowledge entries, given as (entry, run ms). Return for each: True, or False if the lease was lost."""
        return self._report("ack", ((each.id, each.delivery, ms) for each, ms in done))

    def nack(self, failed: Iterable[tuple[LeasedEntry, int]]) -> ScriptCall[list[bool]]:
        """Schedule retries of entries, given as (entry, delay ms). Return for each: True, or False if the lease was
        lost."""
        return self._report("nack", ((each.id, each.delivery, ms) for each, ms in failed))

    def bury(self, failed: Iterable[tuple[LeasedEntry, str]]) -> ScriptCall[list[bool]]:
        """Bury entries, given as (entry, reason). Return for each: True, or False if the lease was lost."""
        return self._report("bury", ((each.id, each.delivery, why) for each, why in failed))

    def requeue(self, entries: Iterable[LeasedEntry]) -> ScriptCall[list[bool]]:
        """Return entries without using an attempt. Return for each: True, or False if the lease was lost."""
        return self._report("requeue", ((each.id, each.delivery) for each in entries))

    def reclaim(self, idle_ms: int, cursor: str, at_most: int) -> ScriptCall[ReclaimResult]:
        """Make up to `at_most` pending entries that were idle for `idle_ms` available for a retry."""
        return self._call(
            "reclaim", [idle_ms, cursor, at_most], lambda answer: ReclaimResult(answer[0].decode(), *answer[1:])
        )

    def remove_consumers(self, idle_ms: int, *, leaving: bool = False) -> ScriptCall[int]:
        """Remove consumers of Headrace without pending entries that have been idle for `idle_ms`; with `leaving`, also
        this one. Return how many."""
        args = [self.keys.group, self.consumer if leaving else "", idle_ms, CONSUMER_PREFIX]
        return ScriptCall(script("remove_consumers"), self.keys.list_all(), args, int)

    def redrive(self, at_most: int, after: str = "", ids: Iterable[str] = ()) -> ScriptCall[tuple[int, str]]:
        """Redrive dead letters. Return how many, and the id of the last letter examined."""
        return self._call("redrive", [at_most, after, *ids], lambda reply: (reply[0], reply[1].decode()))

    def snapshot(self, count_bound: int, after: str, samples: int) -> ScriptCall[GroupSnapshot]:
        """Read totals and gauges of the group, and up to `samples` entries of samples after an id."""
        return self._call("snapshot", [count_bound, after, samples, *COUNT_COLUMN], _parse_snapshot)

    def _report(self, name: str, rows: Iterable[tuple[Arg, ...]]) -> ScriptCall[list[bool]]:
        return self._call(name, flatten_args(rows), parse_flags)

    def _call(self, name: str, args: Iterable[Arg], parse: Callable[[Any], T]) -> ScriptCall[T]:
        return ScriptCall(script(name), self.keys.list_all(), [self.keys.group, self.consumer, *args], parse)


def publish(stream: str, maxlen: int, hard_maxlen: int, field: str, values: Iterable[str]) -> ScriptCall[list[str]]:
    """Add entries to a stream, all or none, and trim it. Return their ids."""
    args = [maxlen, hard_maxlen, field, *values]
    return ScriptCall(script("publish"), [stream], args, lambda ids: [entry_id.decode() for entry_id in ids])


def _parse_dequeued(answer: list[Any]) -> DequeuedEntries:
    return DequeuedEntries([_parse_entry(*entry) for entry in answer[0]], answer[1])


def _parse_entry(entry_id: bytes, flat: list[bytes], delivery: int, waited_ms: int) -> LeasedEntry:
    return LeasedEntry(entry_id.decode(), dict(zip(flat[::2], flat[1::2], strict=True)), delivery, waited_ms)


def _parse_snapshot(answer: list[Any]) -> GroupSnapshot:
    now_us, undelivered, pending, first, waiting, due, since, added, read = answer[:9]
    counted, counts, samples, first_pending, idle_ms = answer[9:]
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
    )
