"""Access levels, key scopes and the authenticated caller. Pure.

A key cannot find out whether another tenant exists: everything outside its scope is reported as not found.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

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

    def covers(self, ref: EnvRef) -> bool:
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
        ref = self._complete_environment({"org": org, "project": project, "env": env})
        if not self.can_see(ref):
            raise make_unknown_environment_problem(ref)
        self.require(level)
        return ref

    def can_see(self, ref: EnvRef) -> bool:
        return self.scope.covers(ref)

    def require(self, level: AccessLevel) -> None:
        """Raise a 403 Problem if the key's level is too low."""
        if self.level < level:
            raise Problem(
                403,
                f"This requires access level {level.label}; key {self.name!r} has level {self.level.label}. "
                "Nothing was done.",
            )

    def _complete_environment(self, given: dict[str, str | None]) -> EnvRef:
        for what, name in given.items():
            if name is not None:
                check_name(what, name)
        parts = {what: getattr(self.scope, what) if name is None else name for what, name in given.items()}
        if missing := [what for what, name in parts.items() if name is None]:
            raise Problem(
                400,
                f"Missing: {', '.join(missing)}. Key {self.name!r} covers {self.scope}, so the request must name one "
                "environment: ?org=…&project=…&env=….",
            )
        return EnvRef(**{what: str(name) for what, name in parts.items()})


def make_unknown_environment_problem(ref: EnvRef) -> Problem:
    """Return a 404 that is the same for missing environments and for those outside the key's scope."""
    where = f"{ref.org} / {ref.project} / {ref.env}"
    return Problem(404, f"Environment {where} does not exist or is outside this key's scope.")
