"""Read the current state of queues from the counters that the scripts maintain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.valkey.connect import Valkey, translate_errors

PAGE = 500
SCAN_COUNT = 5000
"""Names that the server scans per round trip when only some are wanted."""
LISTED = "listed"
"""Field of a shard's meta: its set of environments is complete."""
ODOMETER = b"o:"

_COLD_FIELDS = (
    *("on", "epoch", "version", "depth", "scheduled", "bytes", "dead", "spill", "expire", "cancel", "redrive"),
    *("max_items", "max_bytes", "oldest"),
)
"""Values in the field `cold` of a queue, separated by blanks (see lua/cold_field.lua). The last is missing while no job
waits in PostgreSQL."""


@dataclass(frozen=True)
class QueueState:
    """State of a queue: both tiers together, unless a name says otherwise."""

    ref: QueueRef
    depth: int  # jobs that could run now
    warm: int  # part of depth in Valkey
    cold: int  # part of depth in PostgreSQL
    scheduled: int  # jobs not yet due
    running: int
    limit: int | None
    paused: bool  # no job is started
    closed: bool  # no job is accepted
    epoch_ms: int  # when the queue's state was created: its odometers count from then
    oldest_ms: int | None  # when the longest-waiting job became eligible; None: no job waits
    bytes: int
    cold_bytes: int  # part of bytes in PostgreSQL
    cold_mode: bool  # new jobs wait in PostgreSQL, behind those already there
    dead: int
    odometers: Mapping[str, int]  # op → total since epoch_ms
    dead_bytes: int = 0  # dead jobs in Valkey: their payloads, and 512 bytes for each
    cold_scheduled: int = 0  # part of scheduled in PostgreSQL
    result_bytes: int = 0  # records of attempts: their bodies, and 256 bytes for each
    results_dropped: int = 0  # records that were too long or did not fit, since epoch_ms


@dataclass(frozen=True)
class EnvLimits:
    limit: int | None  # maximum number of running jobs
    burst: float | None  # factor by which the environment as a whole may exceed the limit; None: not at all


def read_states(
    client: Valkey, shards: int, wanted: Callable[[EnvRef], bool] = lambda _: True, prefix: str = ""
) -> list[QueueState]:
    """Return the state of every queue of the environments accepted by `wanted`, sorted by name. `prefix` (see
    keys.part_prefix) makes the server return only matching names."""
    with translate_errors():
        states = [state for shard in range(shards) for state in _read_shard(client, shard, wanted, prefix)]
    return sorted(states, key=lambda state: state.ref)


def read_queue_parts(client: Valkey, shard: int, prefix: str = "") -> list[bytes]:
    """Return the key parts of the queues of a shard that begin with `prefix`, sorted."""
    if not prefix:
        return sorted(cast(set[bytes], client.smembers(keys.queues(shard))))
    parts = client.sscan_iter(keys.queues(shard), match=f"{escape_glob(prefix)}*", count=SCAN_COUNT)
    return sorted(set(cast(Iterable[bytes], parts)))


def index_environments(client: Valkey, shard: int, *, force: bool = False) -> None:
    """Add the environments of all queues to the shard's set of environments. Does nothing if that was done before,
    unless `force` is set.

    Clients of 0.1.0 create queues without adding their environment; maintenance adds those that are created later.
    """
    if not force and client.hget(keys.meta(shard), LISTED) is not None:
        return
    envs = sorted({part.rpartition(b":")[0] for part in read_queue_parts(client, shard)})
    for first in range(0, len(envs), SCAN_COUNT):
        client.sadd(keys.environments(shard), *envs[first : first + SCAN_COUNT])
    client.hset(keys.meta(shard), LISTED, "1")


def escape_glob(text: str) -> str:
    """Return a glob pattern that matches only this text."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", text)


def read_environment(client: Valkey, shards: int, env: EnvRef) -> list[QueueState]:
    """Return the queues of one environment, sorted by name. The cost depends on that environment only."""
    shard = env.shard(shards)
    with translate_errors():
        names = sorted(cast(set[bytes], client.smembers(keys.env_names(shard, env))))
        parts = [f"{keys.env_part(env)}:{name.decode()}".encode() for name in names]
        return sorted(_read_pages(client, shard, parts), key=lambda state: state.ref)


def read_state(client: Valkey, shards: int, ref: QueueRef) -> QueueState | None:
    """Return the state of one queue, or None if it does not exist."""
    with translate_errors():
        states = _read_page(client, ref.environment.shard(shards), [keys.queue_part(ref).encode()])
    return states[0] if states else None


def read_caps(client: Valkey, shards: int, ref: QueueRef) -> tuple[int, int] | None:
    """Return a queue's own caps of jobs and bytes in Valkey; None if the bounds of all queues apply."""
    with translate_errors():
        own: Any = client.hget(keys.queue(ref.environment.shard(shards), ref), "caps")
    if own is None:
        return None
    items, size = own.split()
    return int(items), int(size)


def read_limits(client: Valkey, shards: int, envs: Sequence[EnvRef]) -> list[EnvLimits]:
    with translate_errors():
        pipeline = client.pipeline(transaction=False)
        for env in envs:
            pipeline.hmget(keys.env(env.shard(shards), env), "limit", "burst")
        answers: list[list[bytes | None]] = pipeline.execute()
    return [
        EnvLimits(None if limit is None else int(limit), None if burst is None else float(burst))
        for limit, burst in answers
    ]


def read_due_times(client: Valkey, shards: int, until_ms: float, at_most: int) -> dict[QueueRef, list[float]]:
    """Return the due times (ms) of scheduled jobs in Valkey, for each queue: those due until `until_ms`, the first
    `at_most` of each shard."""
    due_times: dict[QueueRef, list[float]] = {}
    with translate_errors():
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
                if queue is not None and len(parts) == 4:  # else the job is gone, or the entry is malformed
                    ref = keys.parse_queue_part(":".join((*parts[:3], queue.decode())))
                    due_times.setdefault(ref, []).append(due_ms)
    return due_times


def _read_shard(client: Valkey, shard: int, wanted: Callable[[EnvRef], bool], prefix: str) -> list[QueueState]:
    parts = read_queue_parts(client, shard, prefix)
    return _read_pages(
        client, shard, [part for part in parts if wanted(keys.parse_queue_part(part.decode()).environment)]
    )


def _read_pages(client: Valkey, shard: int, parts: Sequence[bytes]) -> list[QueueState]:
    pages = [parts[start : start + PAGE] for start in range(0, len(parts), PAGE)]
    return [state for page in pages for state in _read_page(client, shard, page)]


def _read_page(client: Valkey, shard: int, parts: Sequence[bytes]) -> list[QueueState]:
    """Return the states of queues, read in one round trip and one transaction, so that they are consistent. Leaves out
    a queue that a failed script left without counters."""
    pipeline = client.pipeline(transaction=True)
    for part in parts:
        queue = f"{keys.prefix(shard)}q:{part.decode()}"
        pipeline.hgetall(queue)
        pipeline.zcard(f"{queue}:dead")
    answers: list[Any] = pipeline.execute()
    return [
        _parse_state(*answers[start : start + 2]) for start in range(0, len(answers), 2) if b"ready" in answers[start]
    ]


def _parse_state(fields: dict[bytes, bytes], dead: int) -> QueueState:
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
        oldest_ms=_find_oldest_ms(fields[b"oldest"].decode(), cold.get("oldest", "")),
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
        result_bytes=int(fields.get(b"result_bytes", 0)),
        results_dropped=int(fields.get(b"results_dropped", 0)),
    )


def _find_oldest_ms(*times: str) -> int | None:
    """Return the earliest of the times that are not empty."""
    return min((int(float(at)) for at in times if at), default=None)
