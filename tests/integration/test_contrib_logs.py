"""Fields of the running job in log lines, on a real Valkey."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import pickle
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog

from headrace import Headrace, current_job
from headrace.cli.logs import JobFilter
from headrace.contrib.logs import FIELDS, JobFields
from headrace.contrib.structlog import HEADER, Structlog
from headrace.model.job import LeasedJob
from headrace.model.names import QueueRef
from headrace.queue.job_context import read_job_fields, running_job
from tests.contrib import import_process_app

ENV = "acme/shop/prod"


@pytest.fixture
def app(valkey_url: str) -> Generator[Headrace]:
    with Headrace(valkey_url, env=ENV, queue="emails") as app:
        yield app


@pytest.fixture(autouse=True)
def _clean_structlog() -> Generator[None]:
    structlog.contextvars.clear_contextvars()
    yield
    structlog.contextvars.clear_contextvars()


def run_all(app: Headrace) -> None:
    asyncio.run(app.worker(concurrency=2).run_until_idle())


def test_log_records_have_the_fields_of_their_job(app: Headrace) -> None:
    log = logging.getLogger("tests.shop")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(JobFields())
    handler.setFormatter(logging.Formatter("%(task)s|%(queue)s|%(org)s/%(project)s/%(env)s|%(attempt)s|%(message)s"))

    @app.task
    async def on_loop() -> None:
        log.warning("loop")

    @app.task
    def in_thread() -> None:
        log.warning("thread", extra={"task": "its own"})

    log.addHandler(handler)
    try:
        log.warning("outside")
        on_loop.enqueue()
        run_all(app)
        in_thread.enqueue()
        run_all(app)
    finally:
        log.removeHandler(handler)
    assert stream.getvalue().splitlines() == [
        "||//||outside",
        "on_loop|emails|acme/shop/prod|1|loop",
        "its own|emails|acme/shop/prod|1|thread",
    ]


def test_the_command_line_and_the_filter_have_the_same_fields() -> None:
    job = LeasedJob(QueueRef("acme", "shop", "prod", "emails"), "id", "send", b"", 2, 5, "lease", 0, 0)
    token = running_job.set(job)
    try:
        record = logging.makeLogRecord({})
        assert JobFields().filter(record)
        assert JobFilter().filter(record)
        assert tuple(read_job_fields()) == FIELDS
        assert {name: getattr(record, name) for name in FIELDS} == getattr(record, "job_fields")  # noqa: B009
    finally:
        running_job.reset(token)
    pickle.loads(pickle.dumps(JobFields()))  # a child process takes over the filters of its parent


def test_structlog_has_the_fields_of_the_job_and_those_that_are_carried(app: Headrace) -> None:
    app.middleware = [Structlog(carry=("request", "user"))]
    seen: list[dict[str, Any]] = []

    @app.task
    async def on_loop() -> None:
        seen.append(structlog.contextvars.get_contextvars())

    @app.task
    def in_thread() -> None:
        seen.append(structlog.contextvars.get_contextvars())
        structlog.contextvars.bind_contextvars(own=True)

    @app.task
    def other() -> None:
        seen.append(structlog.contextvars.get_contextvars())

    user = UUID(int=7)
    with structlog.contextvars.bound_contextvars(request=12, user=user, secret="x"):
        handles = [on_loop.enqueue()]
        run_all(app)
        handles.append(in_thread.enqueue())
    run_all(app)
    handles.append(other.enqueue())
    run_all(app)
    fields = {"queue": "emails", "org": "acme", "project": "shop", "env": "prod", "attempt": 1}
    carried = {"request": 12, "user": str(user)}
    assert {name: value for name, value in seen[0].items() if name != "secret"} == {
        **fields,
        **carried,
        "job_id": handles[0].id,
        "task": "on_loop",
    }
    assert seen[1] == {**fields, **carried, "job_id": handles[1].id, "task": "in_thread"}
    assert seen[2] == {**fields, "job_id": handles[2].id, "task": "other"}


def test_a_header_that_is_not_readable_fails_no_job(app: Headrace) -> None:
    app.middleware = [Structlog(carry=("request",))]
    seen: list[object] = []

    @app.task
    async def work() -> None:
        seen.append((current_job().headers[HEADER], structlog.contextvars.get_contextvars().get("request")))

    work.using(headers={HEADER: "{"}).enqueue()
    run_all(app)
    work.using(headers={HEADER: "[]"}).enqueue()
    run_all(app)
    assert seen == [("{", None), ("[]", None)]


def test_structlog_has_the_fields_in_a_child_process(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "fields.json"
    with import_process_app(valkey_url, monkeypatch) as module:
        with structlog.contextvars.bound_contextvars(request="r1"):
            handle = module.write_fields.enqueue(str(file))
        run_all(module.app)
    fields = json.loads(file.read_text())
    assert (fields["job_id"], fields["task"], fields["request"]) == (handle.id, "write_fields", "r1")
