"""Checks of `headrace doctor` on Valkey: quarantined entries, missing tasks, eviction, persistence, memory, stored
bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.cli.bounds import SETTING_KEYS
from headrace.cli.doctor_checks import DoctorCheck
from headrace.cli.formatting import format_age, format_size
from headrace.errors import HeadraceError
from headrace.queue import keys
from headrace.queue.bounds import NO_BOUNDS, StoredBounds, read_bounds
from headrace.queue.client import read_shards
from headrace.queue.missing_tasks import MissingTaskRecord, read_all_missing_tasks
from headrace.queue.registry import read_workers
from headrace.queue.scripts import DEFAULT_CAPS, WarmCaps
from headrace.queue.server_memory import ServerMemory, read_server_memory
from headrace.settings import SETTINGS, Settings
from headrace.valkey.connect import connect, find_node, translate_errors

MAX_NAMED = 5
"""Maximum number of missing tasks that are named."""

MEMORY_WARNING_S = 3600.0

FORECAST_UNKNOWN = {
    "no limit": "no limit, so no forecast",
    "short window": "no forecast yet: measured for less than two minutes (the API and `headrace snapshot run` measure)",
    "no growth": "not growing",
}


def check_valkey(url: str, given_shards: int | None, caps: WarmCaps = DEFAULT_CAPS) -> Iterator[DoctorCheck]:
    try:
        with connect(url) as client:
            shards = read_shards(client, given_shards)
        infos = _read_info(url, shards)
    except HeadraceError as error:
        yield DoctorCheck("redis settings", False, "unknown", str(error))
        return
    yield check_quarantine(_count_quarantined(url, shards))
    yield check_missing_tasks(_read_missing_tasks(url, shards))
    yield check_eviction({str(info["maxmemory_policy"]) for info in infos if "maxmemory_policy" in info})
    yield check_persistence({str(info["aof_enabled"]) for info in infos if "aof_enabled" in info})
    yield from _check_memory(url, shards, caps)


def _check_memory(url: str, shards: int, caps: WarmCaps) -> Iterator[DoctorCheck]:
    try:
        with connect(url) as client:
            servers = read_server_memory(client, shards, caps)
    except HeadraceError as error:
        yield DoctorCheck("redis memory", False, "unknown", str(error))
        return
    yield from map(check_memory, servers)


def check_memory(server: ServerMemory) -> DoctorCheck:
    """Check the memory of a server. It fails if maxmemory is reached within MEMORY_WARNING_S, because new jobs are
    refused then. At the cap of Headrace, new jobs wait in PostgreSQL instead."""
    check = f"redis memory, shards {server.name}"
    forecast = server.forecast
    used = "usage not reported" if server.used_bytes is None else f"{format_size(server.used_bytes)} used"
    most = "no maxmemory" if server.max_bytes is None else f"maxmemory {format_size(server.max_bytes)}"
    full_in_s = forecast.full_in_s
    if full_in_s is None:
        return DoctorCheck(check, True, f"{used}, {most}; {FORECAST_UNKNOWN[forecast.unknown or 'no growth']}")
    reached = "reached" if not full_in_s else f"reached in {format_age(int(full_in_s * 1000))} at the current growth"
    found = f"{used}, {most}; {forecast.limit} {reached}"
    if forecast.limit == "maxmemory":
        advice = "Add memory, add workers, or lower queue.shard_max_bytes: at maxmemory, new jobs are refused."
        return DoctorCheck(check, full_in_s > MEMORY_WARNING_S, found, advice)
    advice = "At queue.shard_max_bytes, new jobs wait in PostgreSQL."
    return DoctorCheck(check, True, found, advice if full_in_s <= MEMORY_WARNING_S else "")


def _read_info(url: str, shards: int) -> list[dict[str, Any]]:
    """Return INFO of each server that holds a shard. CONFIG is not used: hosted servers often refuse it."""
    with translate_errors(), connect(url) as client:
        servers = {id(node): node for node in (find_node(client, keys.meta(shard)) for shard in range(shards))}
        infos: list[Any] = [server.info() for server in servers.values()]
    return infos


def _count_quarantined(url: str, shards: int) -> int:
    with translate_errors(), connect(url) as client:
        found: list[Any] = [client.hget(keys.meta(shard), "quarantined") for shard in range(shards)]
    return sum(int(count or 0) for count in found)


def check_quarantine(count: int) -> DoctorCheck:
    """Check the number of malformed entries that maintenance has quarantined so far."""
    if not count:
        return DoctorCheck("malformed entries", True, "none")
    advice = "See the keys hr:{SHARD}:quarantine: each member names an entry and the problem with it."
    return DoctorCheck("malformed entries", False, f"{count} quarantined", advice)


def _read_missing_tasks(url: str, shards: int) -> Sequence[MissingTaskRecord]:
    with connect(url) as client:
        return read_all_missing_tasks(client, shards, read_workers(client).tasks)


def check_missing_tasks(missing: Sequence[MissingTaskRecord]) -> DoctorCheck:
    """Check that some live worker has the task of every job that was deferred lately."""
    if not missing:
        return DoctorCheck("missing tasks", True, "none")
    names = [f"{each.task} (queue {each.queue.queue})" for each in missing]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    advice = "No live worker has these tasks: start one that does, or remove the jobs."
    return DoctorCheck("missing tasks", False, ", ".join(names[:MAX_NAMED]) + more, advice)


def check_eviction(policies: set[str]) -> DoctorCheck:
    """Check the eviction policy.

    `allkeys-…` fails, because a full server drops jobs. `volatile-…` is only advised against, because it evicts only
    keys with an expiry, such as the ids of finished jobs.
    """
    found = ", ".join(sorted(policies)) or "not reported"
    if any(policy.startswith("allkeys") for policy in policies):
        advice = "Set maxmemory-policy to noeviction: with this policy a full server silently drops accepted jobs."
        return DoctorCheck("redis maxmemory-policy", False, found, advice)
    if policies - {"noeviction"}:
        advice = "Prefer noeviction: with this policy a full server expires finished job ids and worker entries early."
        return DoctorCheck("redis maxmemory-policy", True, found, advice)
    return DoctorCheck("redis maxmemory-policy", True, found)


def check_persistence(enabled: set[str]) -> DoctorCheck:
    """Check the append-only file. A disabled one is only advised against: replicas may provide durability."""
    if enabled - {"1"}:
        advice = "Prefer appendonly yes: without it a restart loses the jobs accepted since the last RDB snapshot."
        return DoctorCheck("redis appendonly", True, "no", advice)
    return DoctorCheck("redis appendonly", True, "yes" if enabled else "not reported")


def check_bounds(url: str, settings: Settings) -> DoctorCheck:
    """Check the stored bounds, which apply to every client."""
    try:
        with connect(url) as client:
            stored = read_bounds(client)
    except HeadraceError as error:
        return DoctorCheck("stored bounds", False, "unknown", str(error))
    if stored == NO_BOUNDS:
        return DoctorCheck(
            "stored bounds",
            True,
            "none",
            "Each client uses the caps of its own settings; `headrace config apply` stores these for all.",
        )
    here = {name: SETTINGS[key].get_value(settings) for name, key in SETTING_KEYS.items()}
    other = [
        f"{SETTING_KEYS[name]} = {value} (here {here[name]})"
        for name, value in vars(stored).items()
        if value not in (None, here[name])
    ]
    advice = f"Stored: {', '.join(other)}. Stored values apply; `headrace config apply` stores the settings used here."
    return DoctorCheck("stored bounds", True, describe_bounds(stored), advice if other else "")


def describe_bounds(stored: StoredBounds) -> str:
    parts = [
        None if stored.max_items is None else f"{stored.max_items} jobs per queue",
        None if stored.max_bytes is None else f"{format_size(stored.max_bytes)} per queue",
        None
        if stored.shard_bytes is None
        else f"{format_size(stored.shard_bytes) if stored.shard_bytes else 'no limit'} per shard",
        None if stored.stream_maxlen is None else f"{stored.stream_maxlen} metric events per shard",
    ]
    return ", ".join(part for part in parts if part is not None)
