"""`HeadraceBackend`: enqueues Django tasks and reads their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from django.db import transaction
from django.utils import timezone

from headrace.app.context import find_env, parse_env
from headrace.app.duration import to_ms
from headrace.app.records import parse_attempts
from headrace.app.task import JobOptions, JobSpec
from headrace.contrib.django.app import DjangoHeadrace, get_app
from headrace.contrib.django.arguments import DjangoArguments, to_plain_json
from headrace.contrib.django.compat import (
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from headrace.contrib.django.results import build_result, find_enqueued
from headrace.contrib.django.task import HeadraceTask, HeadraceTaskResult, set_field
from headrace.errors import InvalidJob, InvalidName, NoEnvironment
from headrace.model.names import EnvRef, find_name_problem
from headrace.queue.validate import MAX_ATTEMPTS

OPTION_NAMES = ("env", "middleware", "on_commit", "postgres", "result_ttl", "url")


class HeadraceBackend(BaseTaskBackend):
    """Django tasks as jobs of Headrace.

    OPTIONS: `url` and `postgres` (default: the settings of Headrace), `env` ("org/project/env"; without it every
    enqueue needs an environment from its context or task), `result_ttl` (seconds, default one day; None: keep no
    results), `on_commit` (alias of a database: enqueue when its transaction commits), `middleware` (of Headrace)."""

    task_class = HeadraceTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options: Mapping[str, Any] = self.options
        if unknown := sorted(set(options) - set(OPTION_NAMES)):
            raise InvalidTaskBackend(
                f"TASKS[{alias!r}] has an unknown option {unknown[0]!r}. Options: {', '.join(OPTION_NAMES)}."
            )
        try:
            self.app: DjangoHeadrace = get_app(alias, options)
            if self.app.result_ttl is not None and to_ms(self.app.result_ttl) <= 0:
                raise ValueError("result_ttl is not positive. Use None to keep no results.")
        except (ValueError, TypeError, ImportError) as error:
            raise InvalidTaskBackend(f"TASKS[{alias!r}] has an invalid option: {error}") from error
        self.supports_get_result = self.app.result_ttl is not None
        self._commit_alias: str | None = options.get("on_commit")

    def validate_task(self, task: AnyTask) -> None:
        """Raise InvalidTask if the task cannot be a job. Called for every task that is created, and at enqueue."""
        super().validate_task(task)
        path = task.module_path
        for what, name in (("The path of the task", path), ("The name of the queue", task.queue_name)):
            if problem := find_name_problem(name):
                raise InvalidTask(f"{what}, {name!r}, {problem}.")
        if isinstance(task, HeadraceTask):
            _validate_options(task)
        self.app.declare(path)

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> HeadraceTaskResult:
        """Enqueue a task: at once, or with `on_commit` when the current transaction commits. Raises InvalidTask, and
        TypeError or ValueError for arguments that are no JSON; nothing is written then."""
        self.validate_task(task)
        env = self._choose_env(task)
        result = HeadraceTaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=to_plain_json(args),
            kwargs=to_plain_json(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
            env=env,
        )
        spec = self._make_spec(task, env, result)
        set_field(result, "id", str(spec.id))
        if self._commit_alias is None:
            self._send(spec, result)
        else:
            transaction.on_commit(partial(self._send, spec, result), using=self._commit_alias)
        return result

    def _make_spec(self, task: AnyTask, env: EnvRef, result: HeadraceTaskResult) -> JobSpec[Any]:
        arguments = DjangoArguments.of(task, result.args, result.kwargs).pack()
        options: JobOptions = {"env": env, "queue": task.queue_name, "priority": int(task.priority)}
        if task.run_after is not None:
            naive = timezone.is_naive(task.run_after)
            options["at"] = timezone.make_aware(task.run_after) if naive else task.run_after
        if isinstance(task, HeadraceTask):
            if task.ttl is not None:
                options["ttl"] = task.ttl
            if task.max_attempts is not None:
                options["max_attempts"] = task.max_attempts
        return self.app.get_job_task(task.module_path).using(**options).job(**arguments)

    def _send(self, spec: JobSpec[Any], result: HeadraceTaskResult) -> None:
        self.app.send_one(spec)
        set_field(result, "enqueued_at", find_enqueued(spec.id, None))
        # The job is accepted, so an error of a receiver must not reach the producer. Django logs it.
        task_enqueued.send_robust(sender=type(self), task_result=result)

    def _choose_env(self, task: AnyTask | None) -> EnvRef:
        given = task.env if isinstance(task, HeadraceTask) else None
        env = (parse_env(given) if given is not None else find_env()) or self.app.env
        if env is None:
            raise NoEnvironment()
        return env

    def get_result(self, result_id: str) -> HeadraceTaskResult:
        """Return the result of a job in the environment of the context, or of the backend. Raises
        TaskResultDoesNotExist, and InvalidTask if the task of the job is not in this process."""
        if not self.supports_get_result:
            return cast(Any, super().get_result(result_id))
        env = self._choose_env(None)
        if not isinstance(cast(object, result_id), str):
            raise TaskResultDoesNotExist(result_id)
        try:
            info = self.app.transport.get(env, result_id)
            # In this order, because a job that has ended has all its records.
            attempts = parse_attempts(self.app.transport.read_attempts(env, result_id))
        except (InvalidJob, InvalidName) as error:
            raise TaskResultDoesNotExist(result_id) from error
        return build_result(self.alias, env, result_id, info, attempts)


def _validate_options(task: HeadraceTask) -> None:
    if task.env is not None:
        try:
            parse_env(task.env)
        except ValueError as error:
            raise InvalidTask(str(error)) from error
    if task.max_attempts is not None and not 1 <= task.max_attempts <= MAX_ATTEMPTS:
        raise InvalidTask(f"max_attempts is {task.max_attempts}. Use a number from 1 to {MAX_ATTEMPTS}.")
    if task.ttl is not None and to_ms(task.ttl) <= 0:
        raise InvalidTask(f"ttl is {task.ttl}. Use a positive duration.")
