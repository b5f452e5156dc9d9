"""Stores the bounds and the default quotas of the settings on the servers, where they apply to every client.

A process whose file, environment or flags set a bound stores it when it starts; the last process to start wins.
Defaults are not stored at start, so a process without settings changes nothing. `headrace config apply` stores all
effective bounds, including defaults.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from threading import Thread
from typing import cast

from headrace.app.clients import build_queue_options
from headrace.app.endpoints import resolve_endpoints
from headrace.cli.queue_client import open_optional_tiers
from headrace.cold.quota_records import read_tenant_quotas
from headrace.cold.quotas import QuotaManager
from headrace.errors import HeadraceError
from headrace.model.quotas import DEFAULT_TENANT, Quota
from headrace.queue.bounds import NO_BOUNDS, StoredBounds, store_bounds
from headrace.queue.client import SyncClient
from headrace.settings import SETTINGS, LoadedSettings
from headrace.valkey.connect import ScriptError

log = logging.getLogger(__name__)

SETTING_KEYS = {
    "max_items": "queue.warm_max_items",
    "max_bytes": "queue.warm_max_bytes",
    "shard_bytes": "queue.shard_max_bytes",
    "stream_maxlen": "metrics.stream_maxlen",
}
"""Name of a bound → key of the setting that it is stored from."""

RETRY_S = 1.0

BoundChanges = dict[str, tuple[int | None, int | None]]
"""Key of a setting → the value stored before (None: not stored) and the value stored now."""


def select_bounds(loaded: LoadedSettings, *, defaults: bool) -> StoredBounds:
    """Return the bounds of the settings; without `defaults`, only those set by a file, the environment or a flag."""
    return StoredBounds(**_select_numbers(loaded, SETTING_KEYS, defaults=defaults))


def apply_bounds(loaded: LoadedSettings, *, defaults: bool) -> BoundChanges:
    """Store the bounds of the settings in Valkey, and return those that changed."""
    given = select_bounds(loaded, defaults=defaults)
    if given == NO_BOUNDS:
        return {}
    settings = loaded.settings
    with SyncClient(resolve_endpoints(settings, "redis").redis, build_queue_options(settings)) as client:
        changed = store_bounds(client.redis, client.shards, given)
    return {SETTING_KEYS[name]: values for name, values in changed.items()}


def select_quotas(loaded: LoadedSettings) -> dict[str, int | None]:
    """Return the default quotas set by a file, the environment or a flag.

    Quotas that are not set there are left out: operators may have set them with `headrace quotas`, and a machine
    without the setting must not remove them.
    """
    return _select_numbers(loaded, {str(name): f"quotas.{name}" for name in Quota}, defaults=False)


def _select_numbers(loaded: LoadedSettings, keys: Mapping[str, str], *, defaults: bool) -> dict[str, int | None]:
    given = {
        name: SETTINGS[key].get_value(loaded.settings)
        for name, key in keys.items()
        if defaults or loaded.origins[key].source != "default"
    }
    return cast("dict[str, int | None]", given)  # these settings are whole numbers


def apply_quotas(loaded: LoadedSettings) -> BoundChanges:
    """Store the default quotas in PostgreSQL and Valkey, and return those that changed.

    Without PostgreSQL, quotas are not enforced: logs a warning and returns nothing.
    """
    given = select_quotas(loaded)
    if not given:
        return {}
    with open_optional_tiers(loaded.settings) as tiers:
        if tiers is None:
            log.warning(
                "%s: not enforced, because quotas are stored in PostgreSQL and postgres.url is not set",
                ", ".join(f"quotas.{name}" for name in given),
                extra={"action": "bounds"},
            )
            return {}
        with tiers.store.transaction() as conn:
            before = read_tenant_quotas(conn, DEFAULT_TENANT)
        changed = {name: value for name, value in given.items() if before.get(name) != value}
        if changed:
            kept = {name: value for name, value in changed.items() if value is not None}
            QuotaManager(tiers).update(DEFAULT_TENANT, kept, changed.keys() - kept.keys())
        return {f"quotas.{name}": (before.get(name), value) for name, value in changed.items()}


def apply_bounds_at_start(loaded: LoadedSettings) -> None:
    """Store the bounds and default quotas of this process in a background thread.

    The thread retries until the servers respond, so that the process starts even if they are unavailable.
    """
    if select_bounds(loaded, defaults=False) != NO_BOUNDS or select_quotas(loaded):
        Thread(target=_apply_until_stored, args=[loaded], name="bounds", daemon=True).start()


def _apply_until_stored(loaded: LoadedSettings) -> None:
    while True:
        try:
            changed = {**apply_bounds(loaded, defaults=False), **apply_quotas(loaded)}
            return log_changes(changed, loaded)
        except (HeadraceError, ScriptError) as error:
            log.warning("could not store bounds from the settings: %s", error, extra={"action": "unavailable"})
            time.sleep(RETRY_S)


def log_changes(changed: BoundChanges, loaded: LoadedSettings) -> None:
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
