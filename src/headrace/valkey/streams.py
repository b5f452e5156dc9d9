"""Reading and trimming streams, without the overhead of redis-py's parsed entries."""

from __future__ import annotations

from typing import Any, cast

from redis.exceptions import ResponseError

from headrace.valkey.connect import Valkey, find_node

StreamEntry = tuple[bytes, list[bytes]]
"""An entry as the server returns it: (id, [field, value, field, value …])."""


def read_entries_between(client: Valkey, stream: str, after: str, up_to: str, count: int) -> list[StreamEntry]:
    """Return up to `count` entries with after < id <= up_to. Entries are unparsed: redis-py's dictionary per entry is
    six times slower."""
    return _read_raw(client, "XRANGE", stream, f"({after}", up_to, "COUNT", count)


def read_first_entry_from(client: Valkey, stream: str, entry_id: str) -> StreamEntry | None:
    """Return the first entry at or after an id, or None."""
    return next(iter(read_entries_from(client, stream, entry_id, 1)), None)


def read_entries_from(client: Valkey, stream: str, entry_id: str, count: int) -> list[StreamEntry]:
    return _read_raw(client, "XRANGE", stream, entry_id, "+", "COUNT", count)


def read_newest_entries(client: Valkey, stream: str, count: int) -> list[StreamEntry]:
    """Return up to `count` entries, newest first."""
    return _read_raw(client, "XREVRANGE", stream, "+", "-", "COUNT", count)


def read_group_position(client: Valkey, stream: str, group: str) -> str | None:
    """Return the id of the last entry delivered to a group; None if the stream or group does not exist."""
    if not client.exists(stream):
        return None
    found = (entry["last-delivered-id"] for entry in client.xinfo_groups(stream) if entry["name"] == group.encode())
    return next((entry_id.decode() for entry_id in found), None)


def set_group_position(client: Valkey, stream: str, group: str, entry_id: str, entries_read: int) -> None:
    """Set the position of a group, so that ordinary tools see its lag. Creates the group and the stream if they do not
    exist."""
    try:
        # Tried first, because a server whose memory is full refuses XGROUP CREATE, but not XGROUP SETID.
        client.xgroup_setid(stream, group, entry_id, entries_read=entries_read)
    except ResponseError as error:
        if "NOGROUP" not in str(error) and "key to exist" not in str(error):
            raise
        client.xgroup_create(stream, group, id=entry_id, mkstream=True, entries_read=entries_read)


def trim_before(client: Valkey, stream: str, entry_id: str) -> None:
    """Remove all entries older than `entry_id`, which itself stays."""
    client.xtrim(stream, minid=entry_id, approximate=False)


def _read_raw(client: Valkey, command: str, stream: str, *arguments: Any) -> list[StreamEntry]:
    pool = find_node(client, stream).connection_pool
    connection: Any = pool.get_connection()
    try:
        connection.send_command(command, stream, *arguments)
        return cast(list[StreamEntry], connection.read_response())
    except BaseException:
        connection.disconnect()  # a late reply must not reach the next user of the connection
        raise
    finally:
        pool.release(connection)
