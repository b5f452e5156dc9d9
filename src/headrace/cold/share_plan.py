"""Decide how the quota of a project or organisation is divided among its environments. Pure functions.

`turn` increases from round to round. A remainder that cannot be divided evenly goes to different environments each
time, so every environment that needs more gets some eventually, however many there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from headrace.model.names import EnvRef

BUSY_PART = 0.8
"""Fraction of the free quota for environments that need more; the rest is for all, so that each can start."""

KEEP_WITHIN = 0.25
"""A share stays unchanged if it differs from the planned one by less than this fraction of the planned headroom."""


@dataclass(frozen=True)
class SharedQuota:
    value: int
    members: Sequence[EnvRef]  # sorted


@dataclass(frozen=True)
class RunningDemand:
    """Running and waiting jobs of an environment, for its share of the quota `running`."""

    running: int
    waiting: int
    share: int

    @property
    def demand(self) -> int:
        """Return how many jobs would run without the quota. An environment that does not use its whole share has too
        few workers, or paused queues: it keeps half of the unused share, at least one job."""
        if not self.waiting:
            return self.running
        if self.running >= self.share:
            return self.running + self.waiting
        return self.running + -(-(self.share - self.running) // 2)


def plan_shares(
    quota: SharedQuota,
    used: Mapping[EnvRef, int],
    shares: Mapping[EnvRef, int],
    asking: frozenset[EnvRef],
    needs: Mapping[EnvRef, int],
    turn: int,
) -> dict[EnvRef, int]:
    """Return the planned share of each environment: its usage, and a part of the free quota. The sum is the quota, or
    the usage if that is more.

    Environments with a waiting job that needs more than an equal part (`needs`) come first. Next are those that need
    more: they requested it (`asking`), or have used half of the part that every environment gets.
    """
    members = quota.members
    wanted = {env: used.get(env, 0) for env in members}
    free = max(0, quota.value - sum(wanted.values()))
    for env in rotate([env for env in members if 0 < needs.get(env, 0) <= quota.value], turn):
        part = min(needs[env], free)  # if it is less than needed, others get nothing until there is enough
        wanted[env] += part
        free -= part
    usual = free * (1 - BUSY_PART) / max(1, len(members))
    busy = [
        env
        for env in members
        if env in asking or (used.get(env, 0) > 0 and shares.get(env, 0) - wanted[env] < usual / 2)
    ]
    for_busy = int(free * BUSY_PART) // len(busy) if busy else 0
    for_all = (free - for_busy * len(busy)) // max(1, len(members))
    for env in members:
        wanted[env] += for_all
    for env in busy:
        wanted[env] += for_busy
    rest = free - for_busy * len(busy) - for_all * len(members)
    first = [env for env in busy if env in asking] or busy
    for _, env in zip(range(rest), cycle(rotate(first, turn) or members), strict=False):
        wanted[env] += 1
    return wanted


def plan_running(quota: SharedQuota, jobs: Mapping[EnvRef, RunningDemand], turn: int) -> dict[EnvRef, int]:
    """Return the planned number of running jobs of each environment: its demand, or an equal part if the quota is not
    enough for all. The rest is divided among all, so that each can start.

    The number may be less than what runs now: then no job is started until enough have ended.
    """
    members = quota.members
    demands = {env: jobs[env].demand for env in members if env in jobs and jobs[env].demand}
    level = _find_level(quota.value, demands.values())
    wanted = {env: min(demands.get(env, 0), level) for env in members}
    left = quota.value - sum(wanted.values())
    more = [env for env in members if demands.get(env, 0) > level]
    for env in rotate(more, turn)[:left]:
        wanted[env] += 1
    if not more:
        for number, env in enumerate(members):
            wanted[env] += left // len(members) + (number < left % len(members))
    return wanted


def keep_similar(wanted: int, share: int | None, used: int, need: int = 0) -> int:
    """Return the current share if it is close to the planned one and sufficient, else the planned one."""
    if share is None or share < used + need:
        return wanted
    return share if abs(wanted - share) <= KEEP_WITHIN * (wanted - used) else wanted


def raise_within(
    wanted: Mapping[EnvRef, int], shares: Mapping[EnvRef, int], quotas: Sequence[SharedQuota], turn: int
) -> dict[EnvRef, int]:
    """Return the shares, raised towards the planned ones as far as every quota allows."""
    raised = dict(shares)
    free = [quota.value - sum(shares.get(env, 0) for env in quota.members) for quota in quotas]
    quotas_of: dict[EnvRef, list[int]] = {}
    for number, quota in enumerate(quotas):
        for env in quota.members:
            quotas_of.setdefault(env, []).append(number)
    for env in rotate(sorted(wanted), turn):
        own = quotas_of.get(env, [])
        more = min([wanted[env] - raised.get(env, 0), *(free[number] for number in own)])
        if more > 0:
            raised[env] = raised.get(env, 0) + more
            for number in own:
                free[number] -= more
    return raised


def rotate(envs: Sequence[EnvRef], turn: int) -> list[EnvRef]:
    """Return the environments in order, starting with a different one each turn."""
    first = turn % len(envs) if envs else 0
    return [*envs[first:], *envs[:first]]


def _find_level(value: int, demands: Collection[int]) -> int:
    """Return the largest cap per environment for which the sum of the capped demands does not exceed the value."""
    caps = range(1, max(demands, default=0) + 1)
    return bisect_right(caps, value, key=lambda cap: sum(min(demand, cap) for demand in demands))
