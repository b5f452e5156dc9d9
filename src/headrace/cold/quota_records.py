"""Quotas in PostgreSQL: the record of all quotas, and exact enforcement of those on data in PostgreSQL.

A transaction that adds data locks the quotas of the tenant, adds, counts the result, and is rolled back if it exceeds a
quota. Two such transactions of a tenant wait for each other, from `find_and_lock_quotas` to the commit. Locks are
always taken in the same order: the row in cold_movers, organisation, project, environment, then the queue's row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.cold.queries import QUERIES
from headrace.errors import InvalidLimit, QuotaExceeded
from headrace.model.quotas import DEFAULT_TENANT, MAX_QUOTA, Quota, QuotaValues, TenantRef
from headrace.postgres.connect import Connection

QuotaRow = tuple[str, str, str, str, int | None]
"""org, project, env, name, value"""


@dataclass(frozen=True)
class EffectiveQuota:
    tenant: TenantRef  # the tenant whose usage it limits
    name: str
    value: int
    is_default: bool  # the value is the default of every environment


def resolve_quotas(tenant: TenantRef, rows: Iterable[QuotaRow]) -> list[EffectiveQuota]:
    """Return the quotas in `rows` that apply to a tenant: those of its organisation first, of its environment last."""
    values = {(TenantRef(*row[:3]), row[3]): row[4] for row in rows}
    names = sorted({name for _, name in values})
    quotas: list[EffectiveQuota] = []
    for parent in tenant.parents():
        for name in names:
            is_default = parent.level == "environment" and (parent, name) not in values
            value = values.get((DEFAULT_TENANT if is_default else parent, name))
            if value is not None:
                quotas.append(EffectiveQuota(parent, name, value, is_default))
    return quotas


def lock_tenants(conn: Connection, quotas: Iterable[EffectiveQuota]) -> None:
    """Block other transactions that add to the usage of these quotas until this transaction ends. The quotas must be in
    the order of `resolve_quotas`."""
    for tenant in dict.fromkeys(quota.tenant for quota in quotas):
        lock_tenant(conn, tenant)


def lock_tenant(conn: Connection, tenant: TenantRef) -> None:
    conn.execute(QUERIES["lock_quota"], {"tenant": "\n".join(vars(tenant).values())})


def find_and_lock_quotas(conn: Connection, tenant: TenantRef, names: Sequence[str]) -> list[EffectiveQuota]:
    rows = conn.execute(QUERIES["find_quotas"], {**vars(tenant), "names": list(names)}).fetchall()
    quotas = resolve_quotas(tenant, rows)
    lock_tenants(conn, quotas)
    return quotas


def raise_if_exceeded(
    quotas: Iterable[EffectiveQuota], count: Callable[[TenantRef], Mapping[str, int]], added: Mapping[str, int]
) -> None:
    """Raise QuotaExceeded if the usage of a tenant exceeds a quota, and this transaction `added` to it."""
    counts: dict[TenantRef, Mapping[str, int]] = {}
    for quota in quotas:
        if not added.get(quota.name):
            continue
        if quota.tenant not in counts:
            counts[quota.tenant] = count(quota.tenant)
        if (used := counts[quota.tenant][quota.name]) > quota.value:
            raise QuotaExceeded(quota.name, str(quota.tenant), quota.value, used - added[quota.name])


def read_cold_usage(conn: Connection, tenant: TenantRef) -> dict[str, int]:
    row = conn.execute(QUERIES["read_cold_use"], vars(tenant)).fetchone()
    assert row is not None
    return {Quota.COLD_JOBS: int(row[0]), Quota.COLD_BYTES: int(row[1])}


def list_quotas(conn: Connection) -> dict[TenantRef, dict[str, int | None]]:
    quotas: dict[TenantRef, dict[str, int | None]] = {}
    for org, project, env, name, value in conn.execute(QUERIES["list_quotas"]):
        quotas.setdefault(TenantRef(org, project, env), {})[name] = value
    return quotas


def read_tenant_quotas(conn: Connection, tenant: TenantRef) -> dict[str, int | None]:
    """Return the quotas that are set for exactly this tenant."""
    return dict(conn.execute(QUERIES["list_tenant_quotas"], vars(tenant)).fetchall())


def put_quotas(conn: Connection, tenant: TenantRef, values: QuotaValues) -> None:
    for name, value in values.items():
        conn.execute(QUERIES["put_quota"], {**vars(tenant), "name": name, "value": value})


def remove_quotas(conn: Connection, tenant: TenantRef, names: Iterable[str]) -> None:
    for name in names:
        conn.execute(QUERIES["delete_quota"], {**vars(tenant), "name": name})


def check_quotas(tenant: TenantRef, values: QuotaValues) -> None:
    """Raise InvalidLimit for unknown names and values out of range."""
    for name, value in values.items():
        if name not in tuple(Quota):
            raise InvalidLimit(f"There is no quota {name!r}. Nothing was changed. The quotas are: {', '.join(Quota)}.")
        least = 1 if name in (Quota.ENQUEUE_RATE, Quota.ENQUEUE_BURST) else 0
        if value is not None and not least <= value <= MAX_QUOTA:
            raise InvalidLimit(
                f"The quota {name} cannot be {value}: {least} to {MAX_QUOTA}, or none. Nothing was changed."
            )
        if value is None and tenant.level not in ("environment", "default"):
            raise InvalidLimit(
                f"A {tenant.level} has no default that `none` could replace. Nothing was changed. Unset {name} instead."
            )
