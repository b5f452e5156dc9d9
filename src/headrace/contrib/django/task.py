"""Django tasks and their results, with what Headrace adds to them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async

from headrace.app.context import parse_env, use_env
from headrace.app.duration import Seconds
from headrace.contrib.django.compat import AnyTask, AnyTaskResult
from headrace.model.names import EnvRef

# Data classes with slots are created twice, so `super()` without arguments does not work in them.


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadraceTask(AnyTask):
    """A Django task of a Headrace backend, with the options that Headrace adds to `using`."""

    env: str | None = None  # "org/project/env"; None: the environment of the context, then that of the backend
    ttl: Seconds | None = None  # a job that waits longer expires; None: never
    max_attempts: int | None = None  # including the first; None: 1, because Django tasks are not retried

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        env: str | None = None,
        ttl: Seconds | None = None,
        max_attempts: int | None = None,
    ) -> HeadraceTask:
        """Return this task with other options. None leaves an option as it is."""
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            "env": env,
            "ttl": ttl,
            "max_attempts": max_attempts,
        }
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def get_result(self, result_id: str) -> AnyTaskResult:
        """Return a result of this task, from its environment if it has one. Raises TaskResultDoesNotExist, and
        TaskResultMismatch for the id of another task."""
        with self._use_own_env():
            return AnyTask.get_result(self, result_id)

    async def aget_result(self, result_id: str) -> AnyTaskResult:
        with self._use_own_env():
            return await AnyTask.aget_result(self, result_id)

    def _use_own_env(self) -> AbstractContextManager[EnvRef | None]:
        return nullcontext() if self.env is None else use_env(parse_env(self.env))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadraceTaskResult(AnyTaskResult):
    """The result of a Django task. It is refreshed from the environment of its job, whatever the current one is."""

    env: EnvRef

    def refresh(self) -> None:
        """Read the result again. Raises TaskResultDoesNotExist if it is not kept any more."""
        with use_env(self.env):
            AnyTaskResult.refresh(self)

    async def arefresh(self) -> None:
        await sync_to_async(self.refresh, thread_sensitive=True)()


def set_field(result: AnyTaskResult, name: str, value: object) -> None:
    """Change a field of a result, which is frozen for its users."""
    object.__setattr__(result, name, value)
