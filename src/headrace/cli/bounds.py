"""Stores the bounds and the default quotas of the settings on the servers, where they apply to every client.

A process whose file, environment or flags set a bound stores it when it starts; the last process to start wins.
Defaults are not stored at start, so a process without settings changes nothing. `headrace config apply` stores all
effective bounds, including defaults.
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
"""Name of a bound → key of the setting that it is stored from."""

RETRY_S = 1.0

Changes = dict[str, tuple[int | None, int | None]]
"""Key of a setting → the value stored before (None: not stored) and the value stored now."""


def bounds_in(loaded: Loaded, *, defaults: bool) -> Bounds:
    """Return the bounds of the settings; without `defaults`, only those set by a file, the environment or a flag."""
    given = {
        name: SETTINGS[key].value_in(loaded.settings)
        for name, key in KEYS.items()
        if defaults or loaded.origins[key].source != "default"
    }
    return Bounds(**given)  # pyright: ignore[reportArgumentType]  # these settings are whole numbers


def apply_bounds(loaded: Loaded, *, defaults: bool) -> Changes:
    """Store the bounds of the settings in Valkey, and return those that changed."""
    given = bounds_in(loaded, defaults=defaults)
    if given == NO_BOUNDS:
        return {}
    settings = loaded.settings
    with SyncClient(find_endpoints(settings, "redis").redis, queue_options(settings)) as client:
        changed = store_bounds(client.redis, client.shards, given)
    return {KEYS[name]: values for name, values in changed.items()}


def quotas_in(loaded: Loaded) -> dict[str, int | None]:
    """Return the default quotas set by a file, the environment or a flag.

    Quotas that are not set there are left out: operators may have set them with `headrace quotas`, and a machine
    without the setting must not remove them.
    """
    given: dict[str, int | None] = {}
    for name in Quota:
        key = f"quotas.{name}"
        if loaded.origins[key].source != "default":
            value = SETTINGS[key].value_in(loaded.settings)
            assert value is None or isinstance(value, int)
            given[str(name)] = value
    return given


def apply_quotas(loaded: Loaded) -> Changes:
    """Store the default quotas in PostgreSQL and Valkey, and return those that changed.

    Without PostgreSQL, quotas are not enforced: logs a warning and returns nothing.
    """
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
    """Store the bounds and default quotas of this process in a background thread.

    The thread retries until the servers respond, so that the process starts even if they are unavailable.
    """
    if bounds_in(loaded, defaults=False) != NO_BOUNDS or quotas_in(loaded):
        Thread(target=_apply_until_stored, args=[loaded], name="bounds", daemon=True).start()


def _apply_until_stored(loaded: Loaded) -> None:
    while True:
        try:
            changed = {**apply_bounds(loaded, defaults=False), **apply_quotas(loaded)}
            return log_changes(changed, loaded)
        except (HeadraceError, ScriptError) as error:
            log.warning("could not store bounds from the settings: %s", error, extra={"action": "unavailable"})
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
