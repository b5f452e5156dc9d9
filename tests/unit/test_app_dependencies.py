"""Dependencies of tasks: order, lifetime, placement and replacement."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from headrace import Depends, EnvRef, Headrace, Middleware, RunningJob, Shared, current_job
from headrace.app.context import find_env
from headrace.errors import TaskInvalid
from headrace.testing import Outcome, run_job

ENV = "acme/shop/prod"


def run(spec: Any, **options: Any) -> Outcome:
    return asyncio.run(run_job(spec, **options))


def identity(value: object) -> object:
    return value


def make_both(app: Headrace, dependency: Any, body: Any) -> list[Any]:
    """Return an async task and one in a thread, which call `body` with a dependency."""

    async def on_loop(value: Any = dependency) -> Any:
        return body(value)

    def in_thread(value: Any = dependency) -> Any:
        return body(value)

    return [app.task(on_loop), app.task(in_thread)]


def returning() -> str:
    return "value"


async def returning_async() -> str:
    return "value"


def yielding() -> Generator[str]:
    yield "value"


async def yielding_async() -> AsyncGenerator[str]:
    yield "value"


@contextmanager
def managing() -> Generator[str]:
    yield "value"


@asynccontextmanager
async def managing_async() -> AsyncGenerator[str]:
    yield "value"


class Client:
    async def __aenter__(self) -> str:
        return "value"

    async def __aexit__(self, *_: object) -> None: ...


class AsyncCallable:
    async def __call__(self) -> str:
        return "value"


PROVIDERS = [returning, returning_async, yielding, yielding_async, managing, managing_async, Client, AsyncCallable()]


@pytest.mark.parametrize("make", [Depends, Shared])
@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda each: getattr(each, "__name__", "object"))
def test_every_kind_of_provider_provides_a_value(provider: Any, make: Any) -> None:
    app = Headrace(env=ENV)
    for task in make_both(app, make(provider), identity):
        assert run(task.job()).value == "value"


def test_values_are_created_once_per_job_and_closed_in_reverse_order() -> None:
    app, steps = Headrace(env=ENV), list[str]()

    async def connection() -> AsyncGenerator[str]:
        steps.append("open connection")
        yield "connection"
        steps.append("close connection")

    def session(connection: str = Depends(connection)) -> Generator[str]:
        steps.append(f"open session of {connection}")
        yield "session"
        steps.append("close session")

    def repository(session: str = Depends(session), connection: str = Depends(connection)) -> str:
        return f"repository of {session}"

    @app.task
    async def on_loop(session: str = Depends(session), repository: str = Depends(repository)) -> None:
        steps.append(repository)

    @app.task
    def in_thread(session: str = Depends(session), repository: str = Depends(repository)) -> None:
        steps.append(repository)

    for task in (on_loop, in_thread):
        steps.clear()
        assert run(task.job()).state == "done"
        assert steps == [
            *("open connection", "open session of connection", "repository of session"),
            *("close session", "close connection"),
        ]


def test_providers_of_a_task_in_a_thread_run_where_they_belong() -> None:
    app, threads = Headrace(env=ENV), dict[str, int]()

    def local() -> Generator[None]:
        threads["local"] = threading.get_ident()
        yield
        threads["closed"] = threading.get_ident()

    async def remote() -> None:
        threads["remote"] = threading.get_ident()

    @app.task
    def work(a: None = Depends(local), b: None = Depends(remote)) -> None:
        threads["task"] = threading.get_ident()

    async def main() -> None:
        assert (await run_job(work.job())).state == "done"
        assert threads["remote"] == threading.get_ident()

    asyncio.run(main())
    assert threads["local"] == threads["task"] == threads["closed"] != threads["remote"]


def test_providers_get_arguments_and_the_job() -> None:
    app = Headrace(env=ENV)

    def label(to: str, count: int = 3) -> str:
        return f"{to} {count} {current_job().attempt}"

    @app.task
    def send(to: str, label: str = Depends(label)) -> str:
        return label

    assert run(send.job("ann"), attempt=2).value == "ann 3 2"


def test_providers_get_the_defaults_of_arguments() -> None:
    app = Headrace(env=ENV)

    def label(count: int) -> str:
        return f"count {count}"

    @app.task
    def send(count: int = 1, label: str = Depends(label)) -> str:
        return label

    assert [run(send.job()).value, run(send.job(2)).value] == ["count 1", "count 2"]


def test_a_cycle_is_refused() -> None:
    app = Headrace(env=ENV)

    def first(value: Any = None) -> None: ...
    def second(value: Any = Depends(first)) -> None: ...  # noqa: B008

    first.__defaults__ = (Depends(second),)

    @app.task
    def send(value: None = Depends(first)) -> None: ...

    with pytest.raises(TaskInvalid, match=r"first → .*second → .*first"):
        app.check()


def test_a_provider_with_a_parameter_that_has_no_value_is_refused() -> None:
    app = Headrace(env=ENV)

    def provider(size: int) -> None: ...

    @app.task
    def send(to: str, value: None = Depends(provider)) -> None: ...

    with pytest.raises(TaskInvalid, match="'size' of provider"):
        app.check()


def test_a_shared_provider_depends_on_no_job() -> None:
    app = Headrace(env=ENV)

    def job_value() -> None: ...
    def shared(value: None = Depends(job_value)) -> None: ...

    @app.task
    def send(value: None = Shared(shared)) -> None: ...

    with pytest.raises(TaskInvalid, match="depends on a value of one job"):
        app.check()


def test_an_error_of_a_provider_fails_the_attempt() -> None:
    app, calls = Headrace(env=ENV), list[Any]()

    def broken() -> str:
        raise OSError("no connection")

    for task in make_both(app, Depends(broken), calls.append):
        outcome = run(task.job())
        assert outcome.state == "retry"
        assert str(outcome.error) == "no connection"
    assert calls == []


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_while_closing_fails_the_attempt(is_async: bool) -> None:
    app = Headrace(env=ENV)

    def sync_provider() -> Generator[str]:
        yield "value"
        raise OSError("not committed")

    async def async_provider() -> AsyncGenerator[str]:
        yield "value"
        raise OSError("not committed")

    provider: Any = async_provider if is_async else sync_provider
    for task in make_both(app, Depends(provider), identity):
        outcome = run(task.job())
        assert (outcome.state, str(outcome.error)) == ("retry", "not committed")


@pytest.mark.parametrize("is_async", [False, True])
def test_providers_see_the_error_of_the_task(is_async: bool) -> None:
    app, seen = Headrace(env=ENV), list[str]()

    def sync_provider() -> Generator[str]:
        try:
            yield "value"
        except ValueError as error:
            seen.append(str(error))
            raise

    async def async_provider() -> AsyncGenerator[str]:
        try:
            yield "value"
        except ValueError as error:
            seen.append(str(error))
            raise

    def fail(value: str) -> None:
        raise ValueError("broken")

    provider: Any = async_provider if is_async else sync_provider
    for task in make_both(app, Depends(provider), fail):
        assert run(task.job()).state == "retry"
    assert seen == ["broken"] * 2


def test_a_provider_may_suppress_the_error_of_the_task() -> None:
    app = Headrace(env=ENV)

    def fail(value: object) -> None:
        raise ValueError("ignored")

    for task in make_both(app, Depends(lambda: suppress(ValueError)), fail):
        outcome = run(task.job())
        assert (outcome.state, outcome.value) == ("done", None)


def test_a_value_that_needs_the_event_loop_is_refused_in_a_thread() -> None:
    app = Headrace(env=ENV)

    def client() -> Client:
        return Client()

    @app.task
    def send(client: Any = Depends(client)) -> None: ...  # noqa: B008

    outcome = run(send.job())
    assert isinstance(outcome.error, TypeError)
    assert "async def" in str(outcome.error)


def test_shared_values_live_as_long_as_the_process_runs_jobs() -> None:
    app, steps = Headrace(env=ENV), list[str]()

    async def pool() -> AsyncGenerator[int]:
        steps.append("open")
        yield len(steps)
        steps.append("close")

    @app.task
    async def on_loop(pool: int = Shared(pool)) -> None:
        steps.append(f"loop {pool}")

    @app.task
    def in_thread(pool: int = Shared(pool)) -> None:
        steps.append(f"thread {pool}")

    with app.testing() as jobs:
        on_loop.enqueue()
        in_thread.enqueue()
        assert jobs.drain_sync() == {"done": 2}
        assert steps == ["open", "loop 1", "thread 1", "close"]
        on_loop.enqueue()
        jobs.drain_sync()
        assert steps[4:] == ["open", "loop 5", "close"]


def test_overrides_replace_providers_and_are_restored() -> None:
    app = Headrace(env=ENV)

    def inner() -> str:
        return "real"

    def outer(inner: str = Depends(inner)) -> str:
        return f"outer {inner}"

    @app.task
    def send(value: str = Depends(outer)) -> str:
        return value

    assert run(send.job(), overrides={inner: lambda: "fake"}).value == "outer fake"
    with app.testing(overrides={outer: lambda: "other"}) as jobs:
        send.enqueue()
        jobs.drain_sync()
        assert jobs.all()[0].outcomes[0].value == "other"
        assert run(send.job(), overrides={inner: lambda: "fake"}).value == "other"
    assert run(send.job()).value == "outer real"
    assert app.overrides == {}


def test_a_mock_is_given_as_it_is() -> None:
    app, fake = Headrace(env=ENV), MagicMock()

    async def client() -> str:
        raise AssertionError

    for task in make_both(app, Depends(client), identity):
        assert run(task.job(), overrides={client: lambda: fake}).value is fake


def test_a_task_of_the_process_pool_runs_in_tests_without_a_process() -> None:
    app = Headrace(env=ENV)

    async def connection() -> str:
        return "connection"

    @app.task(pool="process")
    def work(connection: str = Depends(connection)) -> str:
        return connection

    @app.task(pool="process")
    async def work_async(connection: str = Depends(connection)) -> str:
        return connection

    for task in (work, work_async):
        assert run(cast(Any, task).job()).value == "connection"
    assert app.uses_processes


def test_a_shared_value_belongs_to_no_job() -> None:
    app = Headrace()
    seen: list[EnvRef | None] = []

    async def batcher() -> str:
        async def flush() -> None:
            seen.append(find_env())

        await asyncio.create_task(flush())
        return "batcher"

    @app.task
    async def work(batcher: str = Shared(batcher)) -> None:
        seen.append(find_env())

    asyncio.run(run_job(work.job(), env="acme/shop/prod"))
    assert seen == [None, EnvRef("acme", "shop", "prod")]


def test_a_shared_provider_that_raises_an_exit_fails_the_attempt() -> None:
    app = Headrace(env=ENV)

    async def leave() -> str:
        raise SystemExit(3)

    @app.task
    async def work(value: str = Shared(leave)) -> None:
        """Do nothing."""

    outcome = asyncio.run(run_job(work.job()))
    assert "SystemExit: 3" in str(outcome.error)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_function_that_middleware_calls_again_has_values_of_its_own(is_async: bool) -> None:
    class Repeat(Middleware):
        async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
            with suppress(ValueError):
                return await call_next()
            return await call_next()

    app = Headrace(env=ENV, middleware=[Repeat()])
    steps: list[str] = []

    def session() -> Generator[list[str]]:
        own = ["open"]
        try:
            yield own
        finally:
            own[:] = ["closed"]

    def record(session: list[str]) -> None:
        steps.extend(session)
        if len(steps) == 1:
            raise ValueError("once")

    @app.task
    async def work(session: list[str] = Depends(session)) -> None:  # noqa: B008
        record(session)

    @app.task
    def work_in_thread(session: list[str] = Depends(session)) -> None:  # noqa: B008
        record(session)

    assert asyncio.run(run_job((work if is_async else work_in_thread).job())).state == "done"
    assert steps == ["open", "open"]
