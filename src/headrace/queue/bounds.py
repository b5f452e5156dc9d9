"""Bounds that apply to every client of a Valkey, stored in the `bounds` field of each shard's meta.

The scripts read them; a client's options apply only to bounds that are not stored. They are written from Headrace's
settings (see cli/bounds.py). Clients of commit 843d254 have older scripts, which do not read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from headrace.queue import keys
from headrace.queue.scripts import WarmCaps
from headrace.valkey.connect import AsyncValkey, Valkey, translate_errors

UNSET = "-"


@dataclass(frozen=True)
class StoredBounds:
    """Bounds stored in Valkey. None: not stored."""

    max_items: int | None = None  # jobs of one queue in Valkey
    max_bytes: int | None = None  # payload bytes of one queue in Valkey
    shard_bytes: int | None = None  # payload bytes of one shard in Valkey; 0: no bound
    stream_maxlen: int | None = None  # metric events of one shard

    def override(self, newer: StoredBounds) -> StoredBounds:
        """Return these bounds, replaced by those of `newer` that are not None."""
        return replace(self, **{name: value for name, value in vars(newer).items() if value is not None})

    def resolve_caps(self, defaults: WarmCaps) -> WarmCaps:
        """Return the caps, with the given defaults for bounds that are not stored."""
        values = (self.max_items, self.max_bytes, self.shard_bytes)
        given = (defaults.items, defaults.bytes, defaults.shard_bytes)
        return WarmCaps(*(own if value is None else value for value, own in zip(values, given, strict=True)))


NO_BOUNDS = StoredBounds()


def pack_bounds(bounds: StoredBounds) -> str:
    return " ".join(UNSET if value is None else str(value) for value in vars(bounds).values())


def parse_bounds(packed: bytes | None) -> StoredBounds:
    values = packed.decode().split() if packed else []
    if len(values) != len(fields(StoredBounds)):
        return NO_BOUNDS  # the scripts do the same
    return StoredBounds(*(None if value == UNSET else int(value) for value in values))


def read_bounds(client: Valkey) -> StoredBounds:
    """Read the bounds of the first shard; all shards have the same."""
    with translate_errors():
        packed: Any = client.hget(keys.meta(0), "bounds")
    return parse_bounds(packed)


async def read_bounds_async(client: AsyncValkey) -> StoredBounds:
    with translate_errors():
        packed: Any = await client.hget(keys.meta(0), "bounds")
    return parse_bounds(packed)


def store_bounds(client: Valkey, shards: int, given: StoredBounds) -> Mapping[str, tuple[int | None, int | None]]:
    """Store the bounds that are not None and leave the others unchanged. Return those that changed: name → (before,
    after)."""
    before = read_bounds(client)
    for shard in range(shards):
        with translate_errors():
            packed: Any = client.hget(keys.meta(shard), "bounds")
            if (after := pack_bounds(parse_bounds(packed).override(given))) != (packed or b"").decode():
                client.hset(keys.meta(shard), "bounds", after)
    after = before.override(given)
    return {
        name: (old, new)
        for (name, old), new in zip(vars(before).items(), vars(after).values(), strict=True)
        if old != new
    }
