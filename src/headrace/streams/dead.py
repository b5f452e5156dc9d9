"""Dead letters of a group: what could not be done, with the reason, until somebody redrives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import SeveralGroups
from headrace.streams.ids import time_of
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import GroupStubs
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from headrace.valkey.stream_groups import groups_of, of_group
from headrace.valkey.streams import Entry, entries_from

PAGE = 100


@dataclass(frozen=True)
class DeadLetter:
    id: str  # of the letter
    entry_id: str  # of the entry it was
    buried_at_ms: int | None
    deliveries: int
    reason: str
    fields: dict[str, str]


def dead_letters(client: Valkey, keys: GroupKeys, after: str = "", at_most: int = PAGE) -> list[DeadLetter]:
    """The oldest first, after the letter of an id."""
    with of_group(keys.dead, keys.group):
        return [_letter(entry) for entry in entries_from(client, keys.dead, f"({after}" if after else "-", at_most)]


def count_dead(client: Valkey, keys: GroupKeys) -> int:
    with of_group(keys.dead, keys.group):
        found = client.xlen(keys.dead)
    assert isinstance(found, int)
    return found


def redrive(client: Valkey, keys: GroupKeys, ids: Sequence[str] = (), *, every_group: bool = False) -> int:
    """Dead letters become new entries of their stream; returns how many. Each moves at once or not at all.

    Every group of a stream sees a new entry: unless that is meant, a stream with several groups refuses."""
    with of_group(keys.stream, keys.group):
        others = [group for group in groups_of(client, keys.stream) if group != keys.group]
        if others and not every_group:
            raise SeveralGroups(
                f"Nothing was redriven: {keys.stream!r} has other groups too ({', '.join(others)}), and each would run "
                "the jobs again. If that is meant, say so (--every-group)."
            )
        stubs = GroupStubs(keys)
        if ids:
            return run(client, stubs.redrive(len(ids), ids=ids))[0]
        moved, last = 0, ""
        for _ in range(-(-count_dead(client, keys) // PAGE)):  # those that die again meanwhile are left
            page, last = run(client, stubs.redrive(PAGE, last))
            moved += page
        return moved


def _letter(entry: Entry) -> DeadLetter:
    letter_id, flat = entry
    fields = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in zip(flat[::2], flat[1::2], strict=True)
    }
    entry_id, reason = fields.pop("headrace:id", ""), fields.pop("headrace:reason", "")
    deliveries = int(fields.pop("headrace:deliveries", "0"))
    return DeadLetter(letter_id.decode(), entry_id, time_of(letter_id.decode()), deliveries, reason, fields)
