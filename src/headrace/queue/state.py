"""Reads the live state of queues: what is true now, straight from the counters the scripts keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.valkey.connect import Valkey, available

PAGE = 500
ODOMETER = b"o:"

_COLD_FIELDS = (
    *("on", "epoch", "version", "depth", "scheduled", "bytes", "dead", "spill", "expire", "cancel", "redrive"),
    *("max_items", "max_bytes", "oldest"),
)
"""What the field `cold` of a queue holds, separated by blanks: see lua/state.lua. The last is missing while nothing
waits there."""


@dataclass(frozen=True)
class QueueState:
    """Both tiers together, unless a name says otherwise."""

    ref: QueueRef
    depth: int  # could run now
    warm: int  # of those, in Valkey
    cold: int  # of those, in PostgreSQL
    scheduled: int  # not yet due
    running: int
    limit: int | None
    paused: bool  # no job is started
    closed: bool  # no job is accepted
    epoch_ms: int  # since when its odometers count
    oldest_ms: int | None  # when the longest-waiting job became eligible; None: nothing waits
    bytes: int
    cold_bytes: int  # of those, in PostgreSQL
    cold_mode: bool  # new jobs wait in PostgreSQL, behind those that wait there
    dead: int
    odometers: Mapping[str, int]  # op → how many since the queue exists


def read_states(client: Valkey, shards: int) -> list[QueueState]:
    """Every queue that was ever used, ordered by name."""
    with available():
        states = [state for shard in range(shards) for state in _read_shard(client, shard)]
    return sorted(states, key=lambda state: state.ref)


def _read_shard(client: Valkey, shard: int) -> list[QueueState]:
    parts = sorted(cast(set[bytes], client.smembers(keys.queues(shard))))
    pages = [parts[start : start + PAGE] for start in range(0, len(parts), PAGE)]
    return [state for page in pages for state in _read_page(client, shard, page)]


def _read_page(client: Valkey, shard: int, parts: Sequence[bytes]) -> list[QueueState]:
    """One round trip, one transaction: the numbers of a queue belong together."""
    pipeline = client.pipeline(transaction=True)
    for part in parts:
        queue = f"{keys.prefix(shard)}q:{part.decode()}"
        pipeline.hgetall(queue)
        pipeline.zcard(f"{queue}:dead")
    answers: list[Any] = pipeline.execute()
    return [_state(*answers[start : start + 2]) for start in range(0, len(answers), 2)]


def _state(fields: dict[bytes, bytes], dead: int) -> QueueState:
    limit = fields.get(b"limit")
    cold = dict(zip(_COLD_FIELDS, fields.get(b"cold", b"").decode().split(), strict=False))
    warm, waiting = int(fields[b"ready"]), int(cold.get("depth", 0))
    return QueueState(
        ref=QueueRef(*(fields[name].decode() for name in (b"org", b"project", b"env", b"queue"))),
        depth=warm + waiting,
        warm=warm,
        cold=waiting,
        scheduled=int(fields[b"warm_scheduled"]) + int(cold.get("scheduled", 0)),
        running=int(fields.get(b"running", 0)),
        limit=int(limit) if limit is not None else None,
        paused=fields.get(b"paused") == b"1",
        closed=fields.get(b"closed") == b"1",
        epoch_ms=int(fields[b"epoch"]),
        oldest_ms=_oldest_ms(fields[b"oldest"].decode(), cold.get("oldest", "")),
        bytes=int(fields[b"warm_bytes"]) + int(cold.get("bytes", 0)),
        cold_bytes=int(cold.get("bytes", 0)),
        cold_mode=cold.get("on") == "1",
        dead=dead + int(cold.get("dead", 0)),
        odometers={
            name.removeprefix(ODOMETER).decode(): int(total)
            for name, total in fields.items()
            if name.startswith(ODOMETER)
        },
    )


def _oldest_ms(*times: str) -> int | None:
    """Of the tiers where something waits."""
    return min((int(float(at)) for at in times if at), default=None)
