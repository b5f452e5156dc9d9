"""Metric families about quotas: limits, use and refusals per tenant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from headrace.cold.quota_records import list_quotas
from headrace.model.names import EnvRef
from headrace.model.quotas import DEFAULT_TENANT, Quota, QuotaValues, TenantRef
from headrace.postgres.connect import connect, translate_errors
from headrace.queue.quotas import WarmUsage, read_warm_usage
from headrace.queue.state import QueueState
from headrace.snapshot.families import FamilyDescriptor, SnapshotFamily
from headrace.snapshot.queries import QUERIES
from headrace.valkey.connect import Valkey

LABELS = ("org", "project", "env", "quota")
RATES = (Quota.ENQUEUE_RATE, Quota.ENQUEUE_BURST)

LIMIT = FamilyDescriptor(
    "headrace_quota_limit",
    "gauge",
    "Quota in force: for an environment, the lower of its quota and its share of those of its project and "
    "organisation; with an empty env, the quota of a project or organisation.",
    LABELS,
)
USED = FamilyDescriptor("headrace_quota_used", "gauge", "Current use of the quota; absent for rates.", LABELS)
REFUSED = FamilyDescriptor(
    "headrace_quota_refused_total", "counter", "Requests of an environment refused by a quota.", LABELS
)
QUOTA_FAMILIES = (LIMIT, USED, REFUSED)


@dataclass(frozen=True)
class QuotaMetricsInput:
    values: Mapping[TenantRef, QuotaValues]
    counts: Mapping[tuple[str, TenantRef], int] = field(default_factory=dict[tuple[str, TenantRef], int])
    uses: Mapping[EnvRef, WarmUsage] = field(default_factory=dict[EnvRef, WarmUsage])

    def get_use(self, tenant: TenantRef) -> WarmUsage | None:
        """Return the use in Valkey of an environment; None for a project or organisation."""
        env = tenant.environment
        return None if env is None else self.uses.get(env)


NO_QUOTAS = QuotaMetricsInput({})


def read_quotas(valkey: Valkey, shards: int, url: str, timeout_s: float, envs: Sequence[EnvRef]) -> QuotaMetricsInput:
    """Read quotas and their use. Without any quota, use is not read."""
    if not url:
        return NO_QUOTAS
    with closing(connect(url, statement_timeout_s=timeout_s)) as conn, translate_errors():
        values = list_quotas(conn)
        if not values:
            return NO_QUOTAS
        rows = conn.execute(QUERIES["count_quota_use"]).fetchall()
    counts = {(quota, TenantRef(*names)): used for quota, *names, used in rows}
    return QuotaMetricsInput(values, counts, dict(zip(envs, read_warm_usage(valkey, shards, envs), strict=True)))


def build_quota_families(
    inputs: QuotaMetricsInput, states: Sequence[QueueState], named: Iterable[EnvRef]
) -> list[SnapshotFamily]:
    """Build the quota families of the environments in `named` and of every project and organisation with a quota."""
    if not inputs.values:
        return []
    limit, used, refused = SnapshotFamily(LIMIT), SnapshotFamily(USED), SnapshotFamily(REFUSED)
    shared = [tenant for tenant in inputs.values if tenant.level in ("organisation", "project")]
    uses = _sum_uses(inputs, states)
    for tenant in sorted({*(TenantRef.from_environment(env) for env in named), *shared}):
        for name, value in _get_limits(inputs, tenant).items():
            limit.add(value, tenant.org, tenant.project, tenant.env, name)
            if name not in RATES:
                used.add(uses[tenant][name], tenant.org, tenant.project, tenant.env, name)
        use = inputs.get_use(tenant)
        for name, count in sorted(use.refused.items()) if use else ():
            refused.add(count, tenant.org, tenant.project, tenant.env, name)
    return [limit, used, refused]


def _get_limits(inputs: QuotaMetricsInput, tenant: TenantRef) -> dict[str, int]:
    own = inputs.values.get(tenant, {})
    if tenant.environment is not None:
        own = {**inputs.values.get(DEFAULT_TENANT, {}), **own}
    limits = {name: value for name, value in own.items() if value is not None}
    use = inputs.get_use(tenant)
    for name, share in (use.share if use else {}).items():
        limits[name] = min(share, limits.get(name, share))
    return {str(name): limits[name] for name in Quota if name in limits}


def _sum_uses(inputs: QuotaMetricsInput, states: Iterable[QueueState]) -> dict[TenantRef, Counter[str]]:
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
        for tenant in TenantRef.from_environment(state.ref.environment).parents():
            uses[tenant].update(numbers)
    for (name, owner), count in inputs.counts.items():
        for tenant in owner.parents():
            uses[tenant][name] += count
    return uses
