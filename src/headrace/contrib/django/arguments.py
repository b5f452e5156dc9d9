"""The payload of a Django task's job: positional and keyword arguments, and what `using` has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, cast

from django.utils.module_loading import import_string

from headrace.contrib.django.compat import AnyTask, Task, normalize_json


@dataclass(frozen=True)
class DjangoArguments:
    """The arguments of a job: `{"args": [...], "kwargs": {...}}`, and for jobs with a priority or a time to run after
    `"using": {"priority": 5, "run_after": "2026-01-01T00:00:00+00:00"}`: the queue does not keep them with a job that
    is done."""

    args: list[Any]
    kwargs: dict[str, Any]
    priority: int = 0
    run_after: datetime | None = None

    @classmethod
    def of(cls, task: AnyTask, args: list[Any], kwargs: dict[str, Any]) -> Self:
        return cls(args, kwargs, int(task.priority), task.run_after)

    def pack(self) -> dict[str, Any]:
        packed: dict[str, Any] = {"args": self.args, "kwargs": self.kwargs}
        using: dict[str, Any] = {}
        if self.priority:
            using["priority"] = self.priority
        if self.run_after is not None:
            using["run_after"] = self.run_after.isoformat()
        return packed | ({"using": using} if using else {})

    @classmethod
    def parse(cls, packed: Mapping[str, Any]) -> Self:
        using = packed.get("using") or {}
        run_after = using.get("run_after")
        return cls(
            packed["args"],
            packed["kwargs"],
            using.get("priority", 0),
            None if run_after is None else datetime.fromisoformat(run_after),
        )


def to_plain_json(value: Any) -> Any:
    """Return a value as a worker or the reader of a result will see it: with plain strings and numbers, and text as
    keys. Raises TypeError or ValueError if it is no JSON, also for NaN."""
    return json.loads(json.dumps(normalize_json(value), allow_nan=False))


def load_task(path: str, alias: str, queue: str, arguments: DjangoArguments) -> AnyTask:
    """Return the Django task of a path, with the options of a job. Raises ImportError if it cannot be imported,
    TypeError if something else is there, and InvalidTask if the backend does not accept it."""
    found = import_string(path)
    if not isinstance(found, Task):
        raise TypeError(f"{path!r} is a {type(found).__name__}, not a task of Django.")
    return cast(AnyTask, found).using(
        priority=arguments.priority, queue_name=queue, run_after=arguments.run_after, backend=alias
    )
