"""Writes the bounds and the default quotas of the settings into the servers, where they hold for every client.

Which settings win: a process that has a bound in its file, environment or flags stores it when it starts, and the last
one to start wins. A default is never stored at a start, so a process without settings changes nothing;
`headrace config apply` stores all bounds in effect, defaults too.
"""

from __future__ import annotations

import logging
import time
from threading import Thread

from headrace.cli.client import open_tiers, queue_options
from headrace.cli.endpoints import find_endpoints
from headrace.cold.quota_records import quotas_of
from headrace.cold.quotas import QuotaKeeper
from headrace.errors import HeadraceError
from headrace.model.quotas import DEFAULT, Quota
from headrace.queue.bounds import NO_BOUNDS, Bounds, store_bounds
from headrace.queue.queue import SyncClient
from headrace.settings import SETTINGS, Loaded
from headrace.valkey.connect import ScriptError

log = logging.getLogger(__name__)

KEYS = {
    "max_items": "queue.warm_max_items",
    "max_bytes": "queue.warm_max_bytes",
    "shard_bytes": "queue.shard_max_bytes",
    "stream_maxlen": "metrics.stream_maxlen",
}
"""Bound → the setting it is written from."""

RETRY_S = 1.0

Changes = dict[str, tuple[int | None, int | None]]
"""Setting → stored before (None: not stored), stored now."""


def bounds_in(loaded: Loaded, *, defaults: bool) -> Bounds:
    """Return the bounds of the settings; without `defaults` only those that a file, the environment or a flag gives."""
    given = {
        name: SETTINGS[key].value_in(loaded.settings)
        for name, key in KEYS.items()
        if defaults or loaded.origins[key].source != "default"
    }
    return Bounds(**given)  # pyright: ignore[reportArgumentType]  # the kinds of these settings are whole numbers


def apply_bounds(loaded: Loaded, *, defaults: bool) -> Changes:
    given = bounds_in(loaded, defaults=defaults)
    if given == NO_BOUNDS:
        return {}
    settings = loaded.settings
    with SyncClient(find_endpoints(settings, "redis").redis, queue_options(settings)) as client:
        changed = store_bounds(client.redis, client.shards, given)
    return {KEYS[name]: values for name, values in changed.items()}


def quotas_in(loaded: Loaded) -> dict[str, int | None]:
    """Return the default quotas that a file, the environment or a flag gives. Never the others: operators may have set
    them with `headrace quotas`, and a machine without the setting must not lift them."""
    given: dict[str, int | None] = {}
    for name in Quota:
        key = f"quotas.{name}"
        if loaded.origins[key].source != "default":
            value = SETTINGS[key].value_in(loaded.settings)
            assert value is None or isinstance(value, int)
            given[str(name)] = value
    return given


def apply_quotas(loaded: Loaded) -> Changes:
    """Store default quotas, in PostgreSQL and Valkey. Without a PostgreSQL they are not enforced."""
    given = quotas_in(loaded)
    if not given:
        return {}
    tiers = open_tiers(loaded.settings)
    if tiers is None:
        log.warning(
            "%s: not enforced, because quotas are stored in PostgreSQL and postgres.url is not set",
            ", ".join(f"quotas.{name}" for name in given),
            extra={"action": "bounds"},
        )
        return {}
    try:
        with tiers.store.transaction() as conn:
            before = quotas_of(conn, DEFAULT)
        changed = {name: value for name, value in given.items() if before.get(name) != value}
        if changed:
            kept = {name: value for name, value in changed.items() if value is not None}
            QuotaKeeper(tiers).change(DEFAULT, kept, changed.keys() - kept.keys())
        return {f"quotas.{name}": (before.get(name), value) for name, value in changed.items()}
    finally:
        tiers.close()


def apply_bounds_at_start(loaded: Loaded) -> None:
    """Store the bounds and default quotas that this process was given, in a thread: a server may be away, and the
    process starts anyway."""
    if bounds_in(loaded, defaults=False) != NO_BOUNDS or quotas_in(loaded):
        Thread(target=_apply_until_stored, args=[loaded], name="bounds", daemon=True).start()


def _apply_until_stored(loaded: Loaded) -> None:
    while True:
        try:
            changed = {**apply_bounds(loaded, defaults=False), **apply_quotas(loaded)}
            return log_changes(changed, loaded)
        except (HeadraceError, ScriptError) as error:
            log.warning("could not store the bounds of the settings: %s", error, extra={"action": "unavailable"})
            time.sleep(RETRY_S)


def log_changes(changed: Changes, loaded: Loaded) -> None:
    for key, (before, after) in changed.items():
        if before is None:
            log.info("stored %s = %s for all clients", key, after, extra={"action": "bounds"})
        else:
            log.warning(
                "changed %s from %s to %s for all clients (%s); processes with other settings change it back when they "
                "start",
                *(key, before, after, loaded.origins[key]),
                extra={"action": "bounds"},
            )
