"""Consumer groups of streams that may belong to other applications: what the server says of them, and its errors."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from headrace.errors import NoSuchGroup, NotAStream, QueueUnavailable, StreamFull, StreamsUnavailable
from headrace.valkey.connect import AsyncValkey, Valkey, available, node_of


@contextmanager
def of_group(stream: str, group: str) -> Generator[None]:
    """`available`, and what the server says of a group that cannot be used becomes an error that names it."""
    try:
        with available():
            yield
    except StreamsUnavailable:
        raise  # from within
    except QueueUnavailable as error:
        raise StreamsUnavailable(f"{StreamsUnavailable.__doc__} ({error.__cause__})") from error
    except ResponseError as error:
        told = str(error)
        if told.startswith("NOGROUP") or "no such key" in told or "key to exist" in told:
            raise NoSuchGroup(
                f"There is no stream {stream!r}, or it has no group {group!r}. Nothing was changed. Check both names; "
                "a group begins with the first worker that reads with it."
            ) from error
        if told.startswith("WRONGTYPE"):
            raise NotAStream(
                f"The key {stream!r} does not hold a stream. Nothing was changed. Check its name, and the "
                "database number of the server's URL."
            ) from error
        if told.startswith("STREAMFULL"):
            raise StreamFull(f"{StreamFull.__doc__} (The stream is {stream!r}.)") from error
        raise


@dataclass(frozen=True)
class Pending:
    entry_id: str
    consumer: str
    idle_ms: int
    deliveries: int


def oldest_pending(client: Valkey, stream: str, group: str, count: int) -> list[Pending]:
    with of_group(stream, group):
        found: Any = client.xpending_range(stream, group, "-", "+", count)
    return [
        Pending(
            entry["message_id"].decode(),
            entry["consumer"].decode(errors="replace"),
            entry["time_since_delivered"],
            entry["times_delivered"],
        )
        for entry in found
    ]


def consumers_of(client: Valkey, stream: str, group: str) -> list[tuple[str, int, int]]:
    """(name, pending entries, ms since it last gave a sign)"""
    with of_group(stream, group):
        found: Any = client.xinfo_consumers(stream, group)
    return [(entry["name"].decode(errors="replace"), entry["pending"], entry["idle"]) for entry in found]


def groups_of(client: Valkey, stream: str) -> list[str]:
    """Raises NoSuchGroup if there is no such stream."""
    with of_group(stream, "*"):
        found: Any = client.xinfo_groups(stream)
    return sorted(entry["name"].decode() for entry in found)


def streams_in(client: Valkey, pattern: str) -> list[str]:
    """The streams whose names match a pattern of the server's (`*`, `?`, `[…]`). Looks at every key there is."""
    with of_group(pattern, "*"):
        return sorted(key.decode() for key in client.scan_iter(match=pattern, count=1000, _type="stream"))


def server_time_ms(client: Valkey) -> int:
    with of_group("*", "*"):
        seconds, microseconds = node_of(client, "").time()
    return seconds * 1000 + microseconds // 1000


async def make_group(client: AsyncValkey, stream: str, group: str) -> None:
    """A group that begins with the first entry there is, unless there is one of that name."""
    with of_group(stream, group):
        try:
            await client.xgroup_create(stream, group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
