"""Quotas as Valkey holds them. PostgreSQL has the record (`headrace.cold.quotas`); scripts enforce these.

    quota of hr:{0}:env:E      values of the environment: a number, `-` (none) or `=` (the default)
    quota of hr:{0}:meta       defaults of every environment: a number or `-`
    share of hr:{0}:env:E      its share of the quotas of its project and organisation, and the round it was given in
    shared of hr:{0}:meta      "1" if a project or organisation has a quota that is shared out
    share_round                the round of the last share, also where there is none any more
    share_need                 bytes of a job that waits in PostgreSQL because its share is too small, and when (ms)
    shared:O, shared:O:P       names of the quotas that the organisation O, or its project P, shares out
    shared_bytes:O, …:O:P      its quota `warm_bytes`: a larger job could never run
    rate_at of hr:{0}:env:E    level of the enqueue rate, a time in ms (lua/enqueue.lua)
    refused:<quota>            how often it refused something

The words are in the order of `headrace.model.quotas.IN_VALKEY`. Clients of releases before quotas bring their own
scripts and enforce none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.model.names import EnvRef
from headrace.model.quotas import DEFAULT as NO_TENANT
from headrace.model.quotas import IN_VALKEY, Quota, TenantRef, Values
from headrace.queue import keys
from headrace.valkey.connect import Valkey, available, node_of

NONE, DEFAULT = "-", "="
MEASURED = (Quota.WARM_JOBS, Quota.WARM_BYTES, Quota.QUEUES, Quota.RUNNING)
"""Quotas of which something is used at a moment; the others are rates."""
REFUSED = "refused:"
SHARED, SHARED_BYTES = "shared", "shared_bytes"


def pack_quotas(values: Values, missing: str = DEFAULT) -> str:
    """Return the words of values; `missing` stands for those that are not there."""
    return " ".join(missing if name not in values else _word(values[name]) for name in IN_VALKEY)


def _word(value: int | None) -> str:
    return NONE if value is None else str(value)


def shared_fields(quotas: Mapping[TenantRef, Values]) -> dict[str, str]:
    """Return the fields of a shard's meta for all quotas that are set: defaults, and which are shared out by whom."""
    fields: dict[str, str] = {}
    if default := {name: value for name, value in quotas.get(NO_TENANT, {}).items() if name in IN_VALKEY}:
        fields["quota"] = pack_quotas(default, NONE)
    for tenant, values in quotas.items():
        names = [name for name in IN_VALKEY if values.get(name) is not None]
        if names and tenant.level in ("organisation", "project"):
            part = ":".join(keys.encode(name) for name in (tenant.org, tenant.project) if name)
            fields[f"{SHARED}:{part}"] = " ".join(names)
            if Quota.WARM_BYTES in names:
                fields[f"{SHARED_BYTES}:{part}"] = str(values[Quota.WARM_BYTES])
    if markers := sorted(field for field in fields if field.startswith(SHARED)):
        fields[SHARED] = " ".join(marker.replace(" ", "%20") for marker in markers)
    return fields


def read_shared(client: Valkey, shard: int) -> dict[str, str]:
    """Return those fields as they are."""
    first: Any = client.hmget(keys.meta(shard), "quota", SHARED)
    found = {name: value.decode() for name, value in zip(("quota", SHARED), first, strict=True) if value is not None}
    markers = [marker.replace("%20", " ") for marker in found.get(SHARED, "").split()]
    values: Any = client.hmget(keys.meta(shard), *markers) if markers else []
    return found | {name: value.decode() for name, value in zip(markers, values, strict=True) if value is not None}


def store_shared(client: Valkey, shard: int, before: Mapping[str, str], fields: Mapping[str, str]) -> None:
    if changed := {name: value for name, value in fields.items() if before.get(name) != value}:
        client.hset(keys.meta(shard), mapping=cast(Any, changed))
    if gone := before.keys() - fields.keys():
        client.hdel(keys.meta(shard), *gone)


@dataclass(frozen=True)
class WarmUse:
    """What an environment uses of the quotas that Valkey enforces, and how often each quota refused something."""

    used: Mapping[str, int]  # of each that is MEASURED
    refused: Mapping[str, int]
    share: Mapping[str, int]  # its share of quotas of its project and organisation, by name


def read_warm_use(client: Valkey, shards: int, envs: Sequence[EnvRef]) -> list[WarmUse]:
    """Sum up the queues of each environment."""
    names: list[Any] = []
    with available():
        pipeline = client.pipeline(transaction=False)
        for env in envs:
            pipeline.smembers(keys.env_names(env.shard(shards), env))
        names = pipeline.execute()
        pipeline = client.pipeline(transaction=False)
        for env, queues in zip(envs, names, strict=True):
            shard = env.shard(shards)
            pipeline.hgetall(keys.env(shard, env))
            for queue in sorted(queues):
                key = f"{keys.prefix(shard)}q:{keys.env_part(env)}:{queue.decode()}"
                pipeline.hmget(key, "ready", "warm_scheduled", "running", "warm_bytes")
        answers: list[Any] = pipeline.execute()
    found: list[WarmUse] = []
    for queues in names:
        fields, *rows = answers[: 1 + len(queues)]
        del answers[: 1 + len(queues)]
        found.append(_use(fields, [[int(value or 0) for value in row] for row in rows]))
    return found


def _use(fields: dict[bytes, bytes], rows: list[list[int]]) -> WarmUse:
    refused = {
        name.decode().removeprefix(REFUSED): int(count)
        for name, count in fields.items()
        if name.startswith(REFUSED.encode())
    }
    share = _parse_share(fields.get(b"share", b"").decode().split())
    jobs = sum(ready + scheduled + running for ready, scheduled, running, _ in rows)
    numbers = (jobs, sum(size for *_, size in rows), len(rows), sum(row[2] for row in rows))
    return WarmUse(dict(zip(MEASURED, numbers, strict=True)), refused, share)


@dataclass(frozen=True)
class EnvironmentUse:
    """What the hash of an environment says that it uses. Scripts of older clients do not count it."""

    used: Mapping[str, int]  # of each that is MEASURED
    share_words: Sequence[str]  # none: it has no shares
    share: Mapping[str, int]
    is_enqueuing: bool  # it used its enqueue rate within the last seconds
    waiting: int  # jobs that are ready to run
    needed_bytes: int  # room for a job that waits in PostgreSQL because it is larger than the share; 0: there is none


RECENT_MS = 2000
NEED_MS = 30_000
"""How long a need for bytes holds: the mover tries again within that time."""


ENVIRONMENT_FIELDS = ("jobs", "bytes", "running", "share", "rate_at", "depth", "share_need")


def read_environment_use(client: Valkey, shard: int, envs: Sequence[EnvRef]) -> dict[EnvRef, EnvironmentUse]:
    """Read environments of one shard, in one round trip."""
    clock: Any = node_of(client, keys.meta(shard)).time()
    now_ms = clock[0] * 1000
    pipeline = client.pipeline(transaction=False)
    for env in envs:
        pipeline.hmget(keys.env(shard, env), *ENVIRONMENT_FIELDS)
        pipeline.scard(keys.env_names(shard, env))
    answers: list[Any] = pipeline.execute()
    found: dict[EnvRef, EnvironmentUse] = {}
    for env, values, queues in zip(envs, answers[::2], answers[1::2], strict=True):
        jobs, size, running, share, rate_at, depth, need = values
        numbers = (int(jobs or 0), int(size or 0), queues, int(running or 0))
        words = (share or b"").decode().split()[: len(IN_VALKEY)]
        is_enqueuing = float(rate_at or 0) > now_ms - RECENT_MS
        used = {str(name): number for name, number in zip(MEASURED, numbers, strict=True)}
        needed_bytes, needed_at = (int(word) for word in (need or b"0 0").split())
        if needed_at < now_ms - NEED_MS:
            needed_bytes = 0
        found[env] = EnvironmentUse(used, words, _parse_share(words), is_enqueuing, int(depth or 0), needed_bytes)
    return found


def _parse_share(words: Sequence[str]) -> dict[str, int]:
    return {str(name): int(word) for name, word in zip(IN_VALKEY, words, strict=False) if word != NONE}


def count_refusal(client: Valkey, shards: int, env: EnvRef, quota: str) -> None:
    """Count something that a quota refused outside of Valkey. An environment without queues is not counted."""
    key = keys.env(env.shard(shards), env)
    with available():
        if client.hexists(key, "depth"):
            client.hincrby(key, f"{REFUSED}{quota}", 1)
