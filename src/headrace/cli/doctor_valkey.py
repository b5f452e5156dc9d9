"""Checks of `headrace doctor` on Valkey: eviction, persistence and quarantined entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.cli.findings import Finding
from headrace.errors import HeadraceError
from headrace.queue import keys
from headrace.queue.queue import read_shards
from headrace.valkey.connect import available, connect, node_of


def examine_valkey(url: str, given_shards: int | None) -> Iterator[Finding]:
    try:
        with connect(url) as client:
            shards = read_shards(client, given_shards)
        infos = _info(url, shards)
    except HeadraceError as error:
        yield Finding("redis settings", False, "unknown", str(error))
        return
    yield quarantine(_count_quarantined(url, shards))
    yield eviction({str(info["maxmemory_policy"]) for info in infos if "maxmemory_policy" in info})
    yield persistence({str(info["aof_enabled"]) for info in infos if "aof_enabled" in info})


def _info(url: str, shards: int) -> list[dict[str, Any]]:
    """Return INFO of each server that holds a shard. CONFIG is not used: hosted servers often refuse it."""
    with available(), connect(url) as client:
        servers = {id(node): node for node in (node_of(client, keys.meta(shard)) for shard in range(shards))}
        infos: list[Any] = [server.info() for server in servers.values()]
    return infos


def _count_quarantined(url: str, shards: int) -> int:
    with available(), connect(url) as client:
        found: list[Any] = [client.hget(keys.meta(shard), "quarantined") for shard in range(shards)]
    return sum(int(count or 0) for count in found)


def quarantine(count: int) -> Finding:
    """Check the number of malformed entries that maintenance has quarantined so far."""
    if not count:
        return Finding("malformed entries", True, "none")
    advice = "See the keys hr:{SHARD}:quarantine: each member names an entry and the problem with it."
    return Finding("malformed entries", False, f"{count} quarantined", advice)


def eviction(policies: set[str]) -> Finding:
    """Check the eviction policy.

    `allkeys-…` fails, because a full server drops jobs. `volatile-…` is only advised against, because it evicts only
    keys with an expiry, such as the ids of finished jobs.
    """
    found = ", ".join(sorted(policies)) or "not reported"
    if any(policy.startswith("allkeys") for policy in policies):
        advice = "Set maxmemory-policy to noeviction: with this policy a full server silently drops accepted jobs."
        return Finding("redis maxmemory-policy", False, found, advice)
    if policies - {"noeviction"}:
        advice = "Prefer noeviction: with this policy a full server expires finished job ids and worker entries early."
        return Finding("redis maxmemory-policy", True, found, advice)
    return Finding("redis maxmemory-policy", True, found)


def persistence(enabled: set[str]) -> Finding:
    """Check the append-only file. A disabled one is only advised against: replicas may provide durability."""
    if enabled - {"1"}:
        advice = "Prefer appendonly yes: without it a restart loses the jobs accepted since the last RDB snapshot."
        return Finding("redis appendonly", True, "no", advice)
    return Finding("redis appendonly", True, "yes" if enabled else "not reported")
