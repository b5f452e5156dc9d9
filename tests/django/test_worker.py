"""Django tasks in a worker: return values, failures, context, order, signals, connections."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from django.db import connections

from headrace import JobState, Middleware, NewJob, Outgoing, RunningJob
from headrace.app.records import name_worker
from headrace.contrib.django import HeadraceBackend
from headrace.contrib.django.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_finished,
    task_started,
)
from headrace.contrib.django.execution import MAX_VALUE_BYTES
from headrace.model.names import EnvRef, QueueRef
from tests.django.conftest import get_backend, run_all, run_until
from tests.django.shop import tasks

QUEUE = QueueRef("acme", "shop", "prod", "default")


def enqueue_raw(backend: HeadraceBackend, task: str, payload: bytes = b'{"args":[],"kwargs":{}}') -> str:
    job = NewJob(task, payload, max_attempts=1)
    backend.app.transport.enqueue_many(QUEUE, [job])
    return job.id


def read_state(backend: HeadraceBackend, job_id: str) -> JobState | None:
    info = backend.app.transport.get(QUEUE.environment, job_id)
    return None if info is None else info.state


@pytest.fixture
def signals() -> Iterator[list[tuple[str, str, str]]]:
    """Return (signal, status, attempts) of every signal of a worker."""
    received: list[tuple[str, str, str]] = []

    def receive_started(sender: Any, task_result: Any, **_: Any) -> None:
        assert sender is HeadraceBackend
        received.append(("started", str(task_result.status), str(task_result.attempts)))

    def receive_finished(sender: Any, task_result: Any, **_: Any) -> None:
        assert sender is HeadraceBackend
        received.append(("finished", str(task_result.status), str(task_result.attempts)))
        raise ValueError("a receiver that fails")

    task_started.connect(receive_started)
    task_finished.connect(receive_finished)
    yield received
    task_started.disconnect(receive_started)
    task_finished.disconnect(receive_finished)


@pytest.mark.parametrize("task", [tasks.add, tasks.async_add])
def test_success(backend: HeadraceBackend, task: Any) -> None:
    result = task.using(priority=3, queue_name="mail").enqueue(1, b=2)
    run_all(backend, result)
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.return_value == 3
    assert result.enqueued_at <= result.finished_at
    assert result.started_at == result.last_attempted_at <= result.finished_at
    assert (result.errors, result.attempts, result.worker_ids) == ([], 1, [name_worker()])
    found = backend.get_result(result.id)  # the job is done: all of it is from its record
    assert found == result
    assert (found.task.priority, found.task.queue_name, found.args, found.kwargs) == (3, "mail", [1], {"b": 2})


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": [1, None, True, 1.5]}, "ü\n", 2**53, 2**70, -(2**70)])
def test_return_values(backend: HeadraceBackend, value: Any) -> None:
    result = tasks.note.enqueue(value)
    run_all(backend, result)
    assert result.return_value == value


def test_text_that_is_marked_safe(backend: HeadraceBackend) -> None:
    result = tasks.render.enqueue()
    run_all(backend, result)
    assert (result.status, result.return_value) == ("SUCCESSFUL", {"<b>": "<i>", "1": 200})


def test_result_without_job(backend: HeadraceBackend) -> None:
    """A dead job that was removed has a result still."""
    result = tasks.fail.enqueue("gone")
    run_all(backend, result)
    client = backend.app.transport.get_client()  # type: ignore
    assert client.remove_dead(QUEUE) == 1
    assert read_state(backend, result.id) is None
    found = backend.get_result(result.id)
    assert found == result
    assert (found.status, found.args, found.errors[0].exception_class) == ("FAILED", ["gone"], ValueError)


@pytest.mark.parametrize(
    ("task", "kind", "text"),
    [
        (tasks.fail, ValueError, "ValueError: no"),
        (tasks.fail_with_complex_exception, ValueError, "inner"),
        (tasks.exit_program, SystemExit, "SystemExit: bye"),
        (tasks.async_exit_program, SystemExit, "SystemExit: bye"),
        (tasks.interrupt, KeyboardInterrupt, "KeyboardInterrupt"),
        (tasks.raise_cancelled, asyncio.CancelledError, "CancelledError: no"),
        (tasks.return_no_json, TypeError, "Unsupported type"),
        (tasks.describe, TypeError, "takes"),
    ],
)
def test_failure(backend: HeadraceBackend, task: Any, kind: type[BaseException], text: str) -> None:
    result = task.enqueue(1, 2, 3) if task is tasks.describe else task.enqueue()
    following = tasks.add.enqueue(1)
    run_all(backend, result, following)
    assert result.status == TaskResultStatus.FAILED
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert result.attempts == 1
    assert result.finished_at is not None
    assert result.started_at is not None
    (error,) = result.errors
    assert error.exception_class is kind
    assert text in error.traceback
    assert task.func.__name__ in error.traceback or kind is TypeError
    assert following.return_value == 1
    assert backend.get_result(result.id) == result


def test_a_return_value_that_is_too_long_fails(backend: HeadraceBackend) -> None:
    short, long = tasks.return_much.enqueue(MAX_VALUE_BYTES - 2), tasks.return_much.enqueue(MAX_VALUE_BYTES - 1)
    run_all(backend, short, long)
    assert len(short.return_value or "") == MAX_VALUE_BYTES - 2
    assert (long.status, long.errors[0].exception_class) == ("FAILED", ValueError)


def test_long_arguments_are_not_kept_with_the_result(backend: HeadraceBackend) -> None:
    result = tasks.add.enqueue(1, len("x" * 10))
    long = tasks.note.enqueue(["x" * 1000] * 50)
    longer = tasks.describe.enqueue("x" * 70_000)
    run_all(backend, result, longer, long)
    assert longer.status == TaskResultStatus.FAILED  # it returns its argument
    assert backend.get_result(long.id).return_value == ["x" * 1000] * 50
    assert backend.get_result(long.id).args == []


def test_unknown_path_is_deferred(backend: HeadraceBackend, caplog: pytest.LogCaptureFixture) -> None:
    job_ids = [enqueue_raw(backend, path) for path in ("tests.django.shop.tasks.absent", "send")]
    known = tasks.add.enqueue(1)
    with caplog.at_level(logging.WARNING):
        run_until(backend, lambda: all(read_state(backend, each) == JobState.SCHEDULED for each in job_ids))
        run_all(backend, known)
    assert "cannot import the Django task 'tests.django.shop.tasks.absent'" in caplog.text
    for job_id in job_ids:
        info = backend.app.transport.get(QUEUE.environment, job_id)
        assert info is not None
        assert info.attempts == 0


def test_path_of_something_else_fails(backend: HeadraceBackend) -> None:
    job_id = enqueue_raw(backend, "tests.django.shop.tasks.not_a_task")
    run_until(backend, lambda: read_state(backend, job_id) == JobState.DEAD)
    info = backend.app.transport.get(QUEUE.environment, job_id)
    assert info is not None
    assert "is a function, not a task of Django" in (info.error or "")
    with pytest.raises(InvalidTask):
        backend.get_result(job_id)


def test_payload_of_something_else_fails(backend: HeadraceBackend) -> None:
    job_id = enqueue_raw(backend, tasks.add.module_path, b"[1]")
    run_until(backend, lambda: read_state(backend, job_id) == JobState.DEAD)


def test_context(backend: HeadraceBackend) -> None:
    result = tasks.describe.enqueue("text")
    run_all(backend, result)
    assert result.return_value == [1, result.id, "text", 0, 1]
    assert tasks.seen == [TaskResultStatus.RUNNING]


def test_context_of_a_retry(backend: HeadraceBackend) -> None:
    tasks.failures_left[0] = 2
    result = tasks.describe.using(max_attempts=3).enqueue("text")
    run_all(backend, result)
    assert result.return_value == [3, result.id, "text", 2, 3]
    assert result.attempts == 3
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert result.started_at < result.last_attempted_at
    assert result.worker_ids == [name_worker()] * 3


def test_a_task_is_not_retried(backend: HeadraceBackend) -> None:
    tasks.failures_left[0] = 1
    result = tasks.fail_at_first.enqueue()
    run_all(backend, result)
    assert (result.status, result.attempts) == ("FAILED", 1)


def test_redrive(backend: HeadraceBackend) -> None:
    """A failed task that is enqueued again is ready again, with its error."""
    tasks.failures_left[0] = 1
    result = tasks.fail_at_first.enqueue()
    run_all(backend, result)
    client = backend.app.transport.get_client()  # type: ignore
    client.redrive(QUEUE)
    result.refresh()
    assert (result.status, len(result.errors)) == ("READY", 1)
    run_all(backend, result)
    assert (result.return_value, len(result.errors)) == ("done", 1)


def test_result_of_a_job_that_ends_while_it_is_read(backend: HeadraceBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redriven job has the record of its first end. It must not hide that of the second."""
    tasks.failures_left[0] = 1
    result = tasks.fail_at_first.enqueue()
    run_all(backend, result)
    transport: Any = backend.app.transport
    transport.get_client().redrive(QUEUE)
    reads: list[str] = []

    def read_first(name: str) -> Callable[..., Any]:
        original = getattr(transport, name)

        def read(*args: Any) -> Any:
            answer = original(*args)
            if not reads:  # the job runs between the first read and the second
                reads.append(name)
                run_until(backend, lambda: read_state(backend, result.id) == JobState.DONE)
            return answer

        return read

    for name in ("get", "read_attempts"):
        monkeypatch.setattr(transport, name, read_first(name))
    assert backend.get_result(result.id).status in ("READY", "SUCCESSFUL")
    assert len(reads) == 1
    assert backend.get_result(result.id).return_value == "done"


def test_priority(backend: HeadraceBackend) -> None:
    results = [tasks.note.using(priority=priority).enqueue(priority) for priority in (0, -100, 50, 100, 10)]
    run_all(backend, *results, concurrency=1)
    assert tasks.seen == [100, 50, 10, 0, -100]


def test_run_after(backend: HeadraceBackend) -> None:
    run_after = datetime.now(UTC) + timedelta(seconds=0.5)
    soon = tasks.note.using(run_after=run_after, priority=100).enqueue("soon")
    past = tasks.note.using(run_after=datetime.now(UTC) - timedelta(hours=1), priority=-1).enqueue("past")
    never = tasks.note.using(run_after=datetime.now(UTC) + timedelta(days=30), priority=100).enqueue("never")
    now = tasks.note.enqueue("now")
    run_all(backend, past, now, soon, concurrency=1)
    never.refresh()
    assert [each for each in tasks.seen if each != "soon"] == ["now", "past"]
    assert soon.started_at >= run_after - timedelta(milliseconds=5)
    assert soon.task.run_after == backend.get_result(soon.id).task.run_after == run_after
    assert (never.status, never.attempts) == ("READY", 0)


def test_other_queues_and_backends_are_untouched(backend: HeadraceBackend) -> None:
    mail, other, own = tasks.mail.enqueue("mail"), tasks.other.enqueue("other"), tasks.note.enqueue("own")
    run_all(backend, mail, own)
    other.refresh()
    assert (other.status, other.attempts, other.backend) == ("READY", 0, "other")
    assert sorted(tasks.seen) == ["mail", "own"]
    run_all(get_backend("other"), other)
    assert tasks.seen[-1] == "other"


def test_one_queue_only(backend: HeadraceBackend) -> None:
    mail, own = tasks.mail.enqueue("mail"), tasks.note.enqueue("own")
    backend.queues = {"mail"}
    try:
        run_all(backend, mail)
    finally:
        backend.queues = {"default", "mail"}
    own.refresh()
    assert own.status == TaskResultStatus.READY


def test_signals_once(backend: HeadraceBackend, signals: list[tuple[str, str, str]]) -> None:
    run_all(backend, tasks.add.enqueue(1))
    assert signals == [("started", "RUNNING", "1"), ("finished", "SUCCESSFUL", "1")]
    signals.clear()
    run_all(backend, tasks.fail.enqueue())
    assert signals == [("started", "RUNNING", "1"), ("finished", "FAILED", "1")]


def test_signals_of_retries(backend: HeadraceBackend, signals: list[tuple[str, str, str]]) -> None:
    tasks.failures_left[0] = 1
    run_all(backend, tasks.fail_at_first.using(max_attempts=2).enqueue())
    assert signals == [("started", "RUNNING", "1"), ("started", "RUNNING", "2"), ("finished", "SUCCESSFUL", "2")]


def test_snooze(backend: HeadraceBackend, signals: list[tuple[str, str, str]]) -> None:
    result = tasks.snooze_once.enqueue()
    run_all(backend, result)
    assert (result.return_value, result.attempts, result.errors) == (2, 1, [])
    assert [each[0] for each in signals] == ["started", "started", "finished"]


def test_logs(backend: HeadraceBackend, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        good, bad = tasks.add.enqueue(1), tasks.fail.enqueue()
        run_all(backend, good, bad)
    own = [record for record in caplog.records if record.name in ("django_tasks", "django.tasks")]

    def find(result: Any) -> list[tuple[str, str]]:
        lines = ((each.levelname, each.getMessage()) for each in own)
        return [(level, line.rpartition(" ")[2]) for level, line in lines if f"id={result.id}" in line]

    assert find(good) == [("DEBUG", "backend=default"), ("INFO", "state=RUNNING"), ("INFO", "state=SUCCESSFUL")]
    assert find(bad) == [("DEBUG", "backend=default"), ("INFO", "state=RUNNING"), ("ERROR", "state=FAILED")]
    (failed,) = [each for each in own if each.levelno == logging.ERROR]
    assert failed.exc_info is not None
    assert failed.exc_info[0] is ValueError
    assert "None" not in "".join(each.getMessage() for each in own)


def test_a_running_task(backend: HeadraceBackend, tmp_path: Path) -> None:
    result = tasks.wait_for.enqueue(str(tmp_path / "go"))
    seen: list[Any] = []

    def is_running() -> bool:
        result.refresh()
        if result.status == TaskResultStatus.RUNNING and (tmp_path / "go.started").exists():
            seen.append((result.finished_at, result.attempts))
            (tmp_path / "go").touch()
        return result.is_finished

    run_until(backend, is_running)
    assert seen[0] == (None, 1)
    assert result.status == TaskResultStatus.SUCCESSFUL


def test_cancelled_job_has_no_result(backend: HeadraceBackend) -> None:
    result = tasks.add.enqueue(1)
    backend.app.handle(result.id).cancel()
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(result.id)


def test_jobs_of_a_job_stay_with_its_tenant(backend: HeadraceBackend) -> None:
    first = tasks.name_tenant.using(env="globex/shop/prod").enqueue()
    parents = [task.using(env="globex/shop/prod").enqueue() for task in (tasks.enqueue_another, tasks.aenqueue_another)]
    run_all(backend, first, *parents)
    assert first.return_value == "globex/shop/prod"
    with backend.app.tenant("globex/shop/prod"):
        children = [backend.get_result(each.return_value or "") for each in parents]
    run_all(backend, *children)
    assert [each.return_value for each in children] == [2, 4]
    assert {each.env for each in children} == {EnvRef("globex", "shop", "prod")}


def test_connections_are_closed_after_a_job(backend: HeadraceBackend, tmp_path: Path) -> None:
    database = cast(Any, connections).databases["default"]
    before, database["NAME"] = database["NAME"], tmp_path / "db.sqlite3"
    try:
        results = [tasks.query.enqueue() for _ in range(3)]
        run_all(backend, *results, concurrency=1)
    finally:
        database["NAME"] = before
    assert [each.return_value for each in results] == [1, 1, 1]
    assert len({id(each) for each in tasks.seen}) == 3
    for connection in tasks.seen:
        with pytest.raises(Exception, match=r"closed|thread"):
            connection.execute("SELECT 1")


def test_connections_are_checked_around_a_job(backend: HeadraceBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    module = "headrace.contrib.django.execution"
    for name in ("close_old_connections", "reset_queries"):
        monkeypatch.setattr(f"{module}.{name}", lambda name=name: calls.append((name, threading.get_ident())))
    run_all(backend, tasks.note.enqueue(1), tasks.fail.enqueue(), concurrency=1)
    names = [name for name, _ in calls]
    assert names == ["reset_queries", "close_old_connections", "close_old_connections"] * 2
    assert threading.get_ident() not in {thread for _, thread in calls}


class Doubling(Middleware):
    """Doubles results, and sends a header, with which payloads have an envelope."""

    @contextmanager
    def sending(self, jobs: Sequence[Outgoing]) -> Generator[None]:
        for job in jobs:
            job.headers["sent-by"] = "test"
        yield

    def calling(self, job: RunningJob, call_next: Callable[[], object]) -> object:
        value = call_next()
        return value * 2 if isinstance(value, int) else value


def test_middleware(use_tasks: Callable[..., HeadraceBackend]) -> None:
    backend = use_tasks(middleware=[f"{__name__}.Doubling"])
    result = tasks.add.enqueue(2, 3)
    assert backend.get_result(result.id).args == [2, 3]
    run_all(backend, result)
    assert result.return_value == 10
    assert backend.get_result(result.id).args == [2, 3]


def test_results_that_are_not_kept(backend: HeadraceBackend) -> None:
    unkept = get_backend("unkept")
    result = tasks.note.using(backend="unkept").enqueue("ran")
    run_until(unkept, lambda: read_state(unkept, result.id) == JobState.DONE)
    assert tasks.seen == ["ran"]
    with pytest.raises(NotImplementedError):
        result.refresh()
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(result.id)


def test_payload_is_plain_json(backend: HeadraceBackend) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    result = tasks.add.using(priority=5, run_after=later).enqueue(1)
    info = backend.app.transport.get(QUEUE.environment, result.id)
    assert info is not None
    using = {"priority": 5, "run_after": later.isoformat()}
    assert json.loads(info.payload) == {"args": [1], "kwargs": {}, "using": using}
