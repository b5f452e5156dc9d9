"""Reads the live state of queues: what is true now, straight from the counters the scripts keep."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.valkey.connect import Valkey, available

PAGE = 500
SCAN_COUNT = 5000
"""Names that the server looks at per round trip where only some are wanted."""
LISTED = "listed"
"""Field of a shard's meta: its set of environments has the environments of all queues."""
ODOMETER = b"o:"

_COLD_FIELDS = (
    *("on", "epoch", "version", "depth", "scheduled", "bytes", "dead", "spill", "expire", "cancel", "redrive"),
    *("max_items", "max_bytes", "oldest"),
)
"""What the field `cold` of a queue holds, separated by blanks: see lua/cold_field.lua. The last is missing while
nothing waits there."""


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
    dead_bytes: int = 0  # of dead jobs in Valkey: their payloads, and 512 for each
    cold_scheduled: int = 0  # of scheduled, in PostgreSQL


@dataclass(frozen=True)
class EnvLimits:
    limit: int | None  # most jobs that may run at once
    burst: float | None  # by what factor the environment as a whole may go beyond it; None: not at all


def read_states(
    client: Valkey, shards: int, wanted: Callable[[EnvRef], bool] = lambda _: True, prefix: str = ""
) -> list[QueueState]:
    """Every queue of the wanted environments that was ever used, ordered by name. `prefix` (see keys.part_prefix) keeps
    the names of other queues in the server."""
    with available():
        states = [state for shard in range(shards) for state in _read_shard(client, shard, wanted, prefix)]
    return sorted(states, key=lambda state: state.ref)


def read_parts(client: Valkey, shard: int, prefix: str = "") -> list[bytes]:
    """Return the queues of a shard whose part of the key begins with `prefix`, ordered."""
    if not prefix:
        return sorted(cast(set[bytes], client.smembers(keys.queues(shard))))
    found = client.sscan_iter(keys.queues(shard), match=f"{escape_glob(prefix)}*", count=SCAN_COUNT)
    return sorted(set(cast(Iterable[bytes], found)))


def list_environments(client: Valkey, shard: int, *, again: bool = False) -> None:
    """Add the environments of all queues to the shard's set of environments, unless that was done before, or `again`.

    Clients of 0.1.0 make queues without adding their environment. One that they make later is added by maintenance.
    """
    if not again and client.hget(keys.meta(shard), LISTED) is not None:
        return
    found = sorted({part.rpartition(b":")[0] for part in read_parts(client, shard)})
    for first in range(0, len(found), SCAN_COUNT):
        client.sadd(keys.environments(shard), *found[first : first + SCAN_COUNT])
    client.hset(keys.meta(shard), LISTED, "1")


def escape_glob(text: str) -> str:
    """Return a pattern that matches this text alone."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", text)


def read_environment(client: Valkey, shards: int, env: EnvRef) -> list[QueueState]:
    """The queues of one environment, ordered by name. Costs what it has, however many there are beside it."""
    shard = env.shard(shards)
    with available():
        names = sorted(cast(set[bytes], client.smembers(keys.env_names(shard, env))))
        parts = [f"{keys.env_part(env)}:{name.decode()}".encode() for name in names]
        return sorted(_read_pages(client, shard, parts), key=lambda state: state.ref)


def read_state(client: Valkey, shards: int, ref: QueueRef) -> QueueState | None:
    """One queue; None if there is none of this name."""
    with available():
        found = _read_page(client, ref.environment.shard(shards), [keys.queue_part(ref).encode()])
    return found[0] if found else None


def read_caps(client: Valkey, shards: int, ref: QueueRef) -> tuple[int, int] | None:
    """Most jobs and bytes that Valkey holds of a queue; None: as the settings say."""
    with available():
        own: Any = client.hget(keys.queue(ref.environment.shard(shards), ref), "caps")
    if own is None:
        return None
    items, size = own.split()
    return int(items), int(size)


def read_limits(client: Valkey, shards: int, envs: Sequence[EnvRef]) -> list[EnvLimits]:
    with available():
        pipeline = client.pipeline(transaction=False)
        for env in envs:
            pipeline.hmget(keys.env(env.shard(shards), env), "limit", "burst")
        answers: list[list[bytes | None]] = pipeline.execute()
    return [
        EnvLimits(None if limit is None else int(limit), None if burst is None else float(burst))
        for limit, burst in answers
    ]


def read_due_times(client: Valkey, shards: int, until_ms: float, at_most: int) -> dict[QueueRef, list[float]]:
    """Return when scheduled jobs in Valkey are due, in milliseconds, for each queue: those due until then, the first
    `at_most` of each shard."""
    found: dict[QueueRef, list[float]] = {}
    with available():
        for shard in range(shards):
            scheduled: Any = client.zrange(
                keys.scheduled(shard), "-inf", until_ms, byscore=True, offset=0, num=at_most, withscores=True
            )
            pipeline = client.pipeline(transaction=False)
            for member, _ in scheduled:
                pipeline.hget(f"{keys.prefix(shard)}job:{member.decode()}", "Q")
            queues: list[bytes | None] = pipeline.execute()
            for (member, due_ms), queue in zip(scheduled, queues, strict=True):
                parts = member.decode().split(":")
                if queue is not None and len(parts) == 4:  # else it is gone, or no job
                    ref = keys.queue_of_part(":".join((*parts[:3], queue.decode())))
                    found.setdefault(ref, []).append(due_ms)
    return found


def _read_shard(client: Valkey, shard: int, wanted: Callable[[EnvRef], bool], prefix: str) -> list[QueueState]:
    parts = read_parts(client, shard, prefix)
    return _read_pages(client, shard, [part for part in parts if wanted(keys.queue_of_part(part.decode()).environment)])


def _read_pages(client: Valkey, shard: int, parts: Sequence[bytes]) -> list[QueueState]:
    pages = [parts[start : start + PAGE] for start in range(0, len(parts), PAGE)]
    return [state for page in pages for state in _read_page(client, shard, page)]


def _read_page(client: Valkey, shard: int, parts: Sequence[bytes]) -> list[QueueState]:
    """One round trip, one transaction: the numbers of a queue belong together. Leaves out a queue that a failed script
    left without numbers."""
    pipeline = client.pipeline(transaction=True)
    for part in parts:
        queue = f"{keys.prefix(shard)}q:{part.decode()}"
        pipeline.hgetall(queue)
        pipeline.zcard(f"{queue}:dead")
    answers: list[Any] = pipeline.execute()
    return [_state(*answers[start : start + 2]) for start in range(0, len(answers), 2) if b"ready" in answers[start]]


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
        dead_bytes=int(fields.get(b"dead_bytes", 0)),
        cold_scheduled=int(cold.get("scheduled", 0)),
    )


def _oldest_ms(*times: str) -> int | None:
    """Of the tiers where something waits."""
    return min((int(float(at)) for at in times if at), default=None)
