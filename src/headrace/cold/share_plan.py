"""Decides how the quota of a project or organisation is shared out to its environments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    members: Sequence[EnvRef]


def plan_shares(
    quota: SharedQuota, used: Mapping[EnvRef, int], shares: Mapping[EnvRef, int], asking: frozenset[EnvRef]
) -> dict[EnvRef, int]:
    """Return what each environment should have: what it uses, and a part of what is free. Together that is the quota,
    or what is used if that is more.

    Those that need more are those that ask, and those that have used up half of what every environment gets."""
    members = sorted(quota.members)
    free = max(0, quota.value - sum(used.get(env, 0) for env in members))
    usual = free * (1 - BUSY_PART) / max(1, len(members))
    busy = [env for env in members if env in asking or shares.get(env, 0) - used.get(env, 0) < usual / 2]
    for_busy = int(free * BUSY_PART) // len(busy) if busy else 0
    for_all = (free - for_busy * len(busy)) // max(1, len(members))
    wanted = {env: used.get(env, 0) + for_all for env in members}
    for env in busy:
        wanted[env] += for_busy
    rest = free - for_busy * len(busy) - for_all * len(members)
    for _, env in zip(range(rest), cycle(busy or members), strict=False):
        wanted[env] += 1
    return wanted


def keep_similar(wanted: int, share: int | None, used: int) -> int:
    """Return the share as it is if it is about what is wanted."""
    if share is None or share < used:
        return wanted
    return share if abs(wanted - share) <= KEEP_WITHIN * (wanted - used) else wanted


def raise_within(
    wanted: Mapping[EnvRef, int], shares: Mapping[EnvRef, int], quotas: Sequence[SharedQuota]
) -> dict[EnvRef, int]:
    """Return the shares raised towards what is wanted, as far as each quota leaves room for."""
    raised = dict(shares)
    free = [quota.value - sum(shares.get(env, 0) for env in quota.members) for quota in quotas]
    for env in sorted(wanted):
        own = [number for number, quota in enumerate(quotas) if env in quota.members]
        more = min([wanted[env] - raised.get(env, 0), *(free[number] for number in own)])
        if more > 0:
            raised[env] = raised.get(env, 0) + more
            for number in own:
                free[number] -= more
    return raised
