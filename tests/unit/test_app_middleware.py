"""Code around enqueues and runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from headrace import Headrace, Middleware, Outgoing, RunningJob, current_job
from headrace.testing import run_job

ENV = "acme/shop/prod"


class Tracing(Middleware):
    """Records what it surrounds."""

    def __init__(self, name: str, steps: list[str]) -> None:
        self.name = name
        self.steps = steps

    @contextmanager
    def _surround(self, what: str) -> Generator[None]:
        self.steps.append(f"{self.name} {what}")
        try:
            yield
        except Exception as error:
            self.steps.append(f"{self.name} {type(error).__name__}")
            raise
        self.steps.append(f"{self.name} end")

    def sending(self, jobs: Sequence[Outgoing]) -> AbstractContextManager[None]:
        for job in jobs:
            job.headers[self.name] = job.task
        return self._surround(f"sending {len(jobs)}")

    async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
        with self._surround(f"running {current_job().id}"):
            return await call_next()

    def calling(self, job: RunningJob, call_next: Callable[[], object]) -> object:
        with self._surround("calling"):
            return call_next()


def test_the_first_middleware_is_the_outermost_and_that_of_a_task_the_innermost() -> None:
    steps: list[str] = []
    app = Headrace(env=ENV, middleware=[Tracing("a", steps), Tracing("b", steps)])

    @app.task(middleware=[Tracing("c", steps)])
    def in_thread() -> dict[str, str]:
        steps.append("function")
        return dict(current_job().headers)

    @app.task
    async def on_loop() -> None:
        steps.append("function")

    with app.testing() as jobs:
        app.enqueue_many([in_thread.using(id="1").job(), in_thread.using(id="2").job(), on_loop.using(id="3").job()])
        assert steps == ["a sending 3", "b sending 3", "c sending 2", "c end", "b end", "a end"]
        steps.clear()
        jobs.drain_sync()
        one = ["a running 1", "b running 1", "c running 1", "a calling", "b calling", "c calling", "function"]
        one += ["c end", "b end", "a end"] * 2
        two = [step.replace("1", "2") for step in one]
        assert steps == [*one, *two, "a running 3", "b running 3", "function", "b end", "a end"]
        assert jobs.all()[0].outcomes[0].value == {"a": "in_thread", "b": "in_thread", "c": "in_thread"}


def test_a_middleware_that_refuses_an_enqueue_is_seen_by_the_others() -> None:
    steps: list[str] = []

    class Refusing(Middleware):
        def sending(self, jobs: Sequence[Outgoing]) -> AbstractContextManager[None]:
            raise PermissionError("closed")

    app = Headrace(env=ENV, middleware=[Tracing("a", steps), Refusing()])

    @app.task
    def send() -> None: ...

    with app.testing() as jobs:
        with pytest.raises(PermissionError):
            send.enqueue()
        with pytest.raises(PermissionError):
            asyncio.run(send.aenqueue())  # pyright: ignore[reportUnusedCallResult]
        assert jobs.all() == []
    assert steps == ["a sending 1", "a PermissionError"] * 2


def test_middleware_learns_whether_jobs_were_accepted() -> None:
    seen: list[bool | None] = []

    class Learning(Middleware):
        @contextmanager
        def sending(self, jobs: Sequence[Outgoing]) -> Generator[None]:
            yield
            seen.extend(job.accepted for job in jobs)

    app = Headrace(env=ENV, middleware=[Learning()])

    @app.task
    def send() -> None: ...

    with app.testing():
        assert send.using(id="1").enqueue().accepted
        assert not send.using(id="1").enqueue().accepted
    assert seen == [True, False]


def make_app(middleware: Middleware) -> list[Any]:
    app = Headrace(env=ENV, middleware=[middleware])

    @app.task
    async def on_loop() -> None:
        raise ValueError("broken")

    @app.task
    def in_thread() -> None:
        raise ValueError("broken")

    return [on_loop, in_thread]


def test_a_middleware_that_swallows_an_error_makes_the_job_done() -> None:
    class Swallowing(Middleware):
        async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
            try:
                return await call_next()
            except ValueError:
                return "instead"

    for task in make_app(Swallowing()):
        outcome = asyncio.run(run_job(task.job()))
        assert (outcome.state, outcome.value) == ("done", "instead")


def test_an_error_of_a_middleware_fails_the_attempt_without_a_call() -> None:
    class Failing(Middleware):
        async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
            raise OSError("no connection")

    for task in make_app(Failing()):
        outcome = asyncio.run(run_job(task.job()))
        assert (outcome.state, str(outcome.error)) == ("retry", "no connection")


def test_a_middleware_may_replace_the_result() -> None:
    class Doubling(Middleware):
        async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[Any]]) -> object:
            return 2 * await call_next()

        def calling(self, job: RunningJob, call_next: Callable[[], Any]) -> object:
            return 10 * call_next()

    app = Headrace(env=ENV, middleware=[Doubling()])

    @app.task(result_ttl=60)
    async def on_loop() -> int:
        return 1

    @app.task(result_ttl=60)
    def in_thread() -> int:
        return 1

    with app.testing() as jobs:
        handles = on_loop.enqueue(), in_thread.enqueue()
        jobs.drain_sync()
        assert [handle.result() for handle in handles] == [2, 20]


def test_headers_must_be_text() -> None:
    app = Headrace(env=ENV)

    @app.task
    def send() -> None: ...

    with app.testing() as jobs:
        with pytest.raises(TypeError, match="header"):
            send.using(headers={"a": 1}).enqueue()  # pyright: ignore[reportArgumentType]
        assert jobs.all() == []
