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
    read_cold_usage,
    read_tenant_quotas,
    remove_quotas,
)
from headrace.cold.settings import SettingsRestorer
from headrace.cold.shares import ShareAllocator
from headrace.cold.tiers import Tiers
from headrace.model.names import EnvRef
from headrace.model.quotas import DEFAULT_TENANT, VALKEY_QUOTAS, Quota, QuotaValues, TenantRef
from headrace.postgres.connect import Connection
from headrace.queue import keys
from headrace.queue.quotas import MEASURED, pack_quotas, read_warm_usage
from headrace.queue.state import index_environments, read_queue_parts
from headrace.valkey.connect import translate_errors

QUOTA = "quota"
"""Name of the setting of an environment that holds its quotas."""


@dataclass(frozen=True)
class QuotaUsage:
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


class QuotaManager:
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._store = tiers.store

    @translate_errors()
    def update(self, tenant: TenantRef, values: QuotaValues, unset: Collection[str] = ()) -> None:
        """Set quotas of a tenant, and remove those in `unset`, so that their defaults apply. Raises InvalidLimit."""
        check_quotas(tenant, values)
        check_quotas(DEFAULT_TENANT, dict.fromkeys(unset))
        with self._store.transaction() as conn:
            lock_tenant(conn, tenant)
            remove_quotas(conn, tenant, unset)
            put_quotas(conn, tenant, values)
            if (env := tenant.environment) is not None:
                self._record_setting(conn, env)
        if tenant.level in ("organisation", "project"):
            # Set the shares before Valkey requires them, so that existing environments need not wait for a share.
            if unset:
                self.publish(tenant)
            for shard in range(self._tiers.stubs.shards):
                index_environments(self._tiers.valkey, shard, force=True)
            ShareAllocator(self._tiers).run_round()
        self.publish(tenant)

    def publish(self, tenant: TenantRef) -> None:
        """Copy the quotas of a tenant from PostgreSQL to Valkey."""
        keeper, stubs = SettingsRestorer(self._tiers), self._tiers.stubs
        if (env := tenant.environment) is not None:
            keeper.restore_setting(stubs.find_shard(env), env, QUOTA)
        else:
            for shard in range(stubs.shards):
                keeper.restore_shared_quotas(shard)

    def _record_setting(self, conn: Connection, env: EnvRef) -> None:
        """Record the setting from which Valkey's copy is restored, in the transaction that changes the quotas."""
        own = {
            name: value
            for name, value in read_tenant_quotas(conn, TenantRef.from_environment(env)).items()
            if name in VALKEY_QUOTAS
        }
        self._store.put_settings(conn, env, {QUOTA: pack_quotas(own) if own else None})

    def describe(
        self,
        tenant: TenantRef,
        shows: Callable[[TenantRef], bool],
        count: Callable[[Connection, TenantRef], Mapping[str, int]],
    ) -> list[QuotaUsage]:
        """Return the quotas that apply to a tenant: all quotas of its own level, with or without a limit, and those
        that are set for its project and organisation. The usage is included where `shows` allows it; `count` returns
        the usage of quotas that other packages enforce."""
        levels = tenant.parents() or [DEFAULT_TENANT]
        counted = [level for level in levels if level.org and shows(level)]
        with self._store.transaction() as conn:
            quotas = list_quotas(conn)
            used = {level: {**read_cold_usage(conn, level), **count(conn, level)} for level in counted}
        warm, shares = self._read_warm_usage(counted, tenant)
        usage: list[QuotaUsage] = []
        for name in Quota:
            for level in levels:
                is_default = level.level == "environment" and name not in quotas.get(level, {})
                limit = quotas.get(DEFAULT_TENANT if is_default else level, {}).get(name)
                if level == tenant or limit is not None:
                    number = {**used.get(level, {}), **warm.get(level, {})}.get(name)
                    share = shares.get(name) if level != tenant else None
                    usage.append(QuotaUsage(name, limit, level, is_default and limit is not None, number, share))
        return usage

    def _read_warm_usage(
        self, tenants: Iterable[TenantRef], tenant: TenantRef
    ) -> tuple[dict[TenantRef, dict[str, int]], Mapping[str, int]]:
        """Return the usage in Valkey of each of `tenants`, and the shares of `tenant`."""
        own = tenant.environment
        envs = {env for each in tenants for env in self._find_environments(each)} | ({own} if own else set())
        ordered = sorted(envs)
        uses = dict(zip(ordered, read_warm_usage(self._tiers.valkey, self._tiers.stubs.shards, ordered), strict=True))
        sums: dict[TenantRef, dict[str, int]] = {}
        for each in tenants:
            covered = [use for env, use in uses.items() if each.covers(env)]
            sums[each] = {name: sum(use.used[name] for use in covered) for name in MEASURED}
        return sums, uses[own].share if own else {}

    def _find_environments(self, tenant: TenantRef) -> set[EnvRef]:
        """Return the environments of a tenant that ever had a queue, or the environment that it is."""
        if env := tenant.environment:
            return {env}
        prefix = keys.part_prefix(tenant.org or None, tenant.project or None)
        envs: set[EnvRef] = set()
        for shard in range(self._tiers.stubs.shards):
            parts = read_queue_parts(self._tiers.valkey, shard, prefix)
            envs |= {keys.parse_queue_part(part.decode()).environment for part in parts}
        return {env for env in envs if tenant.covers(env)}
