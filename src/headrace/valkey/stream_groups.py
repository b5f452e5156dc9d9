"""Consumer groups of streams, which may belong to other applications: reads, and translation of the server's errors."""

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
    """Translate errors as `translate_errors` does, and errors about a stream or group into ones that name it:
    UnknownGroup, NotAStream, StreamFull, StreamsUnavailable."""
    try:
        with available():
            yield
    except StreamsUnavailable:
        raise  # translated by a nested block
    except QueueUnavailable as error:
        raise StreamsUnavailable(f"{StreamsUnavailable()} ({error.__cause__})") from error
    except ResponseError as error:
        text = str(error)
        if text.startswith("NOGROUP") or "no such key" in text or "key to exist" in text:
            raise NoSuchGroup(
                f"There is no stream {stream!r}, or it has no group {group!r}. Nothing was changed. Check both names; "
                "a group is created by its first worker."
            ) from error
        if text.startswith("WRONGTYPE"):
            raise NotAStream(
                f"The key {stream!r} does not hold a stream. Nothing was changed. Check its name, and the "
                "database number in the server's URL."
            ) from error
        if text.startswith("STREAMFULL"):
            raise StreamFull(f"{StreamFull()} (The stream is {stream!r}.)") from error
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
    """Return (name, pending entries, idle ms) of each consumer of a group."""
    with of_group(stream, group):
        found: Any = client.xinfo_consumers(stream, group)
    return [(entry["name"].decode(errors="replace"), entry["pending"], entry["idle"]) for entry in found]


def groups_of(client: Valkey, stream: str) -> list[str]:
    """Return the groups of a stream, sorted. Raises UnknownGroup if the stream does not exist."""
    with of_group(stream, "*"):
        found: Any = client.xinfo_groups(stream)
    return sorted(entry["name"].decode() for entry in found)


def streams_in(client: Valkey, pattern: str) -> list[str]:
    """Return the streams whose names match a glob pattern (`*`, `?`, `[…]`), sorted. Scans every key of the server."""
    with of_group(pattern, "*"):
        return sorted(key.decode() for key in client.scan_iter(match=pattern, count=1000, _type="stream"))


def server_time_ms(client: Valkey) -> int:
    with of_group("*", "*"):
        seconds, microseconds = node_of(client, "").time()
    return seconds * 1000 + microseconds // 1000


async def make_group(client: AsyncValkey, stream: str, group: str) -> None:
    """Create a group that starts with the first entry of the stream, unless a group of that name exists. Creates the
    stream if it does not exist."""
    with of_group(stream, group):
        try:
            await client.xgroup_create(stream, group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
