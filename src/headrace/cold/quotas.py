"""Set quotas: in PostgreSQL, which has the record, then in Valkey, where scripts enforce them.

Quotas of an environment are stored as its setting `quota`, beside limits, pauses and caps, and are restored with them
after a Valkey has restarted or failed over (`SettingsRestorer`). Defaults and the names of shared quotas are in each
shard's meta, written here and restored at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.cold.quota_records import (
    check_quotas,
    list_quotas,
    lock_tenant,
    put_quotas,
    quotas_of,
    read_cold_use,
    remove_quotas,
)
from headrace.cold.settings import SettingsKeeper
from headrace.cold.shares import ShareKeeper
from headrace.cold.tiers import Tiers
from headrace.model.names import EnvRef
from headrace.model.quotas import DEFAULT, IN_VALKEY, Quota, TenantRef, Values
from headrace.postgres.connect import Connection
from headrace.queue import keys
from headrace.queue.quotas import MEASURED, WarmUse, pack_quotas, read_warm_use
from headrace.queue.state import list_environments, read_parts
from headrace.valkey.connect import available

QUOTA = "quota"
"""Name of the setting of an environment that holds its quotas."""

Counts = Mapping[str, int]
"""Quota → usage."""


@dataclass(frozen=True)
class QuotaUse:
    """A quota that applies to a tenant, and its usage."""

    name: str
    limit: int | None  # None: there is none
    tenant: TenantRef  # the tenant whose usage it limits
    is_default: bool
    used: int | None  # None: a rate, or not visible to the reader
    share: int | None = None  # current share of the environment in a quota of its project or organisation

    @property
    def source(self) -> str | None:
        """Return "own" or "default"; None if there is no quota."""
        return None if self.limit is None else "default" if self.is_default else "own"


class QuotaKeeper:
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._store = tiers.store

    def change(self, tenant: TenantRef, values: Values, unset: Collection[str] = ()) -> None:
        """Set quotas of a tenant, and remove those in `unset`, so that their defaults apply. Raises InvalidLimit."""
        check_quotas(tenant, values)
        check_quotas(DEFAULT, dict.fromkeys(unset))
        with self._store.transaction() as conn:
            lock_tenant(conn, tenant)
            remove_quotas(conn, tenant, unset)
            put_quotas(conn, tenant, values)
            if (env := tenant.environment) is not None:
                self._record(conn, env)
        if tenant.level in ("organisation", "project"):
            # Set the shares before Valkey requires them, so that existing environments need not wait for a share.
            if unset:
                self.publish(tenant)
            for shard in range(self._tiers.stubs.shards):
                with available():
                    list_environments(self._tiers.valkey, shard, again=True)
            ShareKeeper(self._tiers).run_round()
        self.publish(tenant)

    def publish(self, tenant: TenantRef) -> None:
        """Copy the quotas of a tenant from PostgreSQL to Valkey."""
        keeper, stubs = SettingsKeeper(self._tiers), self._tiers.stubs
        if (env := tenant.environment) is not None:
            keeper.restore_one(stubs.shard_of(env), env, QUOTA)
        else:
            for shard in range(stubs.shards):
                keeper.restore_shared_quotas(shard)

    def _record(self, conn: Connection, env: EnvRef) -> None:
        """Record the setting from which Valkey's copy is restored, in the transaction that changes the quotas."""
        own = {name: value for name, value in quotas_of(conn, TenantRef.of(env)).items() if name in IN_VALKEY}
        self._store.put_settings(conn, env, {QUOTA: pack_quotas(own) if own else None})

    def describe(
        self, tenant: TenantRef, shows: Callable[[TenantRef], bool], count: Callable[[Connection, TenantRef], Counts]
    ) -> list[QuotaUse]:
        """Return the quotas that apply to a tenant: all quotas of its own level, with or without a limit, and those
        that are set for its project and organisation. The usage is included where `shows` allows it; `count` returns
        the usage of quotas that other packages enforce."""
        levels = tenant.parents() or [DEFAULT]
        counted = [level for level in levels if level.org and shows(level)]
        with self._store.transaction() as conn:
            quotas = list_quotas(conn)
            used = {level: {**read_cold_use(conn, level), **count(conn, level)} for level in counted}
        warm, shares = self._read_warm(counted, tenant)
        usage: list[QuotaUse] = []
        for name in Quota:
            for level in levels:
                is_default = level.level == "environment" and name not in quotas.get(level, {})
                limit = quotas.get(DEFAULT if is_default else level, {}).get(name)
                if level == tenant or limit is not None:
                    number = {**used.get(level, {}), **warm.get(level, {})}.get(name)
                    share = shares.get(name) if level != tenant else None
                    usage.append(QuotaUse(name, limit, level, is_default and limit is not None, number, share))
        return usage

    def _read_warm(
        self, tenants: Iterable[TenantRef], tenant: TenantRef
    ) -> tuple[dict[TenantRef, dict[str, int]], Mapping[str, int]]:
        """Return the usage in Valkey of each of `tenants`, and the shares of `tenant`."""
        own = tenant.environment
        envs = {env for each in tenants for env in self._environments(each)} | ({own} if own else set())
        uses = read_uses(self._tiers, sorted(envs))
        sums: dict[TenantRef, dict[str, int]] = {}
        for each in tenants:
            covered = [use for env, use in uses.items() if each.covers(env)]
            sums[each] = {name: sum(use.used[name] for use in covered) for name in MEASURED}
        return sums, uses[own].share if own else {}

    def _environments(self, tenant: TenantRef) -> set[EnvRef]:
        env = tenant.environment
        return read_environments(self._tiers, tenant) if env is None else {env}


def read_environments(tiers: Tiers, tenant: TenantRef) -> set[EnvRef]:
    """Return the environments of a tenant that ever had a queue."""
    prefix = keys.part_prefix(tenant.org or None, tenant.project or None)
    envs: set[EnvRef] = set()
    for shard in range(tiers.stubs.shards):
        parts = read_parts(tiers.valkey, shard, prefix)
        envs |= {keys.queue_of_part(part.decode()).environment for part in parts}
    return {env for env in envs if tenant.covers(env)}


def read_uses(tiers: Tiers, envs: list[EnvRef]) -> dict[EnvRef, WarmUse]:
    return dict(zip(envs, read_warm_use(tiers.valkey, tiers.stubs.shards, envs), strict=True))
