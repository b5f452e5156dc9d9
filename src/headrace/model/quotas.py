"""Names and levels of quotas, the limits that operators set for tenants. See `docs/how-to/quotas.md`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace.model.names import EnvRef


class Quota(StrEnum):
    WARM_JOBS = "warm_jobs"  # waiting, scheduled and running jobs in Valkey
    WARM_BYTES = "warm_bytes"  # payload bytes of these jobs
    COLD_JOBS = "cold_jobs"  # waiting and delayed jobs in PostgreSQL
    COLD_BYTES = "cold_bytes"  # payload bytes of these jobs
    QUEUES = "queues"
    RULES = "rules"  # alert rules
    CHANNELS = "channels"  # alert channels
    KEYS = "keys"  # API keys that are neither revoked nor expired
    ENQUEUE_RATE = "enqueue_rate"  # jobs per second
    ENQUEUE_BURST = "enqueue_burst"  # jobs at once before the rate applies
    RUNNING = "running"  # running jobs; an upper bound of the environment's own limit


VALKEY_QUOTAS = (
    *(Quota.WARM_JOBS, Quota.WARM_BYTES, Quota.QUEUES, Quota.ENQUEUE_RATE, Quota.ENQUEUE_BURST, Quota.RUNNING),
)
"""Quotas that Lua scripts enforce, in the order of the words in the packed fields (see queue/quotas.py)."""

MAX_QUOTA = 10**15
"""Largest quota. Lua numbers are exact up to a larger value."""


@dataclass(frozen=True, order=True)
class TenantRef:
    """The owner of a quota: an environment, a project (no env), an organisation (no project), or the default of every
    environment (all names empty)."""

    org: str = ""
    project: str = ""
    env: str = ""

    def __post_init__(self) -> None:
        if (self.project and not self.org) or (self.env and not self.project):
            raise ValueError("A tenant is an organisation, a project of one, or an environment of a project.")

    @classmethod
    def from_environment(cls, env: EnvRef) -> TenantRef:
        return cls(env.org, env.project, env.env)

    @property
    def level(self) -> str:
        if self.env:
            return "environment"
        return "project" if self.project else "organisation" if self.org else "default"

    @property
    def environment(self) -> EnvRef | None:
        return EnvRef(self.org, self.project, self.env) if self.env else None

    def covers(self, env: EnvRef) -> bool:
        return self.org in ("", env.org) and self.project in ("", env.project) and self.env in ("", env.env)

    def parents(self) -> list[TenantRef]:
        """Return the organisation, the project and the environment of this tenant, as far as they are named, itself
        included."""
        found = [TenantRef(self.org)] if self.org else []
        found += [TenantRef(self.org, self.project)] if self.project else []
        return [*found, self] if self.env else found

    def __str__(self) -> str:
        names = " / ".join(name for name in (self.org, self.project, self.env) if name)
        return f"the {self.level} {names}" if names else "every environment"


DEFAULT_TENANT = TenantRef()

QuotaValues = Mapping[str, int | None]
"""Quota → value. None: no quota, whatever the default is. Missing: the default applies."""
