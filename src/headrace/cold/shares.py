"""Shares out the quotas of projects and organisations that Valkey enforces. One round each second, by the mover that
leads shard 0.

An environment lives on one shard and its scripts know nothing of others, so it gets a share, and its scripts enforce
that exactly. The shares of a quota never add up to more than the quota:

1. lower    shares in Valkey, to what is wanted or what is used by then if that is more; then in PostgreSQL
2. raise    others in PostgreSQL by what is free then, and commit
3. raise    them in Valkey

A crash in between leaves shares in PostgreSQL that are not given out, never the other way round; the next round goes
on. Rounds have numbers: the late step 3 of a process that was paused is refused by Valkey.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from threading import Thread
from typing import Any

from headrace.cold.queries import QUERIES
from headrace.cold.quota_records import list_quotas
from headrace.cold.share_plan import Running, SharedQuota, keep_similar, plan_running, plan_shares, raise_within
from headrace.cold.tiers import Tiers
from headrace.errors import HeadraceError
from headrace.model.names import EnvRef
from headrace.model.quotas import IN_VALKEY, Quota, TenantRef, Values
from headrace.postgres.connect import Connection, scalar_row
from headrace.queue import keys
from headrace.queue.quotas import MEASURED, NONE, EnvironmentUse, read_environment_use
from headrace.queue.state import list_environments
from headrace.valkey.connect import ScriptError, available

log = logging.getLogger(__name__)

EVERY_S = 1.0
TURN_MS = 1000
"""Milliseconds per turn of `share_plan`; a round is numbered by its time in ms."""
SHARED = tuple(name for name in IN_VALKEY if name != Quota.ENQUEUE_BURST)
"""The burst goes with the rate."""

Shares = dict[str, dict[EnvRef, int]]
"""Quota → environment → share."""


class ShareKeeper:
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def has_shares(self) -> bool:
        """Return whether a project or organisation shares out a quota, or did and shares are left."""
        with self._tiers.store.transaction() as conn, conn.cursor(row_factory=scalar_row) as cursor:
            return bool(cursor.execute(QUERIES["has_shares"], {"names": list(SHARED)}).fetchone())

    def run_round(self) -> bool:
        """Share out all quotas once; returns False if there are none."""
        if not self.has_shares():
            return False
        with self._tiers.store.transaction() as conn, conn.cursor(row_factory=scalar_row) as cursor:
            number = cursor.execute(QUERIES["start_round"]).fetchone()
            assert isinstance(number, int)
            shared = {tenant: values for tenant, values in list_quotas(conn).items() if _is_shared(tenant)}
            before = _read_shares(conn)
            members, asking = self._find_members(shared, before)
            uses = self._read_uses(members)
            reached = frozenset(uses)
            quotas, turn = _quotas_of(shared, members), number // TURN_MS
            wanted = _plan(quotas, uses, before, asking, turn)
            lowered = self._lower(number, shared, before, wanted, uses)
            after: Shares = {
                str(name): raise_within(
                    {env: value for env, value in wanted.get(name, {}).items() if env in reached},
                    lowered.get(name, {}),
                    quotas[name],
                    turn,
                )
                for name in SHARED
            }
            _write_shares(conn, before, after)
        for env in sorted(reached):
            words = _words(env, _limits(env, after, wanted), shared)
            if uses[env].share_words != words:
                self._give(number, env, words)
        self._forget_asking(asking)
        return True

    def _find_members(
        self, shared: Mapping[TenantRef, Values], before: Shares
    ) -> tuple[set[EnvRef], frozenset[EnvRef]]:
        """Return the environments that share a quota, or did, and those of them that were refused something."""
        found = {env for shares in before.values() for env in shares}
        asking: set[EnvRef] = set()
        for shard in range(self._tiers.stubs.shards):
            try:
                with available():
                    list_environments(self._tiers.valkey, shard)
                    parts: Any = self._tiers.valkey.smembers(keys.environments(shard))
                    more: Any = self._tiers.valkey.smembers(keys.asking(shard))
            except HeadraceError as error:
                self._note(error)
                continue
            asking |= {_environment(part) for part in more}
            found |= {_environment(part) for part in parts}
        found |= asking
        members = {env for env in found if _parents(env, shared)}
        return members | {env for shares in before.values() for env in shares}, frozenset(asking)

    def _read_uses(self, members: Iterable[EnvRef]) -> dict[EnvRef, EnvironmentUse]:
        """Leave out environments whose server is away: their shares stay as they are."""
        by_shard: defaultdict[int, list[EnvRef]] = defaultdict(list)
        for env in sorted(members):
            by_shard[self._tiers.stubs.shard_of(env)].append(env)
        found: dict[EnvRef, EnvironmentUse] = {}
        for shard, envs in by_shard.items():
            try:
                with available():
                    found |= read_environment_use(self._tiers.valkey, shard, envs)
            except HeadraceError as error:
                self._note(error)
        return found

    def _lower(
        self,
        number: int,
        shared: Mapping[TenantRef, Values],
        before: Shares,
        wanted: Shares,
        uses: Mapping[EnvRef, EnvironmentUse],
    ) -> Shares:
        """Step 1. Returns the shares after it."""
        after: Shares = {name: dict(shares) for name, shares in before.items()}
        for env, use in sorted(uses.items()):
            target: dict[str, int] = {
                name: min(wanted.get(name, {}).get(env, 0), before.get(name, {}).get(env, 0)) for name in SHARED
            }
            is_lower = any(target[name] < before.get(name, {}).get(env, 0) for name in SHARED)
            # Valkey may have more than the record: it failed over to a replica that was behind.
            is_ahead = any(use.share.get(name, 0) > before.get(name, {}).get(env, 0) for name in SHARED)
            if not is_lower and not is_ahead and use.share_words:
                continue
            words = _words(env, target, shared)
            given = self._give(number, env, words)
            for name, word in zip(IN_VALKEY, given or (), strict=False):
                if word != NONE and name in SHARED:
                    after.setdefault(name, {})[env] = int(word)
                else:
                    after.get(name, {}).pop(env, None)
        return after

    def _give(self, number: int, env: EnvRef, words: list[str]) -> list[str] | None:
        try:
            return self._tiers.run(self._tiers.stubs.share(env, number, words))
        except (HeadraceError, ScriptError) as error:
            self._note(error)
            return None

    def _forget_asking(self, asking: frozenset[EnvRef]) -> None:
        for env in asking:
            try:
                with available():
                    self._tiers.valkey.srem(keys.asking(self._tiers.stubs.shard_of(env)), keys.env_part(env))
            except HeadraceError as error:
                self._note(error)

    def _note(self, error: Exception) -> None:
        log.warning("could not share out quotas of some environments: %s", error, extra={"action": "unavailable"})


class ShareRounds:
    """Runs rounds in a thread, one at a time: a shard whose server is silent delays no jobs of others."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Begin a round, unless there is nothing to share out or the one before goes on."""
        if (self._thread is None or not self._thread.is_alive()) and ShareKeeper(self._tiers).has_shares():
            self._thread = Thread(target=self._run, name="quota-shares", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            with self._tiers.reconnected() as tiers:
                ShareKeeper(tiers).run_round()
        except (HeadraceError, ScriptError) as error:
            log.warning("could not share out quotas: %s", error, extra={"action": "unavailable"})

    def end(self, timeout_s: float) -> None:
        """Wait for the round that goes on."""
        if self._thread is not None:
            self._thread.join(timeout_s)


def _is_shared(tenant: TenantRef) -> bool:
    return tenant.level in ("organisation", "project")


def _environment(part: bytes) -> EnvRef:
    return keys.queue_of_part(f"{part.decode()}:").environment


def _parents(env: EnvRef, shared: Mapping[TenantRef, Values]) -> list[TenantRef]:
    """Return the organisation and the project of an environment, if they share out quotas."""
    return [tenant for tenant in (TenantRef(env.org), TenantRef(env.org, env.project)) if tenant in shared]


def _quotas_of(shared: Mapping[TenantRef, Values], members: Iterable[EnvRef]) -> dict[str, list[SharedQuota]]:
    covered: defaultdict[TenantRef, list[EnvRef]] = defaultdict(list)
    for env in sorted(members):
        for tenant in _parents(env, shared):
            covered[tenant].append(env)
    found: dict[str, list[SharedQuota]] = {name: [] for name in SHARED}
    for tenant, values in sorted(shared.items()):
        for name in SHARED:
            if (value := values.get(name)) is not None:
                found[name].append(SharedQuota(value, covered[tenant]))
    return found


def _plan(
    quotas: Mapping[str, list[SharedQuota]],
    uses: Mapping[EnvRef, EnvironmentUse],
    before: Shares,
    asking: frozenset[EnvRef],
    turn: int,
) -> Shares:
    """Return what each environment should have of each quota. Of an environment that was not read, what it has."""
    wanted: Shares = {}
    for name, own in quotas.items():
        shares = before.get(name, {})
        used = {env: use.used[name] if name in MEASURED else 0 for env, use in uses.items()}
        used |= {env: value for env, value in shares.items() if env not in uses}
        needs = {env: use.needed_bytes for env, use in uses.items() if use.needed_bytes and name == Quota.WARM_BYTES}
        if name == Quota.RUNNING:
            jobs = {env: _running(use) for env, use in uses.items()}
            jobs |= {env: Running(value, 0, value) for env, value in shares.items() if env not in uses}
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


def _running(use: EnvironmentUse) -> Running:
    return Running(use.used[Quota.RUNNING], use.waiting, use.share.get(Quota.RUNNING, 0))


def _limits(env: EnvRef, shares: Shares, wanted: Shares) -> dict[str, int]:
    """Return what Valkey is to enforce. More jobs than wanted may run for a while: they count, and none follow."""
    own = {name: shares.get(name, {}).get(env, 0) for name in SHARED}
    return {**own, Quota.RUNNING: min(own[Quota.RUNNING], wanted.get(Quota.RUNNING, {}).get(env, 0))}


def _words(env: EnvRef, own: Mapping[str, int], shared: Mapping[TenantRef, Values]) -> list[str]:
    """Return the words of an environment's shares; `-` for quotas that neither its project nor its organisation has."""
    parents = [shared[tenant] for tenant in _parents(env, shared)]

    def word(name: str) -> str:
        return NONE if all(values.get(name) is None for values in parents) else str(own.get(name, 0))

    words = {name: word(name) for name in SHARED}
    rate, burst = words[Quota.ENQUEUE_RATE], NONE
    if rate != NONE:  # the burst is divided as the rate is
        parts = [
            int(rate) * size // max(1, values.get(Quota.ENQUEUE_RATE) or 1)
            for values in parents
            if (size := values.get(Quota.ENQUEUE_BURST)) is not None and values.get(Quota.ENQUEUE_RATE) is not None
        ]
        burst = str(max(1, min(parts or [int(rate)])))
    return [burst if name == Quota.ENQUEUE_BURST else words[name] for name in IN_VALKEY]


def _read_shares(conn: Connection) -> Shares:
    found: Shares = {}
    for org, project, env, name, value in conn.execute(QUERIES["list_shares"]):
        found.setdefault(name, {})[EnvRef(org, project, env)] = value
    return found


def _write_shares(conn: Connection, before: Shares, after: Shares) -> None:
    for name in {*before, *after}:
        old, new = before.get(name, {}), after.get(name, {})
        for env in old.keys() | new.keys():
            names = {**vars(env), "name": name}
            if env not in new:
                conn.execute(QUERIES["delete_share"], names)
            elif old.get(env) != new[env]:
                conn.execute(QUERIES["put_share"], {**names, "value": new[env]})
