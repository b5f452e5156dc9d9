"""Who asks, and what they may reach. Pure: takes names, answers yes, no, or with a problem.

A key never learns that another tenant exists: what its scope does not cover is "not there", whether it is or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from headrace.api.problems import Problem
from headrace.model.names import EnvRef
from headrace.queue.validate import check_name


class Level(IntEnum):
    """What a key may do where it reaches; each level includes those below."""

    READ = 1
    OPERATE = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Level:
        return cls[word.upper()]


@dataclass(frozen=True)
class Scope:
    """Where a key reaches: everything, an organisation, a project or one environment. None = all below."""

    org: str | None = None
    project: str | None = None
    env: str | None = None

    def __post_init__(self) -> None:
        if (self.org is None and self.project is not None) or (self.project is None and self.env is not None):
            raise ValueError(
                "A scope names an organisation, then a project, then an environment; none may be left out."
            )

    @property
    def is_everything(self) -> bool:
        return self.org is None

    def covers(self, ref: EnvRef) -> bool:
        return self.org in (None, ref.org) and self.project in (None, ref.project) and self.env in (None, ref.env)

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """The labels of metrics that are about what this covers."""
        parts = (("org", self.org), ("project", self.project), ("env", self.env))
        return tuple((label, name) for label, name in parts if name is not None)

    def __str__(self) -> str:
        return " / ".join(part for part in (self.org, self.project, self.env) if part is not None) or "everything"


EVERYTHING = Scope()


@dataclass(frozen=True)
class Caller:
    key_id: str
    name: str
    scope: Scope
    level: Level
    session_id: str | None = None  # None: a key was sent

    def tenant(self, org: str | None, project: str | None, env: str | None, level: Level = Level.READ) -> EnvRef:
        """The environment that a request is about: what the URL says, else what the key's scope fixes."""
        ref = self._complete({"org": org, "project": project, "env": env})
        if not self.sees(ref):
            raise unknown_tenant(ref)
        self.require(level)
        return ref

    def sees(self, ref: EnvRef) -> bool:
        return self.scope.covers(ref)

    def require(self, level: Level) -> None:
        """For what the caller reaches but may not do."""
        if self.level < level:
            raise Problem(
                403,
                f"This needs a key of level {level.word}; the key {self.name!r} is of level {self.level.word}. "
                "Nothing was done.",
            )

    def _complete(self, given: dict[str, str | None]) -> EnvRef:
        for what, name in given.items():
            if name is not None:
                check_name(what, name)
        parts = {what: getattr(self.scope, what) if name is None else name for what, name in given.items()}
        if missing := [what for what, name in parts.items() if name is None]:
            raise Problem(
                400,
                f"Missing: {', '.join(missing)}. The key {self.name!r} reaches {self.scope}, so the request has to "
                "say which environment is meant, as in ?org=…&project=…&env=….",
            )
        return EnvRef(**{what: str(name) for what, name in parts.items()})


def unknown_tenant(ref: EnvRef) -> Problem:
    """The same words whether it does not exist or is another's."""
    where = f"{ref.org} / {ref.project} / {ref.env}"
    return Problem(404, f"There is no environment {where}, or it is not one that this key reaches.")
