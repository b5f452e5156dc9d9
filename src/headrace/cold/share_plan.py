"""Decides how the quota of a project or organisation is shared out to its environments. Pure.

`turn` is a number that grows from round to round. What cannot be divided evenly goes to other environments each time,
so an environment that needs more gets some in the end, however many there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from headrace.model.names import EnvRef

BUSY_PART = 0.8
"""How much of what is free goes to environments that need more; the rest is for all, so that each can begin."""

KEEP_WITHIN = 0.25
"""A share that differs by less than this part of its free room stays as it is."""


@dataclass(frozen=True)
class SharedQuota:
    value: int
    members: Sequence[EnvRef]  # in order


@dataclass(frozen=True)
class Running:
    """The jobs of an environment, for its share of the quota `running`."""

    running: int
    waiting: int
    share: int

    @property
    def demand(self) -> int:
        """How many jobs would run if the quota let them. An environment that does not use up its share has too few
        workers, or paused queues: it keeps half of what is left, and one job more than run."""
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
    """Return what each environment should have: what it uses, and a part of what is free. Together that is the quota,
    or what is used if that is more.

    First come environments in which a job waits that needs more than a part (`needs`). Then those that need more: they
    ask, or have used up half of what every environment gets.
    """
    members = quota.members
    wanted = {env: used.get(env, 0) for env in members}
    free = max(0, quota.value - sum(wanted.values()))
    for env in rotate([env for env in members if 0 < needs.get(env, 0) <= quota.value], turn):
        part = min(needs[env], free)  # less than it needs: others get nothing until there is enough
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


def plan_running(quota: SharedQuota, jobs: Mapping[EnvRef, Running], turn: int) -> dict[EnvRef, int]:
    """Return how many jobs of each environment should run: as many as it demands, or an equal part where the quota is
    not enough for all. What is left is for all, so that each can begin.

    It may be less than what runs now: then jobs end and none follow.
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
    """Return the share as it is if it is about what is wanted, and enough for what is needed."""
    if share is None or share < used + need:
        return wanted
    return share if abs(wanted - share) <= KEEP_WITHIN * (wanted - used) else wanted


def raise_within(
    wanted: Mapping[EnvRef, int], shares: Mapping[EnvRef, int], quotas: Sequence[SharedQuota], turn: int
) -> dict[EnvRef, int]:
    """Return the shares raised towards what is wanted, as far as each quota leaves room for."""
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
    """Return the environments in order, beginning with another one each turn."""
    first = turn % len(envs) if envs else 0
    return [*envs[first:], *envs[:first]]


def _find_level(value: int, demands: Collection[int]) -> int:
    """Return the most that each may have so that all together have no more than the value."""
    low, high = 0, max(demands, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(demand, middle) for demand in demands) <= value:
            low = middle
        else:
            high = middle - 1
    return low
