"""The part of `headrace doctor` that asks a Valkey whether it keeps what it has accepted."""

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
        told = _info(url, shards)
    except HeadraceError as error:
        yield Finding("redis settings", False, "not known", str(error))
        return
    yield quarantine(_count_quarantined(url, shards))
    yield eviction({str(info["maxmemory_policy"]) for info in told if "maxmemory_policy" in info})
    yield persistence({str(info["aof_enabled"]) for info in told if "aof_enabled" in info})


def _info(url: str, shards: int) -> list[dict[str, Any]]:
    """INFO of each server that holds a shard. Not CONFIG, which hosted servers often refuse."""
    with available(), connect(url) as client:
        servers = {id(node): node for node in (node_of(client, keys.meta(shard)) for shard in range(shards))}
        told: list[Any] = [server.info() for server in servers.values()]
    return told


def _count_quarantined(url: str, shards: int) -> int:
    with available(), connect(url) as client:
        found: list[Any] = [client.hget(keys.meta(shard), "quarantined") for shard in range(shards)]
    return sum(int(count or 0) for count in found)


def quarantine(count: int) -> Finding:
    """Malformed entries that maintenance has taken out so far."""
    if not count:
        return Finding("malformed entries", True, "none")
    advice = "Look at the keys hr:{SHARD}:quarantine: each member names an entry and what is wrong with it."
    return Finding("malformed entries", False, f"{count} quarantined", advice)


def eviction(policies: set[str]) -> Finding:
    """`allkeys-…` removes jobs when memory is full; `volatile-…` only what has an end anyway: ids of done jobs."""
    found = ", ".join(sorted(policies)) or "not told"
    if any(policy.startswith("allkeys") for policy in policies):
        advice = "Set maxmemory-policy noeviction: with this one a full server drops accepted jobs without a word."
        return Finding("redis maxmemory-policy", False, found, advice)
    if policies - {"noeviction"}:
        advice = "Better noeviction: with this one a full server forgets early which jobs are done and who is working."
        return Finding("redis maxmemory-policy", True, found, advice)
    return Finding("redis maxmemory-policy", True, found)


def persistence(enabled: set[str]) -> Finding:
    """Not a failure: some keep their jobs by replicas, some do not mind."""
    if enabled - {"1"}:
        advice = "Better appendonly yes: without it a restart loses the jobs accepted since the last snapshot."
        return Finding("redis appendonly", True, "no", advice)
    return Finding("redis appendonly", True, "yes" if enabled else "not told")
