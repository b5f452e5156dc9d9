"""Quotas as stored in Valkey, where scripts enforce them. PostgreSQL has the record (`headrace.cold.quotas`).

    quota of hr:{0}:env:E      values of the environment: a number, `-` (none) or `=` (the default)
    quota of hr:{0}:meta       defaults of every environment: a number or `-`
    share of hr:{0}:env:E      its share of the quotas of its project and organisation, and the round that set it
    shared of hr:{0}:meta      names of the fields below, if a project or organisation has a quota that is shared
    share_round                the round that last set or removed the share
    share_need                 bytes of a job that waits in PostgreSQL because its share is too small, and when (ms)
    shared:O, shared:O:P       names of the shared quotas of the organisation O, or of its project P
    shared_bytes:O, …:O:P      its quota `warm_bytes`: a larger job could never run
    rate_at of hr:{0}:env:E    level of the enqueue rate, a time in ms (lua/enqueue.lua)
    refused:<quota>            number of refusals because of the quota

The words are in the order of `headrace.model.quotas.VALKEY_QUOTAS`. Scripts of releases before quotas enforce none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from headrace.model.names import EnvRef
from headrace.model.quotas import DEFAULT_TENANT as NO_TENANT
from headrace.model.quotas import VALKEY_QUOTAS, Quota, QuotaValues, TenantRef
from headrace.queue import keys
from headrace.valkey.connect import Valkey, find_node, translate_errors

NONE, DEFAULT = "-", "="
MEASURED = (Quota.WARM_JOBS, Quota.WARM_BYTES, Quota.QUEUES, Quota.RUNNING)
"""Quotas with a current usage; the others are rates."""
REFUSED = "refused:"
SHARED, SHARED_BYTES = "shared", "shared_bytes"


def pack_quotas(values: QuotaValues, missing: str = DEFAULT) -> str:
    """Return the packed words of quota values; `missing` is the word of a quota without a value."""
    return " ".join(missing if name not in values else _format_value(values[name]) for name in VALKEY_QUOTAS)


def _format_value(value: int | None) -> str:
    return NONE if value is None else str(value)


def build_shared_fields(quotas: Mapping[TenantRef, QuotaValues]) -> dict[str, str]:
    """Return the fields of a shard's meta for all quotas that are set: defaults, and the shared quotas of projects and
    organisations."""
    fields: dict[str, str] = {}
    if default := {name: value for name, value in quotas.get(NO_TENANT, {}).items() if name in VALKEY_QUOTAS}:
        fields["quota"] = pack_quotas(default, NONE)
    for tenant, values in quotas.items():
        names = [name for name in VALKEY_QUOTAS if values.get(name) is not None]
        if names and tenant.level in ("organisation", "project"):
            part = ":".join(keys.encode(name) for name in (tenant.org, tenant.project) if name)
            fields[f"{SHARED}:{part}"] = " ".join(names)
            if Quota.WARM_BYTES in names:
                fields[f"{SHARED_BYTES}:{part}"] = str(values[Quota.WARM_BYTES])
    if markers := sorted(field for field in fields if field.startswith(SHARED)):
        fields[SHARED] = " ".join(marker.replace(" ", "%20") for marker in markers)
    return fields


def read_shared(client: Valkey, shard: int) -> dict[str, str]:
    """Return the current values of the fields that `build_shared_fields` describes."""
    first: Any = client.hmget(keys.meta(shard), "quota", SHARED)
    fields = {name: value.decode() for name, value in zip(("quota", SHARED), first, strict=True) if value is not None}
    markers = [marker.replace("%20", " ") for marker in fields.get(SHARED, "").split()]
    values: Any = client.hmget(keys.meta(shard), *markers) if markers else []
    return fields | {name: value.decode() for name, value in zip(markers, values, strict=True) if value is not None}


def store_shared(client: Valkey, shard: int, before: Mapping[str, str], fields: Mapping[str, str]) -> None:
    """Write the fields that differ from `before`, and delete those that are in `before` only."""
    if changed := {name: value for name, value in fields.items() if before.get(name) != value}:
        client.hset(keys.meta(shard), mapping=cast(Any, changed))
    if removed := before.keys() - fields.keys():
        client.hdel(keys.meta(shard), *removed)


@dataclass(frozen=True)
class WarmUsage:
    """Usage of the quotas that Valkey enforces by one environment, summed from its queues."""

    used: Mapping[str, int]  # for each of MEASURED
    refused: Mapping[str, int]  # quota → number of refusals
    share: Mapping[str, int]  # quota of its project or organisation → its share


def read_warm_usage(client: Valkey, shards: int, envs: Sequence[EnvRef]) -> list[WarmUsage]:
    with translate_errors():
        pipeline = client.pipeline(transaction=False)
        for env in envs:
            pipeline.smembers(keys.env_names(env.shard(shards), env))
        names: list[Any] = pipeline.execute()
        pipeline = client.pipeline(transaction=False)
        for env, queues in zip(envs, names, strict=True):
            shard = env.shard(shards)
            pipeline.hgetall(keys.env(shard, env))
            for queue in sorted(queues):
                key = f"{keys.prefix(shard)}q:{keys.env_part(env)}:{queue.decode()}"
                pipeline.hmget(key, "ready", "warm_scheduled", "running", "warm_bytes")
        answers = iter(pipeline.execute())
    return [_sum_usage(next(answers), list(islice(answers, len(queues)))) for queues in names]


def _sum_usage(fields: dict[bytes, bytes], queues: list[list[bytes | None]]) -> WarmUsage:
    rows = [[int(value or 0) for value in values] for values in queues]
    refused = {
        name.decode().removeprefix(REFUSED): int(count)
        for name, count in fields.items()
        if name.startswith(REFUSED.encode())
    }
    share = _parse_share(fields.get(b"share", b"").decode().split())
    jobs = sum(ready + scheduled + running for ready, scheduled, running, _ in rows)
    numbers = (jobs, sum(size for *_, size in rows), len(rows), sum(row[2] for row in rows))
    return WarmUsage(dict(zip(MEASURED, numbers, strict=True)), refused, share)


@dataclass(frozen=True)
class EnvironmentUsage:
    """Usage of an environment as counted in its hash. Scripts of older clients do not count it."""

    used: Mapping[str, int]  # for each of MEASURED
    share_words: Sequence[str]  # empty: it has no shares
    share: Mapping[str, int]
    is_enqueuing: bool  # it used its enqueue rate within ENQUEUING_WITHIN_MS
    waiting: int  # ready jobs
    needed_bytes: int  # for a job that waits in PostgreSQL because it is larger than the share; 0: there is none


ENQUEUING_WITHIN_MS = 2000
NEED_VALID_MS = 30_000
"""How long `share_need` is valid: the mover renews it within that time."""


ENVIRONMENT_FIELDS = ("jobs", "bytes", "running", "share", "rate_at", "depth", "share_need")


def read_environment_usage(client: Valkey, shard: int, envs: Sequence[EnvRef]) -> dict[EnvRef, EnvironmentUsage]:
    """Return the usage of environments of one shard, read in one round trip."""
    clock: Any = find_node(client, keys.meta(shard)).time()
    now_ms = clock[0] * 1000
    pipeline = client.pipeline(transaction=False)
    for env in envs:
        pipeline.hmget(keys.env(shard, env), *ENVIRONMENT_FIELDS)
        pipeline.scard(keys.env_names(shard, env))
    answers: list[Any] = pipeline.execute()
    usage: dict[EnvRef, EnvironmentUsage] = {}
    for env, values, queues in zip(envs, answers[::2], answers[1::2], strict=True):
        jobs, size, running, share, rate_at, depth, need = values
        numbers = (int(jobs or 0), int(size or 0), queues, int(running or 0))
        words = (share or b"").decode().split()[: len(VALKEY_QUOTAS)]
        is_enqueuing = float(rate_at or 0) > now_ms - ENQUEUING_WITHIN_MS
        used = {str(name): number for name, number in zip(MEASURED, numbers, strict=True)}
        needed_bytes, needed_at = (int(word) for word in (need or b"0 0").split())
        if needed_at < now_ms - NEED_VALID_MS:
            needed_bytes = 0
        usage[env] = EnvironmentUsage(used, words, _parse_share(words), is_enqueuing, int(depth or 0), needed_bytes)
    return usage


def _parse_share(words: Sequence[str]) -> dict[str, int]:
    return {str(name): int(word) for name, word in zip(VALKEY_QUOTAS, words, strict=False) if word != NONE}


def count_refusal(client: Valkey, shards: int, env: EnvRef, quota: str) -> None:
    """Count a refusal by a quota that is enforced outside of Valkey. Not counted for an environment without queues."""
    key = keys.env(env.shard(shards), env)
    with translate_errors():
        if client.hexists(key, "depth"):
            client.hincrby(key, f"{REFUSED}{quota}", 1)
