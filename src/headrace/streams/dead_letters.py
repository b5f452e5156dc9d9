"""Dead letters of a group: list, count and redrive entries that failed permanently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import SeveralGroups
from headrace.model.entry_id import parse_time_ms
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import GroupStubs
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from headrace.valkey.stream_groups import list_groups, translate_group_errors
from headrace.valkey.streams import StreamEntry, read_entries_from

PAGE = 100


@dataclass(frozen=True)
class DeadLetter:
    id: str  # id of the letter in the stream of dead letters
    entry_id: str  # id of the original entry
    buried_at_ms: int | None
    deliveries: int
    reason: str
    fields: dict[str, str]


def read_dead_letters(client: Valkey, keys: GroupKeys, after: str = "", at_most: int = PAGE) -> list[DeadLetter]:
    """Return dead letters, oldest first, after the letter with the id `after`."""
    with translate_group_errors(keys.dead, keys.group):
        return [
            _parse_letter(entry)
            for entry in read_entries_from(client, keys.dead, f"({after}" if after else "-", at_most)
        ]


def count_dead(client: Valkey, keys: GroupKeys) -> int:
    with translate_group_errors(keys.dead, keys.group):
        return client.xlen(keys.dead)


def redrive(client: Valkey, keys: GroupKeys, ids: Sequence[str] = (), *, every_group: bool = False) -> int:
    """Add dead letters to their stream again as new entries. Return how many. Each letter moves atomically.

    Every group of a stream receives a new entry: without `every_group`, raises SeveralGroups if there are others."""
    with translate_group_errors(keys.stream, keys.group):
        others = [group for group in list_groups(client, keys.stream) if group != keys.group]
        if others and not every_group:
            raise SeveralGroups(
                f"Nothing was redriven: {keys.stream!r} has other groups ({', '.join(others)}), and each would run the "
                "jobs again. Use --every-group if that is intended."
            )
        stubs = GroupStubs(keys)
        if ids:
            return run(client, stubs.redrive(len(ids), ids=ids))[0]
        moved, last = 0, ""
        for _ in range(-(-count_dead(client, keys) // PAGE)):  # letters buried meanwhile are not redriven
            page, last = run(client, stubs.redrive(PAGE, last))
            moved += page
        return moved


def _parse_letter(entry: StreamEntry) -> DeadLetter:
    letter_id, flat = entry
    fields = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in zip(flat[::2], flat[1::2], strict=True)
    }
    entry_id, reason = fields.pop("headrace:id", ""), fields.pop("headrace:reason", "")
    deliveries = int(fields.pop("headrace:deliveries", "0"))
    return DeadLetter(letter_id.decode(), entry_id, parse_time_ms(letter_id.decode()), deliveries, reason, fields)
