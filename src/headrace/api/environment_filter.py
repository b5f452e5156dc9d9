"""Which environments a list covers: the key's scope narrowed by the query parameters `org`, `project` and `env`.

Names outside the key's scope match nothing, like names that do not exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.names import EnvRef
from headrace.model.quotas import TenantRef
from headrace.queue.keys import part_prefix


@dataclass(frozen=True)
class EnvironmentFilter:
    """Filter for environments. None matches every name."""

    org: str | None = None
    project: str | None = None
    env: str | None = None
    nothing: bool = False

    def covers(self, ref: EnvironmentNames) -> bool:
        names = zip((self.org, self.project, self.env), (ref.org, ref.project, ref.env), strict=True)
        return not self.nothing and all(wanted in (None, name) for wanted, name in names)

    @property
    def parts(self) -> dict[str, str | None]:
        return {"org": self.org, "project": self.project, "env": self.env}

    @property
    def prefix(self) -> str:
        """Prefix shared by all covered names in Valkey, as far as it is determined."""
        return part_prefix(self.org, self.project)

    @property
    def environment(self) -> EnvRef | None:
        """The environment, if the filter selects exactly one."""
        if self.nothing or self.org is None or self.project is None or self.env is None:
            return None
        return EnvRef(self.org, self.project, self.env)


EnvironmentNames = EnvRef | TenantRef | EnvironmentFilter
