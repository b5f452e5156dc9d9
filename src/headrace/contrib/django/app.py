"""The Headrace app of a Django backend: its tasks are Django tasks, which it finds by their import path."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from headrace.app.duration import Seconds
from headrace.app.headrace import Headrace
from headrace.app.middleware import Middleware
from headrace.app.retry import Retry
from headrace.app.task import SyncTask, Task, TaskSettings
from headrace.contrib.django.execution import DjangoExecution, call_django_task
from headrace.queue.tasks import RegisteredTask

log = logging.getLogger(__name__)

DAY_S = 86_400.0


class DjangoJobTask(SyncTask[..., Any]):
    """The Headrace task of one Django task. Its name is the import path of the Django task, and its arguments are
    `args` and `kwargs`. The Django task itself is imported when a job runs."""

    def __init__(self, app: DjangoHeadrace, path: str) -> None:
        super().__init__(app, call_django_task, path, TaskSettings(result_ttl=app.result_ttl))
        self.execution = DjangoExecution(self, app.alias)

    @property
    def retry(self) -> Retry:
        """The delays of the settings. One attempt unless a job has more: Django tasks are not retried."""
        return replace(self.app.retry, attempts=1)


class DjangoHeadrace(Headrace):
    """The app of a Django backend."""

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        """Raises ValueError if an option is invalid."""
        middleware = [_load_middleware(each) for each in options.get("middleware", ())]
        super().__init__(
            options.get("url"), postgres=options.get("postgres"), env=options.get("env"), middleware=middleware
        )
        self.alias = alias
        self.result_ttl: Seconds | None = options.get("result_ttl", DAY_S)
        self._lock = threading.Lock()
        self._job_tasks: dict[str, DjangoJobTask] = {}
        self._runnable: dict[str, RegisteredTask] = {}  # paths that can be imported here
        self._declared: set[str] = set()
        self._import_errors: dict[str, str] = {}

    def declare(self, path: str) -> None:
        """List a task among those of this process. Called for every Django task of the backend that is created."""
        self._declared.add(path)

    def get_job_task(self, path: str) -> DjangoJobTask:
        """Return the Headrace task of a path, which need not exist in this process."""
        task = self._job_tasks.get(path)
        if task is None:
            with self._lock:
                task = self._job_tasks.setdefault(path, DjangoJobTask(self, path))
        return task

    # What the worker asks for

    def find_task(self, name: str) -> Task[Any, Any] | None:
        return self.get_job_task(name) if self.get(name) is not None else None

    def list_typed(self) -> list[Task[Any, Any]]:
        return [*self._job_tasks.values(), *super().list_typed()]

    def list_tasks(self) -> list[RegisteredTask]:
        return [task for name in self.names() if (task := self.get(name)) is not None]

    def names(self) -> list[str]:
        return sorted(self._declared.copy() | self._runnable.keys())

    def get(self, name: str) -> RegisteredTask | None:
        """Return the task of an import path; None if nothing can be imported from there. What is imported may be no
        Django task: its jobs fail."""
        found = self._runnable.get(name)
        if found is not None:
            return found
        try:
            import_string(name)
        except Exception as error:
            if not isinstance(error, ImportError):
                log.exception("importing %s failed", name, extra={"action": "task_import_failed"})
            self._import_errors[name] = f"{type(error).__name__}: {error}"
            return None
        self._import_errors.pop(name, None)
        found = self._runnable[name] = self.get_job_task(name).execution.register(name)
        return found

    def describe_missing(self, name: str) -> str:
        return f"This worker cannot import the Django task {name!r} ({self._import_errors.get(name, 'not tried')})."

    def forget_registered(self) -> None:
        self._runnable = {}
        super().forget_registered()


_apps: dict[tuple[str, str], DjangoHeadrace] = {}
_apps_lock = threading.Lock()


def get_app(alias: str, options: Mapping[str, Any]) -> DjangoHeadrace:
    """Return the app of a backend. Django creates a backend per thread; those with the same options share one app, and
    so its connections. Raises ValueError if an option is invalid."""
    key = alias, json.dumps(options, sort_keys=True, default=repr)
    app = _apps.get(key)
    if app is None:
        with _apps_lock:
            app = _apps.get(key)
            if app is None:
                app = _apps[key] = DjangoHeadrace(alias, options)
    return app


def close_apps() -> None:
    """Close the connections of all apps, and forget them."""
    with _apps_lock:
        apps = list(_apps.values())
        _apps.clear()
    for app in apps:
        app.close()


def _close_apps_of_old_settings(*, setting: str, **_: object) -> None:
    if setting == "TASKS":
        close_apps()


setting_changed.connect(_close_apps_of_old_settings, dispatch_uid="headrace.contrib.django.app")


def _load_middleware(given: object) -> Middleware:
    """Return a middleware that is given as an object, a class or the import path of either."""
    found = import_string(given) if isinstance(given, str) else given
    if isinstance(found, type):
        found = cast(Any, found)()
    if not isinstance(found, Middleware):
        raise ValueError(f"{given!r} is no middleware of Headrace.")
    return found
