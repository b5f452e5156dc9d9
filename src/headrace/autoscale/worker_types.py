"""Worker types: which workers are scaled, by which load, within which bounds.

An invalid type is refused with all reasons when the file is read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from headrace.errors import SettingsError
from headrace.kinds import ValueKind, duration, integer, number
from headrace.model.names import EnvRef, QueueRef, find_name_problem
from headrace.webhook.guard import validate_url

MAX_WORKERS = 100_000
MAX_QUEUES = 100


class InvalidWorkerType(SettingsError):
    """A worker type is invalid. Nothing is scaled."""


@dataclass(frozen=True)
class Scaling:
    min: int = 0
    max: int = 10
    per_worker: int = 10  # concurrent jobs of one worker
    drain_s: float = 60.0  # time in which a backlog should be drained
    age_s: float = 30.0  # a job that waits longer doubles the demand
    service_s: float = 1.0  # assumed service time while none is known
    utilization: float = 0.8  # target utilization under steady load
    tolerance: float = 0.1  # relative differences up to this change nothing
    up_cooldown_s: float = 10.0  # time after a scale-up
    down_cooldown_s: float = 60.0  # time after any change
    settle_s: float = 300.0  # how long fewer workers must have been enough before scaling down
    up_step: int = MAX_WORKERS  # maximum increase per decision
    down_step: int = MAX_WORKERS  # maximum decrease per decision
    lead_s: float = 10.0  # start time of a worker: it is wanted this long before a scheduled job is due


@dataclass(frozen=True)
class WorkerType:
    name: str
    queues: tuple[str, ...] = ()  # names, in every environment covered; empty with `all_queues` or `stream`
    all_queues: bool = False
    stream: str | None = None
    group: str | None = None
    org: str | None = None  # None: every organisation
    project: str | None = None
    env: str | None = None
    enabled: bool = True
    app: str | None = None  # module:variable of the local workers to run
    command: tuple[str, ...] = ()  # instead of `app`: a program that stops gracefully on SIGTERM
    webhook: str | None = None  # instead of both: URL that receives the wanted number
    scaling: Scaling = field(default_factory=Scaling)

    @property
    def is_local(self) -> bool:
        """Return True if this autoscaler starts the workers itself. Otherwise KEDA or a webhook receiver does."""
        return self.app is not None or bool(self.command)

    def covers(self, env: EnvRef) -> bool:
        return self.org in (None, env.org) and self.project in (None, env.project) and self.env in (None, env.env)

    def serves(self, ref: QueueRef) -> bool:
        return self.covers(ref.environment) and (self.all_queues or ref.queue in self.queues)

    def to_document(self) -> dict[str, Any]:
        """Return the fields to store, without the webhook URL, which may be secret."""
        return {**asdict(self), "queues": list(self.queues), "command": list(self.command), "webhook": None}


_COUNT = integer(0, MAX_WORKERS)
_POSITIVE_COUNT = integer(1, MAX_WORKERS)
SCALING_KEYS: Mapping[str, tuple[str, ValueKind[Any]]] = {
    "min": ("min", _COUNT),
    "max": ("max", _POSITIVE_COUNT),
    "per_worker": ("per_worker", integer(1, 10_000)),
    "drain": ("drain_s", duration("1s", "1d")),
    "age": ("age_s", duration("1s", "7d")),
    "service_time": ("service_s", duration("1ms", "1d")),
    "utilization": ("utilization", number(0.05, 1.0)),
    "tolerance": ("tolerance", number(0.0, 1.0)),
    "up_cooldown": ("up_cooldown_s", duration("0s", "1d")),
    "down_cooldown": ("down_cooldown_s", duration("0s", "1d")),
    "settle": ("settle_s", duration("0s", "1d")),
    "up_step": ("up_step", _POSITIVE_COUNT),
    "down_step": ("down_step", _POSITIVE_COUNT),
    "lead": ("lead_s", duration("0s", "1h")),
}
"""Key in the file → field name and type of value."""

_TEXT_FIELDS = ("name", "stream", "group", "org", "project", "env", "app")
_STORED_FIELDS = {each.name for each in fields(WorkerType)}


def read_worker_types(file: Path) -> list[WorkerType]:
    """Read the `[[worker]]` tables of a file. Raises InvalidWorkerType."""
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise InvalidWorkerType(f"Cannot read worker types file {file}: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidWorkerType(f"Worker types file {file} is not valid TOML: {error}.") from error
    if unknown := document.keys() - {"worker"}:
        raise InvalidWorkerType(f"File {file}: unknown table {sorted(unknown)[0]!r}; only [[worker]] is allowed.")
    tables: Any = document.get("worker", [])
    if not isinstance(tables, list) or {type(each) for each in cast("list[Any]", tables)} != {dict}:
        raise InvalidWorkerType(f"File {file} has no [[worker]] table.")
    types = [make_worker_type(cast("dict[str, Any]", table)) for table in cast("list[Any]", tables)]
    names = [each.name for each in types]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidWorkerType(f"File {file} declares worker type {twice[0]!r} twice.")
    return types


def make_worker_type(given: dict[str, Any]) -> WorkerType:
    """Return the worker type with these fields. Raises InvalidWorkerType with all problems."""
    problems = list(_find_shape_problems(given))
    scaling = Scaling()
    if not problems:
        values, wrong = _parse_scaling(given.get("scaling", {}))
        problems += wrong
        scaling = Scaling(**values)
        problems += _find_source_problems(given)
        if scaling.min > scaling.max:
            problems.append(f"scaling.min = {scaling.min} is greater than scaling.max = {scaling.max}")
    if problems:
        raise InvalidWorkerType(
            f"Invalid worker type {given.get('name')!r}: {'; '.join(problems)}. Nothing is scaled until this is fixed."
        )
    kept = {key: value for key, value in given.items() if key not in ("queue", "queues", "scaling", "command")}
    queues = tuple(given.get("queues", [])) or ((given["queue"],) if "queue" in given else ())
    return WorkerType(**kept, queues=queues, command=tuple(given.get("command", ())), scaling=scaling)


def worker_type_from_document(document: Mapping[str, Any]) -> WorkerType:
    """Build a worker type from `WorkerType.to_document` of this or an earlier release. Unknown fields are ignored."""
    limits = {each.name for each in fields(Scaling)}
    kept: dict[str, Any] = {key: value for key, value in document.items() if key in _STORED_FIELDS}
    kept["queues"], kept["command"] = tuple(document["queues"]), tuple(document["command"])
    kept["scaling"] = Scaling(**{key: value for key, value in document["scaling"].items() if key in limits})
    return WorkerType(**kept)


def _find_shape_problems(given: dict[str, Any]) -> Iterator[str]:
    if unknown := given.keys() - _STORED_FIELDS - {"queue"}:
        yield f"unknown field(s) {', '.join(sorted(unknown))}"
    if "name" not in given:
        yield "name is required"
    for key in (*_TEXT_FIELDS, "queue"):
        if key in given:
            yield from _find_name_problems(key, given[key])
    if "webhook" in given:
        yield from _find_webhook_problems(given["webhook"])
    for key in ("queues", "command"):
        value: Any = given.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in cast("list[Any]", value)):
            yield f"{key} must be a list of strings"
    for key in ("enabled", "all_queues"):
        if not isinstance(given.get(key, True), bool):
            yield f"{key} must be true or false"
    if not isinstance(given.get("scaling", {}), dict):
        yield "scaling must be a table"


def _find_name_problems(key: str, value: Any) -> Iterator[str]:
    if problem := find_name_problem(value) if isinstance(value, str) else "must be text":
        yield f"{key} {problem}"


def _find_webhook_problems(value: Any) -> Iterator[str]:
    try:
        validate_url(value if isinstance(value, str) else "")
    except ValueError as error:
        yield f"webhook {error}"


def _find_source_problems(given: dict[str, Any]) -> Iterator[str]:
    queues = given.get("queues", [])
    chosen = [key for key in ("queue", "queues", "all_queues", "stream") if given.get(key)]
    if len(chosen) != 1:
        found = " and ".join(chosen) or "none"
        yield f"exactly one of queue, queues, all_queues and stream is required, found {found}"
    for queue in queues:
        yield from _find_name_problems("queues", queue)
    if len(queues) > MAX_QUEUES:
        yield f"queues must be at most {MAX_QUEUES} names"
    if ("stream" in given) != ("group" in given):
        yield "stream and group must be set together"
    if "project" in given and "org" not in given:
        yield "project requires org"
    if "env" in given and "project" not in given:
        yield "env requires project"
    if len(ways := [key for key in ("app", "command", "webhook") if given.get(key)]) > 1:
        yield f"{' and '.join(ways)} are mutually exclusive"


def _parse_scaling(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    problems = [f"unknown field scaling.{key}" for key in given.keys() - SCALING_KEYS.keys()]
    for key, (name, kind) in SCALING_KEYS.items():
        if key in given:
            try:
                values[name] = kind.parse(given[key])
            except (ValueError, KeyError):
                problems.append(f"scaling.{key} = {given[key]!r} must be {kind.allowed.replace('`', '')}")
    return values, problems
