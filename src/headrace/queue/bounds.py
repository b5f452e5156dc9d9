"""Bounds that hold for every client of a Valkey, stored in the `bounds` field of each shard's meta.

The scripts read them themselves; a client's own options only count for a bound that is not stored. They are written
from Headrace's settings (see cli/bounds.py). Clients of commit 843d254 bring their own scripts and do not read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from headrace.queue import keys
from headrace.queue.scripts import Caps
from headrace.valkey.connect import AsyncValkey, Valkey, available

UNSET = "-"


@dataclass(frozen=True)
class Bounds:
    """None: not stored."""

    max_items: int | None = None  # jobs of one queue in Valkey
    max_bytes: int | None = None  # payload bytes of one queue in Valkey
    shard_bytes: int | None = None  # payload bytes of one shard in Valkey; 0: any
    stream_maxlen: int | None = None  # metric events of one shard

    def override(self, newer: Bounds) -> Bounds:
        """Return these bounds with the ones that `newer` has in their place."""
        return replace(self, **{name: value for name, value in vars(newer).items() if value is not None})

    def caps(self, otherwise: Caps) -> Caps:
        values = (self.max_items, self.max_bytes, self.shard_bytes)
        given = (otherwise.items, otherwise.bytes, otherwise.shard_bytes)
        return Caps(*(own if value is None else value for value, own in zip(values, given, strict=True)))


NO_BOUNDS = Bounds()


def pack_bounds(bounds: Bounds) -> str:
    return " ".join(UNSET if value is None else str(value) for value in vars(bounds).values())


def parse_bounds(packed: bytes | None) -> Bounds:
    values = packed.decode().split() if packed else []
    if len(values) != len(fields(Bounds)):
        return NO_BOUNDS  # as the scripts take it
    return Bounds(*(None if value == UNSET else int(value) for value in values))


def read_bounds(client: Valkey) -> Bounds:
    """Read the bounds of the first shard; all shards have the same."""
    with available():
        found = client.hget(keys.meta(0), "bounds")
    assert found is None or isinstance(found, bytes)
    return parse_bounds(found)


async def read_bounds_async(client: AsyncValkey) -> Bounds:
    with available():
        found = await client.hget(keys.meta(0), "bounds")
    assert found is None or isinstance(found, bytes)
    return parse_bounds(found)


def store_bounds(client: Valkey, shards: int, given: Bounds) -> Mapping[str, tuple[int | None, int | None]]:
    """Store the given bounds and leave the others as they are. Returns those that changed: name → before, after."""
    before = read_bounds(client)
    for shard in range(shards):
        with available():
            found = client.hget(keys.meta(shard), "bounds")
            assert found is None or isinstance(found, bytes)
            if (after := pack_bounds(parse_bounds(found).override(given))) != (found or b"").decode():
                client.hset(keys.meta(shard), "bounds", after)
    after = before.override(given)
    return {
        name: (old, new)
        for (name, old), new in zip(vars(before).items(), vars(after).values(), strict=True)
        if old != new
    }
