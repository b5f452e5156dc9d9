"""The running job and the environment, and where jobs go."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest

from headrace import Headrace, QueueRef, current_env, current_job
from headrace.errors import ArgumentsInvalid, NoEnvironment, NoJob
from headrace.testing import run_job

mark: ContextVar[str] = ContextVar("mark", default="none")


def test_there_is_no_job_outside_of_jobs() -> None:
    with pytest.raises(NoJob):
        current_job()
    with pytest.raises(NoEnvironment):
        current_env()


def test_a_job_sees_itself() -> None:
    app = Headrace(env="acme/shop/prod")

    @app.task
    def work() -> list[object]:
        job = current_job()
        return [job.id, job.task, job.queue, job.attempt, job.max_attempts, dict(job.headers), job.flow, job.app is app]

    spec = work.using(id="1", queue="mail", max_attempts=3, headers={"a": "b"}, flow="f", flow_type="t").job()
    outcome = asyncio.run(run_job(spec, attempt=2))
    queue = QueueRef("acme", "shop", "prod", "mail")
    assert outcome.value == ["1", "work", queue, 2, 3, {"a": "b"}, "f", True]


def test_nothing_leaks_from_one_job_to_the_next() -> None:
    app, seen = Headrace(env="acme/shop/prod"), list[str]()

    @app.task
    async def on_loop() -> None:
        seen.append(mark.get())
        mark.set("loop")

    @app.task
    def in_thread() -> None:
        seen.append(mark.get())
        mark.set("thread")

    with app.testing() as jobs:
        for task in (on_loop, in_thread) * 2:
            task.enqueue()
        jobs.drain_sync()
    assert seen == ["none"] * 4
    with pytest.raises(NoJob):
        current_job()


def test_a_thread_that_a_task_starts_has_no_job() -> None:
    app, seen = Headrace(env="acme/shop/prod"), list[str]()

    def look() -> None:
        try:
            current_job()
        except NoJob:
            seen.append("no job")

    @app.task
    def work() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    asyncio.run(run_job(work.job()))
    assert seen == ["no job"]


def test_the_environment_is_that_of_the_options_then_of_the_context_then_of_the_app() -> None:
    app = Headrace(env="app/p/e")

    @app.task
    def inner() -> None: ...

    @app.task
    async def outer() -> None:
        await inner.aenqueue()
        with app.tenant("tenant/p/e"):
            await inner.aenqueue()
            await inner.using(env="using/p/e").aenqueue()

    with app.testing() as jobs:
        inner.enqueue()
        with app.tenant("tenant/p/e"):
            inner.enqueue()
            inner.using(env="using/p/e").enqueue()
        outer.using(env="job/p/e").enqueue()
        jobs.drain_sync()
        assert [job.env.org for job in jobs.all(inner)] == ["app", "tenant", "using", "job", "tenant", "using"]
        assert len(jobs.all(inner, env="tenant/p/e")) == 2


def test_without_an_environment_nothing_is_written() -> None:
    app = Headrace()

    @app.task
    def send() -> None: ...

    with app.testing() as jobs:
        with pytest.raises(NoEnvironment, match=r"Nothing was written\."):
            send.enqueue()
        with pytest.raises(NoEnvironment):
            app.enqueue_many([send.using(env="a/b/c").job(), send.job()])
        with pytest.raises(NoEnvironment):
            app.handle("1")
        assert jobs.all() == []


@pytest.mark.parametrize("env", ["", "a/b", "a/b/c/d", "a//c"])
def test_an_environment_has_three_parts(env: str) -> None:
    with pytest.raises(ValueError, match="org/project/env"):
        Headrace(env=env)


def test_jobs_of_a_job_inherit_its_flow() -> None:
    app = Headrace(env="acme/shop/prod")

    @app.task
    async def outer() -> None:
        await inner.aenqueue()
        await inner.using(flow="own").aenqueue()

    @app.task
    def inner() -> None: ...

    with app.testing() as jobs:
        outer.using(flow="order-1").enqueue()
        jobs.drain_sync()
        assert [job.flow for job in jobs.all(inner)] == ["order-1", "own"]


def test_enqueue_on_a_running_event_loop_warns_at_its_caller() -> None:
    app = Headrace(env="acme/shop/prod")

    @app.task
    def send() -> None: ...

    async def main() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            send.enqueue()
            app.enqueue_many([send.job()])
            await send.aenqueue()
        assert [(each.category, each.filename) for each in caught] == [(RuntimeWarning, __file__)] * 2

    with app.testing():
        asyncio.run(main())


def test_a_task_in_a_thread_runs_coroutines_on_the_loop_of_the_worker() -> None:
    app = Headrace(env="acme/shop/prod")

    async def compute() -> int:
        return threading.get_ident()

    @app.task
    def in_thread() -> int:
        return current_job().run_async(compute())

    @app.task
    async def on_loop() -> int:
        return current_job().run_async(compute())

    async def main() -> None:
        assert (await run_job(in_thread.job())).value == threading.get_ident()
        assert isinstance((await run_job(on_loop.job())).error, RuntimeError)

    asyncio.run(main())


def test_a_lifespan_that_fails_in_a_child_process_leaves_no_event_loop() -> None:
    @asynccontextmanager
    async def lifespan(app: Headrace) -> AsyncGenerator[None]:
        if app.state is None:
            raise ValueError("no database")
        yield

    app = Headrace(lifespan=lifespan)
    for _ in range(3):
        with pytest.raises(ValueError, match="no database"):
            app.start_in_child()
    left = [each for each in threading.enumerate() if each.name == "headrace-loop"]
    for each in left:
        each.join(30)
    assert not any(each.is_alive() for each in left)


def test_a_worker_that_ends_leaves_the_state_of_another_one() -> None:
    count = 0

    @asynccontextmanager
    async def lifespan(app: Headrace) -> AsyncGenerator[int]:
        nonlocal count
        count += 1
        yield count

    async def run(app: Headrace) -> list[object]:
        states: list[object] = []
        first, second = app.run_lifespan(), app.run_lifespan()
        await first.__aenter__()
        await second.__aenter__()
        await first.__aexit__(None, None, None)
        states.append(app.state)
        shared = app.runtime.shared
        await second.__aexit__(None, None, None)
        assert app.runtime.shared is not shared
        return [*states, app.state]

    assert asyncio.run(run(Headrace(lifespan=lifespan))) == [2, None]


def test_headers_are_valid_text() -> None:
    app = Headrace(env="acme/shop/prod")

    @app.task
    def work() -> None:
        """Do nothing."""

    with app.testing() as jobs:
        for value in ("\ud800", 5):
            with pytest.raises(ArgumentsInvalid, match="header 'trace'"):
                work.using(headers={"trace": value}).enqueue()  # pyright: ignore[reportArgumentType]
        assert jobs.all() == []
