"""Divide the quotas of projects and organisations that Valkey enforces into shares of their environments.

The mover that leads shard 0 runs one round per second. An environment is on one shard, and its scripts cannot read
other shards, so it gets a share, which its scripts enforce exactly. The sum of the shares never exceeds the quota:

1. lower    shares in Valkey, to the planned share or the current usage if that is more; then in PostgreSQL
2. raise    other shares in PostgreSQL by what is free then, and commit
3. raise    them in Valkey

A crash in between leaves shares in PostgreSQL that are not in Valkey yet, never the reverse; the next round continues.
Rounds are numbered: Valkey refuses a late step 3 of a process that was paused.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from threading import Thread
from typing import Any

from headrace.cold.queries import QUERIES
from headrace.cold.quota_records import list_quotas
from headrace.cold.share_plan import RunningDemand, SharedQuota, keep_similar, plan_running, plan_shares, raise_within
from headrace.cold.tiers import Tiers
from headrace.errors import HeadraceError
from headrace.model.names import EnvRef
from headrace.model.quotas import VALKEY_QUOTAS, Quota, QuotaValues, TenantRef
from headrace.postgres.connect import Connection, scalar_row
from headrace.queue import keys
from headrace.queue.quotas import MEASURED, NONE, EnvironmentUsage, read_environment_usage
from headrace.queue.state import index_environments
from headrace.valkey.connect import ScriptError, translate_errors

log = logging.getLogger(__name__)

ROUND_INTERVAL_S = 1.0
TURN_MS = 1000
"""Milliseconds per turn of `share_plan`; the number of a round is its time in ms."""
SHARED_QUOTAS = tuple(name for name in VALKEY_QUOTAS if name != Quota.ENQUEUE_BURST)
"""The quotas that are shared. The burst is divided like the rate."""

SharesByQuota = dict[str, dict[EnvRef, int]]
"""Quota → environment → share."""


class ShareAllocator:
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def has_shares(self) -> bool:
        """Return whether a project or organisation has a shared quota, or had one and shares are left."""
        names = {"names": list(SHARED_QUOTAS)}
        with self._tiers.store.transaction() as conn:
            return bool(conn.cursor(row_factory=scalar_row).execute(QUERIES["has_shares"], names).fetchone())

    def run_round(self) -> bool:
        """Run one round for all quotas. Return False if there are none."""
        if not self.has_shares():
            return False
        with self._tiers.store.transaction() as conn:
            number = conn.cursor(row_factory=scalar_row).execute(QUERIES["start_round"]).fetchone()
            assert isinstance(number, int)
            quotas_set = list_quotas(conn).items()
            shared = {tenant: values for tenant, values in quotas_set if tenant.level in ("organisation", "project")}
            before = _read_shares(conn)
            members, asking = self._find_members(shared, before)
            uses = self._read_usage(members)
            reached = frozenset(uses)
            quotas, turn = _group_quotas(shared, members), number // TURN_MS
            wanted = _plan_shares(quotas, uses, before, asking, turn)
            lowered = self._lower_shares(number, shared, before, wanted, uses)
            after: SharesByQuota = {
                str(name): raise_within(
                    {env: value for env, value in wanted.get(name, {}).items() if env in reached},
                    lowered.get(name, {}),
                    quotas[name],
                    turn,
                )
                for name in SHARED_QUOTAS
            }
            _write_shares(conn, before, after)
        for env in sorted(reached):
            words = _format_shares(env, _select_enforced(env, after, wanted), shared)
            if uses[env].share_words != words:
                self._set_shares(number, env, words)
        self._clear_requests(asking)
        return True

    def _find_members(
        self, shared: Mapping[TenantRef, QuotaValues], before: SharesByQuota
    ) -> tuple[set[EnvRef], frozenset[EnvRef]]:
        """Return the environments that share a quota, or did, and those whose share refused an enqueue."""
        envs = {env for shares in before.values() for env in shares}
        asking: set[EnvRef] = set()
        for shard in range(self._tiers.stubs.shards):
            try:
                with translate_errors():
                    index_environments(self._tiers.valkey, shard)
                    parts: Any = self._tiers.valkey.smembers(keys.environments(shard))
                    more: Any = self._tiers.valkey.smembers(keys.share_requests(shard))
            except HeadraceError as error:
                self._log_failure(error)
                continue
            asking |= {_parse_environment(part) for part in more}
            envs |= {_parse_environment(part) for part in parts}
        envs |= asking
        members = {env for env in envs if _find_sharing_parents(env, shared)}
        return members | {env for shares in before.values() for env in shares}, frozenset(asking)

    def _read_usage(self, members: Iterable[EnvRef]) -> dict[EnvRef, EnvironmentUsage]:
        """Return the usage of environments, without those whose server is unavailable: their shares stay unchanged."""
        by_shard: defaultdict[int, list[EnvRef]] = defaultdict(list)
        for env in sorted(members):
            by_shard[self._tiers.stubs.find_shard(env)].append(env)
        usage: dict[EnvRef, EnvironmentUsage] = {}
        for shard, envs in by_shard.items():
            try:
                with translate_errors():
                    usage |= read_environment_usage(self._tiers.valkey, shard, envs)
            except HeadraceError as error:
                self._log_failure(error)
        return usage

    def _lower_shares(
        self,
        number: int,
        shared: Mapping[TenantRef, QuotaValues],
        before: SharesByQuota,
        wanted: SharesByQuota,
        uses: Mapping[EnvRef, EnvironmentUsage],
    ) -> SharesByQuota:
        """Do step 1. Return the shares after it."""
        after: SharesByQuota = {name: dict(shares) for name, shares in before.items()}
        for env, use in sorted(uses.items()):
            target: dict[str, int] = {
                name: min(wanted.get(name, {}).get(env, 0), before.get(name, {}).get(env, 0)) for name in SHARED_QUOTAS
            }
            is_lower = any(target[name] < before.get(name, {}).get(env, 0) for name in SHARED_QUOTAS)
            # Valkey may have larger shares than the record after a failover to a replica that was behind.
            is_ahead = any(use.share.get(name, 0) > before.get(name, {}).get(env, 0) for name in SHARED_QUOTAS)
            if not is_lower and not is_ahead and use.share_words:
                continue
            words = _format_shares(env, target, shared)
            given = self._set_shares(number, env, words)
            for name, word in zip(VALKEY_QUOTAS, given or (), strict=False):
                if word != NONE and name in SHARED_QUOTAS:
                    after.setdefault(name, {})[env] = int(word)
                else:
                    after.get(name, {}).pop(env, None)
        return after

    def _set_shares(self, number: int, env: EnvRef, words: list[str]) -> list[str] | None:
        try:
            return self._tiers.run(self._tiers.stubs.share(env, number, words))
        except (HeadraceError, ScriptError) as error:
            self._log_failure(error)
            return None

    def _clear_requests(self, asking: frozenset[EnvRef]) -> None:
        for env in asking:
            try:
                with translate_errors():
                    self._tiers.valkey.srem(keys.share_requests(self._tiers.stubs.find_shard(env)), keys.env_part(env))
            except HeadraceError as error:
                self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        log.warning("could not update quota shares of some environments: %s", error, extra={"action": "unavailable"})


class ShareRoundRunner:
    """Runs rounds in a thread, one at a time, so that a shard whose server hangs does not delay the mover."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._thread: Thread | None = None

    def start_round(self) -> None:
        """Start a round, unless there are no shared quotas or the previous round is still running."""
        if (self._thread is None or not self._thread.is_alive()) and ShareAllocator(self._tiers).has_shares():
            self._thread = Thread(target=self._run, name="quota-shares", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            with self._tiers.open_copy() as tiers:
                ShareAllocator(tiers).run_round()
        except (HeadraceError, ScriptError) as error:
            log.warning("could not update quota shares: %s", error, extra={"action": "unavailable"})

    def wait(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)


def _parse_environment(part: bytes) -> EnvRef:
    return keys.parse_queue_part(f"{part.decode()}:").environment


def _find_sharing_parents(env: EnvRef, shared: Mapping[TenantRef, QuotaValues]) -> list[TenantRef]:
    """Return those of the organisation and the project of an environment that have shared quotas."""
    return [tenant for tenant in (TenantRef(env.org), TenantRef(env.org, env.project)) if tenant in shared]


def _group_quotas(shared: Mapping[TenantRef, QuotaValues], members: Iterable[EnvRef]) -> dict[str, list[SharedQuota]]:
    covered: defaultdict[TenantRef, list[EnvRef]] = defaultdict(list)
    for env in sorted(members):
        for tenant in _find_sharing_parents(env, shared):
            covered[tenant].append(env)
    quotas: dict[str, list[SharedQuota]] = {name: [] for name in SHARED_QUOTAS}
    for tenant, values in sorted(shared.items()):
        for name in SHARED_QUOTAS:
            if (value := values.get(name)) is not None:
                quotas[name].append(SharedQuota(value, covered[tenant]))
    return quotas


def _plan_shares(
    quotas: Mapping[str, list[SharedQuota]],
    uses: Mapping[EnvRef, EnvironmentUsage],
    before: SharesByQuota,
    asking: frozenset[EnvRef],
    turn: int,
) -> SharesByQuota:
    """Return the planned share of each environment in each quota. An environment without usage data keeps its share."""
    wanted: SharesByQuota = {}
    for name, own in quotas.items():
        shares = before.get(name, {})
        used = {env: use.used[name] if name in MEASURED else 0 for env, use in uses.items()}
        used |= {env: value for env, value in shares.items() if env not in uses}
        needs = {env: use.needed_bytes for env, use in uses.items() if use.needed_bytes and name == Quota.WARM_BYTES}
        if name == Quota.RUNNING:
            jobs = {
                env: RunningDemand(use.used[name], use.waiting, use.share.get(name, 0)) for env, use in uses.items()
            }
            jobs |= {env: RunningDemand(value, 0, value) for env, value in shares.items() if env not in uses}
            plans = [plan_running(quota, jobs, turn) for quota in own]
        else:
            active = {env for env, use in uses.items() if name not in MEASURED and use.is_enqueuing}
            plans = [plan_shares(quota, used, shares, asking | active, needs, turn) for quota in own]
        targets: dict[EnvRef, int] = {}
        for plan in plans:
            for env, value in plan.items():
                targets[env] = min(value, targets.get(env, value))
        wanted[name] = {
            env: keep_similar(value, shares.get(env), used.get(env, 0), needs.get(env, 0))
            for env, value in targets.items()
        }
    return wanted


def _select_enforced(env: EnvRef, shares: SharesByQuota, wanted: SharesByQuota) -> dict[str, int]:
    """Return the shares that Valkey is to enforce. More jobs than planned may run for a while: they count towards the
    share, and no job is started until enough have ended."""
    own = {name: shares.get(name, {}).get(env, 0) for name in SHARED_QUOTAS}
    return {**own, Quota.RUNNING: min(own[Quota.RUNNING], wanted.get(Quota.RUNNING, {}).get(env, 0))}


def _format_shares(env: EnvRef, own: Mapping[str, int], shared: Mapping[TenantRef, QuotaValues]) -> list[str]:
    """Return the packed words of an environment's shares; `-` for quotas that neither its project nor its organisation
    has."""
    parents = [shared[tenant] for tenant in _find_sharing_parents(env, shared)]

    def word(name: str) -> str:
        return NONE if all(values.get(name) is None for values in parents) else str(own.get(name, 0))

    words = {name: word(name) for name in SHARED_QUOTAS}
    rate, burst = words[Quota.ENQUEUE_RATE], NONE
    if rate != NONE:  # the burst is divided like the rate
        parts = [
            int(rate) * size // max(1, values.get(Quota.ENQUEUE_RATE) or 1)
            for values in parents
            if (size := values.get(Quota.ENQUEUE_BURST)) is not None and values.get(Quota.ENQUEUE_RATE) is not None
        ]
        burst = str(max(1, min(parts or [int(rate)])))
    return [burst if name == Quota.ENQUEUE_BURST else words[name] for name in VALKEY_QUOTAS]


def _read_shares(conn: Connection) -> SharesByQuota:
    shares: SharesByQuota = {}
    for org, project, env, name, value in conn.execute(QUERIES["list_shares"]):
        shares.setdefault(name, {})[EnvRef(org, project, env)] = value
    return shares


def _write_shares(conn: Connection, before: SharesByQuota, after: SharesByQuota) -> None:
    for name in {*before, *after}:
        old, new = before.get(name, {}), after.get(name, {})
        for env in old.keys() | new.keys():
            names = {**vars(env), "name": name}
            if env not in new:
                conn.execute(QUERIES["delete_share"], names)
            elif old.get(env) != new[env]:
                conn.execute(QUERIES["put_share"], {**names, "value": new[env]})
