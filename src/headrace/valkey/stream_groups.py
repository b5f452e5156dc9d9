"""Consumer groups of streams, which may belong to other applications: reads, and translation of the server's errors."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ResponseError

from headrace.errors import NotAStream, QueueUnavailable, StreamFull, StreamsUnavailable, UnknownGroup
from headrace.valkey.connect import AsyncValkey, Valkey, translate_errors


@contextmanager
def translate_group_errors(stream: str, group: str) -> Generator[None]:
    """Translate errors as `translate_errors` does, and errors about a stream or group into ones that name it:
    UnknownGroup, NotAStream, StreamFull, StreamsUnavailable."""
    try:
        with translate_errors():
            yield
    except StreamsUnavailable:
        raise  # translated by a nested block
    except QueueUnavailable as error:
        raise StreamsUnavailable(f"{StreamsUnavailable()} ({error.__cause__})") from error
    except ResponseError as error:
        text = str(error)
        if text.startswith("NOGROUP") or "no such key" in text or "key to exist" in text:
            raise UnknownGroup(
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


def read_oldest_deliveries(client: Valkey, stream: str, group: str, count: int) -> list[int]:
    """Return how often each of the `count` oldest pending entries was delivered."""
    with translate_group_errors(stream, group):
        found: Any = client.xpending_range(stream, group, "-", "+", count)
    return [entry["times_delivered"] for entry in found]


def list_consumers(client: Valkey, stream: str, group: str) -> list[tuple[str, int, int]]:
    """Return (name, pending entries, idle ms) of each consumer of a group."""
    with translate_group_errors(stream, group):
        found: Any = client.xinfo_consumers(stream, group)
    return [(entry["name"].decode(errors="replace"), entry["pending"], entry["idle"]) for entry in found]


def list_groups(client: Valkey, stream: str) -> list[str]:
    """Return the groups of a stream, sorted. Raises UnknownGroup if the stream does not exist."""
    with translate_group_errors(stream, "*"):
        found: Any = client.xinfo_groups(stream)
    return sorted(entry["name"].decode() for entry in found)


def find_streams(client: Valkey, pattern: str) -> list[str]:
    """Return the streams whose names match a glob pattern (`*`, `?`, `[…]`), sorted. Scans every key of the server."""
    with translate_group_errors(pattern, "*"):
        return sorted(key.decode() for key in client.scan_iter(match=pattern, count=1000, _type="stream"))


async def create_group(client: AsyncValkey, stream: str, group: str) -> None:
    """Create a group that starts with the first entry of the stream, unless a group of that name exists. Creates the
    stream if it does not exist."""
    with translate_group_errors(stream, group):
        try:
            await client.xgroup_create(stream, group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
