"""Typed stubs of the Lua scripts for streams: one method per verb. Each returns a `ScriptCall`, which the client
runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from headrace.model.event import COUNT_COLUMN, lua_pack
from headrace.streams.keys import GroupKeys
from headrace.valkey.scripts import Arg, Call, Script, load_script

SCRIPTS = (
    *("publish", "dequeue", "extend", "ack", "nack", "bury", "requeue", "reclaim", "remove_consumers", "redrive"),
    *("depth", "snapshot", "emit_events", "save_report"),
)
CONSUMER_PREFIX = "headrace:"
WAITING = "headrace:waiting"
"""Consumer that owns entries waiting for a retry (see lua/group.lua)."""

FIRST_ID = "0-0"


@cache
def script(name: str) -> Script:
    return load_script(files("headrace.streams") / "lua", name, preamble=lua_pack())


@dataclass(frozen=True)
class Held:
    """An entry delivered to a consumer. Its delivery number is the lease: a result of an older delivery is refused."""

    id: str
    fields: dict[bytes, bytes]
    delivery: int  # 1 on the first attempt
    waited_ms: int


@dataclass(frozen=True)
class Taken:
    entries: Sequence[Held]
    gone: int  # entries that were deleted from the stream while they waited for a retry


@dataclass(frozen=True)
class Reclaimed:
    cursor: str  # for the next call; FIRST_ID: all entries are done
    returned: int
    gone: int  # pending entries that were deleted from the stream


@dataclass(frozen=True)
class Survey:
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

    def take(self, n: int) -> Call[Taken]:
        """Lease up to n entries: due retries first, then new ones."""
        return Call(script("dequeue"), *self._with(n), _taken)

    def extend(self, entries: Iterable[Held]) -> Call[list[bool]]:
        """Extend leases. Return for each: True, or False if the lease was lost."""
        return Call(script("extend"), *self._with(*_flat((each.id, each.delivery) for each in entries)), _flags)

    def ack(self, done: Iterable[tuple[Held, int]]) -> Call[list[bool]]:
        """Acknowledge entries, given as (entry, run ms). Return for each: True, or False if the lease was lost."""
        return Call(script("ack"), *self._with(*_flat((each.id, each.delivery, ms) for each, ms in done)), _flags)

    def nack(self, failed: Iterable[tuple[Held, int]]) -> Call[list[bool]]:
        """Schedule retries of entries, given as (entry, delay ms). Return for each: True, or False if the lease was
        lost."""
        return Call(script("nack"), *self._with(*_flat((each.id, each.delivery, ms) for each, ms in failed)), _flags)

    def bury(self, failed: Iterable[tuple[Held, str]]) -> Call[list[bool]]:
        """Bury entries, given as (entry, reason). Return for each: True, or False if the lease was lost."""
        return Call(script("bury"), *self._with(*_flat((each.id, each.delivery, why) for each, why in failed)), _flags)

    def giveback(self, entries: Iterable[Held]) -> Call[list[bool]]:
        """Return entries without using an attempt. Return for each: True, or False if the lease was lost."""
        return Call(script("requeue"), *self._with(*_flat((each.id, each.delivery) for each in entries)), _flags)

    def reclaim(self, idle_ms: int, cursor: str, at_most: int) -> Call[Reclaimed]:
        """Make up to `at_most` pending entries that were idle for `idle_ms` available for a retry."""
        return Call(script("reclaim"), *self._with(idle_ms, cursor, at_most), _reclaimed)

    def tidy(self, idle_ms: int, *, leaving: bool = False) -> Call[int]:
        """Remove consumers of Headrace without pending entries that have been idle for `idle_ms`; with `leaving`, also
        this one. Return how many."""
        args = [self.keys.group, self.consumer if leaving else "", idle_ms, CONSUMER_PREFIX]
        return Call(script("remove_consumers"), self.keys.all(), args, int)

    def redrive(self, at_most: int, after: str = "", ids: Iterable[str] = ()) -> Call[tuple[int, str]]:
        """Redrive dead letters. Return how many, and the id of the last letter examined."""
        return Call(script("redrive"), *self._with(at_most, after, *ids), lambda reply: (reply[0], reply[1].decode()))

    def survey(self, count_bound: int, after: str, samples: int) -> Call[Survey]:
        """Read totals and gauges of the group, and up to `samples` entries of samples after an id."""
        return Call(script("snapshot"), *self._with(count_bound, after, samples, *COUNT_COLUMN), _survey)

    def _with(self, *args: Arg) -> tuple[list[str], list[Arg]]:
        return self.keys.all(), [self.keys.group, self.consumer, *args]


def publish(stream: str, maxlen: int, hard_maxlen: int, field: str, values: Iterable[str]) -> Call[list[str]]:
    """Add entries to a stream, all or none, and trim it. Return their ids."""
    return Call(script("publish"), [stream], [maxlen, hard_maxlen, field, *values], _ids)


def _flat(rows: Iterable[Iterable[Arg]]) -> list[Arg]:
    return [value for row in rows for value in row]


def _flags(answer: list[int]) -> list[bool]:
    return [flag == 1 for flag in answer]


def _ids(answer: list[bytes]) -> list[str]:
    return [entry_id.decode() for entry_id in answer]


def _taken(answer: list[Any]) -> Taken:
    return Taken([_held(*entry) for entry in answer[0]], answer[1])


def _held(entry_id: bytes, flat: list[bytes], delivery: int, waited_ms: int) -> Held:
    return Held(entry_id.decode(), dict(zip(flat[::2], flat[1::2], strict=True)), delivery, waited_ms)


def _reclaimed(answer: list[Any]) -> Reclaimed:
    return Reclaimed(answer[0].decode(), answer[1], answer[2])


def _survey(answer: list[Any]) -> Survey:
    now_us, undelivered, pending, first, waiting, due, since, added, read = answer[:9]
    counted, counts, samples, first_pending, idle_ms = answer[9:]
    return Survey(
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
