"""Metric families about quotas: limits, use and refusals per tenant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from headrace.cold.quota_records import list_quotas
from headrace.model.names import EnvRef
from headrace.model.quotas import DEFAULT, Quota, TenantRef, Values
from headrace.postgres.connect import available, connect
from headrace.queue.quotas import WarmUse, read_warm_use
from headrace.queue.state import QueueState
from headrace.snapshot.families import COUNTER, Described, Family
from headrace.snapshot.queries import QUERIES
from headrace.valkey.connect import Valkey

LABELS = ("org", "project", "env", "quota")
RATES = (Quota.ENQUEUE_RATE, Quota.ENQUEUE_BURST)

LIMIT = Described(
    "headrace_quota_limit",
    "Quota in force: for an environment, the lower of its quota and its share of those of its project and "
    "organisation; with an empty env, the quota of a project or organisation.",
    LABELS,
)
USED = Described("headrace_quota_used", "Current use of the quota; absent for rates.", LABELS)
REFUSED = Described("headrace_quota_refused_total", "Requests of an environment refused by a quota.", LABELS, COUNTER)
QUOTAS = (LIMIT, USED, REFUSED)


@dataclass(frozen=True)
class QuotaFigures:
    """Quotas, counts and use that the families are built from."""

    values: Mapping[TenantRef, Values]
    counts: Mapping[tuple[str, TenantRef], int] = field(default_factory=dict[tuple[str, TenantRef], int])
    uses: Mapping[EnvRef, WarmUse] = field(default_factory=dict[EnvRef, WarmUse])

    def use_of(self, tenant: TenantRef) -> WarmUse | None:
        """Return the use in Valkey of an environment; None for a project or organisation."""
        env = tenant.environment
        return None if env is None else self.uses.get(env)


NO_QUOTAS = QuotaFigures({})


def read_quotas(valkey: Valkey, shards: int, url: str, timeout_s: float, envs: Sequence[EnvRef]) -> QuotaFigures:
    """Read quotas and their use. Without any quota, use is not read."""
    if not url:
        return NO_QUOTAS
    with closing(connect(url, statement_timeout_s=timeout_s)) as conn, available():
        values = list_quotas(conn)
        if not values:
            return NO_QUOTAS
        rows = conn.execute(QUERIES["count_quota_use"]).fetchall()
    counts = {(quota, TenantRef(*names)): used for quota, *names, used in rows}
    return QuotaFigures(values, counts, dict(zip(envs, read_warm_use(valkey, shards, envs), strict=True)))


def quota_families(figures: QuotaFigures, states: Sequence[QueueState], named: Iterable[EnvRef]) -> list[Family]:
    """Build the quota families of the environments in `named` and of every project and organisation with a quota."""
    if not figures.values:
        return []
    limit, used, refused = Family(LIMIT), Family(USED), Family(REFUSED)
    shared = [tenant for tenant in figures.values if tenant.level in ("organisation", "project")]
    uses = _sum_uses(figures, states)
    for tenant in sorted({*(TenantRef.of(env) for env in named), *shared}):
        limits = _limits_of(figures, tenant)
        for name, value in limits.items():
            limit.add(value, tenant.org, tenant.project, tenant.env, name)
            if name not in RATES:
                used.add(uses[tenant][name], tenant.org, tenant.project, tenant.env, name)
        use = figures.use_of(tenant)
        for name, count in sorted(use.refused.items()) if use else ():
            refused.add(count, tenant.org, tenant.project, tenant.env, name)
    return [limit, used, refused]


def _limits_of(figures: QuotaFigures, tenant: TenantRef) -> dict[str, int]:
    own = figures.values.get(tenant, {})
    if tenant.environment is not None:
        own = {**figures.values.get(DEFAULT, {}), **own}
    limits = {name: value for name, value in own.items() if value is not None}
    use = figures.use_of(tenant)
    for name, share in (use.share if use else {}).items():
        limits[name] = min(share, limits.get(name, share))
    return {str(name): limits[name] for name in Quota if name in limits}


def _sum_uses(figures: QuotaFigures, states: Iterable[QueueState]) -> dict[TenantRef, Counter[str]]:
    """Return the use of each quota by each environment, project and organisation."""
    uses: defaultdict[TenantRef, Counter[str]] = defaultdict(Counter)
    for state in states:
        cold = state.cold + state.cold_scheduled
        numbers: dict[str, int] = {
            Quota.WARM_JOBS: state.depth + state.scheduled + state.running - cold,
            Quota.WARM_BYTES: state.bytes - state.cold_bytes,
            Quota.COLD_JOBS: cold,
            Quota.COLD_BYTES: state.cold_bytes,
            Quota.QUEUES: 1,
            Quota.RUNNING: state.running,
        }
        for tenant in TenantRef.of(state.ref.environment).parents():
            uses[tenant].update(numbers)
    for (name, owner), count in figures.counts.items():
        for tenant in owner.parents():
            uses[tenant][name] += count
    return uses
