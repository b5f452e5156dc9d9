"""The backend without a worker: enqueue, results of waiting jobs, options, validation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import AsyncClient as AsyncWebClient
from django.test import Client as WebClient
from django.test import override_settings
from django.utils.safestring import mark_safe

from headrace import Headrace, JobState, NewJob
from headrace.contrib.django import HeadraceBackend, HeadraceTask
from headrace.contrib.django.compat import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from headrace.errors import NoEnvironment
from headrace.model.names import EnvRef, QueueRef
from tests.django.conftest import get_backend, wait_async
from tests.django.shop import tasks
from tests.django.shop.settings import BACKEND, ENV, make_tasks

ACME = EnvRef("acme", "shop", "prod")

# Without types of their own.
atomic: Any = transaction.atomic
web: Any = WebClient()
async_web: Any = AsyncWebClient()


def get_info(backend: HeadraceBackend, job_id: str, env: EnvRef = ACME) -> Any:
    return backend.app.transport.get(env, job_id)


@pytest.mark.parametrize("task", [tasks.add, tasks.async_add])
@pytest.mark.parametrize("is_async", [False, True])
def test_enqueue(backend: HeadraceBackend, task: Any, is_async: bool) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)  # times have milliseconds
    result = wait_async(lambda: task.aenqueue(1, b=2)) if is_async else task.enqueue(1, b=2)
    assert result.status == TaskResultStatus.READY
    assert not result.is_finished
    assert (result.args, result.kwargs, result.backend) == ([1], {"b": 2}, "default")
    assert before <= result.enqueued_at <= datetime.now(UTC)
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert len(result.id) < 64
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    job = get_info(backend, result.id)
    assert (job.state, job.task, job.queue) == (JobState.READY, task.module_path, "default")
    assert (job.payload, job.max_attempts) == (b'{"args":[1],"kwargs":{"b":2}}', 1)


def test_flags(backend: HeadraceBackend) -> None:
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_priority
    assert backend.supports_get_result
    assert not get_backend("unkept").supports_get_result
    with pytest.raises(NotImplementedError):
        get_backend("unkept").get_result("x")


@pytest.mark.parametrize("is_async", [False, True])
def test_get_result(backend: HeadraceBackend, is_async: bool) -> None:
    run_after = datetime.now(UTC) + timedelta(hours=1)
    result = tasks.add.using(priority=5, run_after=run_after, queue_name="mail").enqueue(1, b=2)
    found = wait_async(partial(backend.aget_result, result.id)) if is_async else backend.get_result(result.id)
    assert found == result
    assert (found.status, found.args, found.kwargs) == ("READY", [1], {"b": 2})
    assert tasks.add.get_result(result.id) == found


@pytest.mark.parametrize("is_async", [False, True])
def test_refresh(backend: HeadraceBackend, is_async: bool) -> None:
    result = tasks.add.enqueue(1)
    backend.app.handle(result.id).cancel()
    with pytest.raises(TaskResultDoesNotExist):
        wait_async(result.arefresh) if is_async else result.refresh()


@pytest.mark.parametrize("result_id", ["01a1eb62-0000-7000-8000-000000000000", "not an id", "", "a\nb", "x" * 500, 5])
def test_missing_and_invalid_ids(backend: HeadraceBackend, result_id: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(result_id)
    with pytest.raises(TaskResultDoesNotExist):
        wait_async(partial(backend.aget_result, result_id))


def test_job_of_another_producer(backend: HeadraceBackend) -> None:
    job = NewJob(tasks.add.module_path, b'{"args":[1],"kwargs":{}}', "order-7")
    backend.app.transport.enqueue_many(QueueRef("acme", "shop", "prod", "default"), [job])
    found = backend.get_result("order-7")
    assert found.args == [1]
    assert found.enqueued_at is not None


def test_result_of_another_task(backend: HeadraceBackend) -> None:
    result = tasks.add.enqueue(1)
    with pytest.raises(TaskResultMismatch):
        tasks.async_add.get_result(result.id)
    with pytest.raises(TaskResultMismatch):
        wait_async(lambda: tasks.async_add.aget_result(result.id))


def test_jobs_that_are_no_django_tasks(backend: HeadraceBackend) -> None:
    client = backend.app.transport.get_client()  # type: ignore
    for job_id, task, payload in (
        ("unknown", "tests.django.shop.tasks.absent", b'{"args":[],"kwargs":{}}'),
        ("function", "tests.django.shop.tasks.not_a_task", b'{"args":[],"kwargs":{}}'),
        ("payload", tasks.add.module_path, b"[1]"),
        ("short name", "send", b"{}"),
    ):
        client.enqueue(QueueRef("acme", "shop", "prod", "default"), NewJob(task, payload, job_id))
        with pytest.raises(InvalidTask):
            backend.get_result(job_id)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 101}, "whole number"),
        ({"priority": 1.5}, "whole number"),
        ({"run_after": datetime(2040, 1, 1)}, "aware"),
        ({"queue_name": "nowhere"}, "not valid for backend"),
        ({"env": "acme"}, "no environment"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 1001}, "max_attempts"),
        ({"ttl": 0}, "ttl"),
    ],
)
def test_validation(backend: HeadraceBackend, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        tasks.add.using(**options)


def test_tasks_are_validated_at_enqueue(use_tasks: Callable[..., HeadraceBackend], valkey_url: str) -> None:
    use_tasks()
    changed = make_tasks(valkey_url)
    changed["default"]["QUEUES"] = ["default"]
    with override_settings(TASKS=changed):
        with pytest.raises(InvalidTask, match="not valid for backend"):
            tasks.mail.enqueue(1)
        with pytest.raises(InvalidTask, match="not valid for backend"):
            wait_async(lambda: tasks.mail.aenqueue(1))
        changed["default"]["QUEUES"] = []


def test_any_queue_is_valid_without_names(use_tasks: Callable[..., HeadraceBackend], valkey_url: str) -> None:
    use_tasks()
    changed = make_tasks(valkey_url)
    changed["default"]["QUEUES"] = []
    with override_settings(TASKS=changed):
        assert get_info(get_backend(), tasks.add.using(queue_name="new").enqueue(1).id).queue == "new"


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), float("inf"), b"\xff", datetime.now(UTC)])
def test_arguments_that_are_no_json(backend: HeadraceBackend, value: Any) -> None:
    for call in (lambda: tasks.add.enqueue(value), lambda: tasks.add.enqueue(a=[value])):
        with pytest.raises((TypeError, ValueError)):
            call()


def test_arguments_are_normalized(backend: HeadraceBackend) -> None:
    result = tasks.note.enqueue((1, b"text", {"a": ("b",)}))
    assert result.args == [[1, "text", {"a": ["b"]}]]
    assert backend.get_result(result.id).args == result.args


def test_subclasses_of_text_and_numbers(backend: HeadraceBackend) -> None:
    result = tasks.note.enqueue(mark_safe("<b>"), number=HTTPStatus.OK, status=TaskResultStatus.READY)
    assert (result.args, result.kwargs) == (["<b>"], {"number": 200, "status": "READY"})
    assert {type(each) for each in (*result.args, *result.kwargs.values(), result.id)} == {str, int}
    assert backend.get_result(result.id) == result


def test_options_of_the_job(backend: HeadraceBackend) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    task = tasks.add.using(priority=-7, run_after=later, ttl=7200, max_attempts=3)
    assert isinstance(task, HeadraceTask)
    job = get_info(backend, task.enqueue(1).id)
    assert (job.state, job.priority, job.max_attempts) == (JobState.SCHEDULED, -7, 3)
    assert abs(job.due_at_ms - later.timestamp() * 1000) < 60_000
    assert job.expires_at_ms > job.due_at_ms
    assert get_info(backend, tasks.add.using(run_after=datetime(2020, 1, 1, tzinfo=UTC)).enqueue(1).id).state == "ready"


def test_options_of_using_are_kept(backend: HeadraceBackend) -> None:
    task = tasks.add.using(priority=5, max_attempts=2).using(ttl=5).using(env="globex/shop/prod")
    assert (task.priority, task.max_attempts, task.ttl, task.env) == (5, 2, 5, "globex/shop/prod")
    assert tasks.add.priority == 0


def test_environment_of_a_task(backend: HeadraceBackend) -> None:
    task = tasks.add.using(env="globex/shop/prod")
    result = task.enqueue(1)
    assert get_info(backend, result.id) is None
    assert get_info(backend, result.id, EnvRef("globex", "shop", "prod")).task == tasks.add.module_path
    result.refresh()
    wait_async(result.arefresh)
    assert task.get_result(result.id).env == EnvRef("globex", "shop", "prod")
    assert wait_async(lambda: task.aget_result(result.id)).id == result.id
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add.get_result(result.id)


def test_environment_of_the_context(use_tasks: Callable[..., HeadraceBackend]) -> None:
    backend = use_tasks(env=None)
    with pytest.raises(NoEnvironment):
        tasks.add.enqueue(1)
    with pytest.raises(NoEnvironment):
        backend.get_result("x")
    with backend.app.tenant("globex/shop/prod"):
        result = tasks.add.enqueue(1)
        other = wait_async(lambda: tasks.add.aenqueue(1))
        assert backend.get_result(result.id).id == result.id
    result.refresh()  # outside of the context
    other.refresh()
    assert result.env == other.env == EnvRef("globex", "shop", "prod")


def test_tenant_of_a_request(backend: HeadraceBackend) -> None:
    globex = EnvRef("globex", "shop", "prod")
    assert get_info(backend, web.get("/enqueue").content.decode()) is not None
    for answer in (
        web.get("/enqueue", headers={"x-tenant": "globex/shop/prod"}),
        web.get("/aenqueue", headers={"x-tenant": "globex/shop/prod"}),
        wait_async(lambda: async_web.get("/enqueue", headers={"x-tenant": "globex/shop/prod"})),
        wait_async(lambda: async_web.get("/aenqueue", headers={"x-tenant": "globex/shop/prod"})),
    ):
        assert get_info(backend, answer.content.decode(), globex) is not None


def test_enqueue_does_not_wait_for_the_commit(backend: HeadraceBackend) -> None:
    with atomic():
        result = tasks.add.enqueue(1)
        assert backend.get_result(result.id).status == TaskResultStatus.READY


def test_enqueue_on_commit(use_tasks: Callable[..., HeadraceBackend]) -> None:
    backend = use_tasks(on_commit="default")
    with atomic():
        result = tasks.add.enqueue(1)
        assert result.enqueued_at is None
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(result.id)
        with backend.app.tenant("globex/shop/prod"):  # the environment is that of the enqueue, not of the commit
            other = tasks.add.enqueue(1)
    result.refresh()
    other.refresh()
    assert result.enqueued_at is not None
    assert other.env.org == "globex"
    with atomic():
        lost = tasks.add.enqueue(1)
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        lost.refresh()
    assert tasks.add.enqueue(1).enqueued_at is not None  # outside of a transaction


def test_signal_and_log_of_enqueue(backend: HeadraceBackend, caplog: pytest.LogCaptureFixture) -> None:
    received: list[Any] = []

    def receive(sender: Any, task_result: Any, **_: Any) -> None:
        received.append((sender, task_result.id, task_result.enqueued_at is not None))
        raise ValueError("a receiver that fails")

    task_enqueued.connect(receive)
    try:
        with caplog.at_level(logging.DEBUG):
            result = tasks.add.enqueue(1)
    finally:
        task_enqueued.disconnect(receive)
    assert received == [(HeadraceBackend, result.id, True)]
    assert f"Task id={result.id} path={tasks.add.module_path} enqueued backend=default" in caplog.messages


def test_backends_share_an_app(backend: HeadraceBackend, valkey_url: str) -> None:
    assert isinstance(backend.app, Headrace)
    assert wait_async(_get_backend_in_loop).app is backend.app
    assert get_backend("other").app is not backend.app


async def _get_backend_in_loop() -> HeadraceBackend:
    return get_backend()


@pytest.mark.parametrize(
    "options", [{"env": "acme"}, {"urll": "x"}, {"result_ttl": 0}, {"middleware": ["os.path"]}, {"middleware": ["no"]}]
)
def test_invalid_options(options: dict[str, Any]) -> None:
    tasks_setting = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
    with override_settings(TASKS=tasks_setting), pytest.raises(InvalidTaskBackend):
        _ = task_backends["default"]


def test_tasks_are_listed(backend: HeadraceBackend) -> None:
    tasks.add.enqueue(1)
    assert tasks.add.module_path in backend.app.names()
    assert backend.app.get("tests.django.shop.tasks.note") is not None
    assert "tests.django.shop.tasks.note" in backend.app.names()
    for missing in ("tests.django.shop.tasks.absent", "tests.absent.task", "send", ""):
        assert backend.app.get(missing) is None
        assert repr(missing) in backend.app.describe_missing(missing)


def test_worker_needs_a_backend_of_headrace(valkey_url: str) -> None:
    dummy = make_tasks(valkey_url)["dummy"]
    with override_settings(TASKS={"default": dummy}), pytest.raises(CommandError, match="TASKS has no backend"):
        call_command("headrace_worker")
    with override_settings(TASKS=make_tasks(valkey_url)):
        with pytest.raises(CommandError, match="no backend of Headrace"):
            call_command("headrace_worker", backend="dummy")
        with pytest.raises(CommandError, match="at least 1"):
            call_command("headrace_worker", concurrency=0)


def test_environment_of_the_options_is_used(backend: HeadraceBackend) -> None:
    assert backend.app.env == ACME
    assert ENV == "acme/shop/prod"
