"""Access levels, key scopes and the authenticated caller. Pure.

A key cannot find out whether another tenant exists: everything outside its scope is reported as not found.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from headrace.api.environment_filter import EnvironmentFilter, EnvironmentNames
from headrace.api.problems import Problem
from headrace.model.names import EnvRef
from headrace.queue.validate import check_name


class AccessLevel(IntEnum):
    """What a key may do within its scope; each level includes those below."""

    READ = 1
    OPERATE = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def from_label(cls, word: str) -> AccessLevel:
        return cls[word.upper()]


@dataclass(frozen=True)
class KeyScope:
    """Scope of a key: everything, an organisation, a project or one environment. None means all."""

    org: str | None = None
    project: str | None = None
    env: str | None = None

    def __post_init__(self) -> None:
        if (self.org is None and self.project is not None) or (self.project is None and self.env is not None):
            raise ValueError("Invalid scope: a project needs an org, and an environment needs a project.")

    @property
    def is_global(self) -> bool:
        return self.org is None

    def covers(self, ref: EnvironmentNames) -> bool:
        return self.org in (None, ref.org) and self.project in (None, ref.project) and self.env in (None, ref.env)

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """Metric labels that select the series in this scope."""
        parts = (("org", self.org), ("project", self.project), ("env", self.env))
        return tuple((label, name) for label, name in parts if name is not None)

    def __str__(self) -> str:
        return " / ".join(part for part in (self.org, self.project, self.env) if part is not None) or "everything"


GLOBAL_SCOPE = KeyScope()


@dataclass(frozen=True)
class Caller:
    key_id: str
    name: str
    scope: KeyScope
    level: AccessLevel
    session_id: str | None = None  # None: authenticated by key, not by session

    def resolve_environment(
        self, org: str | None, project: str | None, env: str | None, level: AccessLevel = AccessLevel.READ
    ) -> EnvRef:
        """Return the environment of a request: from the URL, or else from the key's scope. Raises Problem."""
        requested = self.complete_names(org, project, env)
        ref = requested.environment
        if ref is None:
            missing = ", ".join(what for what, name in requested.parts.items() if name is None)
            raise Problem(
                400,
                f"Missing: {missing}. Key {self.name!r} covers {self.scope}, so the request must name one "
                "environment: ?org=…&project=…&env=….",
            )
        if not self.scope.covers(ref):  # the same 404 as for an environment that does not exist
            raise Problem(404, f"Environment {format_environment(ref)} does not exist or is outside this key's scope.")
        self.require(level)
        return ref

    def complete_names(self, org: str | None, project: str | None, env: str | None) -> EnvironmentFilter:
        """Return the names in a request, completed by the key's scope; they may be outside it. Raises InvalidName."""
        for what, name in (("org", org), ("project", project), ("env", env)):
            if name is not None:
                check_name(what, name)
        return EnvironmentFilter(org or self.scope.org, project or self.scope.project, env or self.scope.env)

    def require(self, level: AccessLevel) -> None:
        """Raise a 403 Problem if the key's level is too low."""
        if self.level < level:
            raise Problem(
                403,
                f"This requires access level {level.label}; key {self.name!r} has level {self.level.label}. "
                "Nothing was done.",
            )


def format_environment(ref: EnvRef) -> str:
    return f"{ref.org} / {ref.project} / {ref.env}"
