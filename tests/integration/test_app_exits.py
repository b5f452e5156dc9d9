"""Tasks that raise what ends a program, or are declared wrongly while a worker runs, on a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from headrace import Headrace, JobHandle, JobState, Retry, current_job


class Quit(BaseException):
    """An error that is no Exception."""


@pytest.fixture
def app(valkey_url: str) -> Generator[Headrace]:
    with Headrace(valkey_url, env="acme/shop/prod", queue="orders", retry=Retry(attempts=1)) as app:
        yield app


def run_all(app: Headrace) -> None:
    asyncio.run(asyncio.wait_for(app.worker(concurrency=4, grace_s=0.0).run_until_idle(), 60))


def read_error(handle: JobHandle[object]) -> str:
    info = handle.info()
    assert info is not None
    assert info.state is JobState.DEAD
    return info.error or ""


@pytest.mark.parametrize("kind", [GeneratorExit, SystemExit, Quit])
def test_an_async_task_that_raises_no_exception_fails(app: Headrace, kind: type[BaseException]) -> None:
    @app.task
    async def leave() -> None:
        raise kind("over")

    handle = leave.enqueue()
    run_all(app)
    assert f"The task raised {kind.__name__}: over" in read_error(handle)


def test_a_coroutine_of_a_thread_that_raises_an_exit_does_not_end_the_worker(app: Headrace) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    @app.task
    def call() -> None:
        current_job().run_async(leave())

    handle = call.enqueue()
    run_all(app)
    assert "SystemExit: 3" in read_error(handle)


def test_a_task_that_is_declared_wrongly_while_a_worker_runs_disturbs_no_other(app: Headrace) -> None:
    @app.task
    def declare() -> None:
        app.task(invalid)

    def invalid(value: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore
        """Has an annotation that cannot be resolved."""

    @app.task
    def work() -> None:
        """Do nothing."""

    async def run() -> JobState | None:
        async with app, app.worker(concurrency=1).running():
            first = await declare.aenqueue()
            while await first.astate() is not JobState.DONE:
                await asyncio.sleep(0.01)
            second = await work.aenqueue()
            while await second.astate() is not JobState.DONE:
                await asyncio.sleep(0.01)
            return await second.astate()

    assert asyncio.run(asyncio.wait_for(run(), 60)) is JobState.DONE
