"""Typed tasks from enqueue to result, on a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from headrace import (
    Bury,
    Depends,
    Headrace,
    JobState,
    Retry,
    RetryLater,
    Shared,
    Snooze,
    current_env,
    current_job,
    unique_id,
)
from headrace.app.task import JobOptions
from headrace.errors import HeadraceError, JobFailed, ResultUnknown
from headrace.queue.client import SyncClient

ENV = "acme/shop/prod"


@dataclass
class Item:
    sku: str
    price: Decimal


@pytest.fixture
def app(valkey_url: str) -> Generator[Headrace]:
    with Headrace(valkey_url, env=ENV, queue="orders") as app:
        yield app


async def run_all(app: Headrace) -> None:
    await app.worker(concurrency=4).run_until_idle()


def test_arguments_arrive_with_their_types(app: Headrace) -> None:
    seen: list[tuple[UUID, list[Item], str]] = []

    @app.task
    async def charge(order: UUID, items: list[Item], note: str = "none") -> None:
        seen.append((order, items, note))

    @app.task
    def charge_in_thread(order: UUID, items: list[Item]) -> None:
        seen.append((order, items, "thread"))

    order, items = uuid4(), [Item("tea", Decimal("4.50"))]
    assert charge.enqueue(order, items).accepted
    assert charge_in_thread.enqueue(order, items=items).accepted
    asyncio.run(run_all(app))
    assert sorted(seen, key=lambda each: each[2]) == [(order, items, "none"), (order, items, "thread")]


def test_dependencies_are_created_and_closed_in_order(app: Headrace) -> None:
    steps: list[str] = []

    async def pool() -> AsyncGenerator[str]:
        steps.append("open pool")
        yield "pool"
        steps.append("close pool")

    def session(to: str, pool: str = Shared(pool)) -> Generator[str]:
        steps.append(f"open session of {pool} for {to}")
        yield "session"
        steps.append("close session")

    @app.task
    async def send(to: str, db: str = Depends(session)) -> None:
        steps.append(f"send {db} {current_job().attempt} {current_env().org}")

    @app.task
    def send_in_thread(to: str, db: str = Depends(session)) -> None:
        steps.append(f"thread {db}")

    send.enqueue("ann")
    asyncio.run(run_all(app))
    assert steps == [
        "open pool",
        "open session of pool for ann",
        "send session 1 acme",
        "close session",
        "close pool",
    ]
    steps.clear()
    send_in_thread.enqueue("bob")
    asyncio.run(run_all(app))
    assert steps == ["open pool", "open session of pool for bob", "thread session", "close session", "close pool"]


def test_the_policy_decides_on_retries(app: Headrace) -> None:
    runs: list[str] = []

    @app.task(retry=Retry(attempts=3, base=0, longest=0))
    async def fails(kind: str) -> None:
        runs.append(kind)
        if kind == "bury":
            raise Bury("no")
        if kind == "later":
            raise RetryLater(0)
        raise ValueError(kind)

    @app.task(retry=Retry(attempts=5, never=(KeyError,)))
    def never() -> None:
        runs.append("never")
        raise KeyError("x")

    handles = {kind: fails.enqueue(kind) for kind in ("bury", "later", "error")}
    last = never.enqueue()

    async def run() -> None:
        async with app.worker().running():
            for handle in (*handles.values(), last):
                while await handle.astate() is not JobState.DEAD:
                    await asyncio.sleep(0.01)

    asyncio.run(run())
    assert sorted(runs) == ["bury", *["error"] * 3, *["later"] * 3, "never"]


def test_snooze_costs_no_attempt(app: Headrace) -> None:
    attempts: list[int] = []

    @app.task(retry=Retry(attempts=1))
    async def wait() -> None:
        attempts.append(current_job().attempt)
        if len(attempts) < 3:
            raise Snooze(0)

    wait.enqueue()
    asyncio.run(run_all(app))
    assert attempts == [1, 1, 1]


def test_jobs_of_a_job_stay_with_its_tenant(app: Headrace) -> None:
    seen: list[str] = []

    @app.task
    async def outer() -> None:
        await inner.aenqueue()

    @app.task
    def inner() -> None:
        seen.append(current_env().org)
        assert current_job().env == current_env()

    outer.using(env="globex/shop/prod").enqueue()
    asyncio.run(run_all(app))
    assert seen == ["globex"]


def test_headers_travel_with_a_job(app: Headrace) -> None:
    seen: list[dict[str, str]] = []

    @app.task
    async def send(to: str) -> None:
        seen.append(dict(current_job().headers))

    send.using(headers={"trace": "ä1"}, flow_type="MAIL").enqueue("ann")
    asyncio.run(run_all(app))
    assert seen == [{"trace": "ä1"}]


def test_a_worker_of_some_queues_is_idle_when_they_are_empty(app: Headrace) -> None:
    seen: list[str] = []

    @app.task
    def send(to: str) -> None:
        seen.append(to)

    send.enqueue("ann")
    other = send.using(queue="other").enqueue("bob")
    asyncio.run(app.worker(queues=("orders",)).run_until_idle())
    assert seen == ["ann"]
    assert other.state() is JobState.READY


def test_tasks_with_long_names_do_not_share_unique_ids(app: Headrace) -> None:
    prefix = "n" * 100

    @app.task(prefix + "1")
    def first(order: int) -> None: ...

    @app.task(prefix + "2")
    def second(order: int) -> None: ...

    assert unique_id(first.job(1)) == unique_id(first.job(1))
    assert unique_id(first.job(1)) != unique_id(second.job(1))


@pytest.mark.parametrize("options", [{"priority": 1000}, {"at": datetime(2030, 1, 1)}, {"id": "a\nb"}])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_invalid_job_of_several_queues_refuses_the_whole_call(
    app: Headrace, options: JobOptions, is_async: bool
) -> None:
    @app.task
    def work() -> None:
        """Do nothing."""

    jobs = [work.using(queue="first").job(), work.using(queue="second").using(**options).job()]
    with pytest.raises((HeadraceError, ValueError)):
        asyncio.run(app.aenqueue_many(jobs)) if is_async else app.enqueue_many(jobs)
    assert app.handle(jobs[0].id).state() is None


def test_the_result_of_a_job_that_was_redriven_is_that_of_its_new_run(app: Headrace) -> None:
    runs: list[int] = []

    @app.task(retry=Retry(attempts=1), result_ttl=60)
    def work() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("broken")
        return len(runs)

    handle = work.enqueue()
    asyncio.run(run_all(app))
    with pytest.raises(JobFailed):
        handle.result(0)
    assert handle.queue is not None
    with SyncClient(app.settings.redis.url or "") as client:
        assert client.redrive(handle.queue) == 1
    with pytest.raises(TimeoutError):
        handle.result(0)
    with pytest.raises(TimeoutError):
        asyncio.run(handle.aresult(0))
    asyncio.run(run_all(app))
    assert handle.result(0) == 2


def test_a_worker_that_fails_leaves_its_caller_uncancelled(valkey_url: str) -> None:
    @asynccontextmanager
    async def lifespan(app: Headrace) -> AsyncGenerator[None]:
        if app.state is None:
            raise ValueError("no database")
        yield

    async def run() -> int:
        with pytest.raises(ValueError, match="no database"):
            await Headrace(valkey_url, lifespan=lifespan).worker().run_until_idle()
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(run()) == 0


def test_a_result_that_does_not_match_its_annotation_is_unknown(app: Headrace) -> None:
    @app.task(result_ttl=60)
    def work() -> int:
        return "text"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    handle = work.enqueue()
    asyncio.run(run_all(app))
    with pytest.raises(ResultUnknown, match="does not match"):
        handle.result(0)
