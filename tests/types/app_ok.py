"""Uses of the application API that a strict type checker accepts. Checked by tests/unit/test_app_types.py."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import assert_type

from headrace import AsyncTask, Depends, Headrace, JobHandle, JobSpec, Retry, Shared, SyncTask, Tasks
from headrace.codecs import Offload, Pydantic, Zlib
from headrace.testing import RecordedJob, run_job

app = Headrace(env="acme/shop/prod", codec=Zlib(Pydantic()), retry=Retry(attempts=3))
tasks = Tasks(prefix="billing")


class Connection: ...


def connect() -> Connection:
    return Connection()


async def connect_async() -> Connection:
    return Connection()


def open_connection() -> Generator[Connection]:
    yield Connection()


async def open_connection_async() -> AsyncGenerator[Connection]:
    yield Connection()


async def iterate_connection() -> AsyncIterator[Connection]:
    yield Connection()


@contextmanager
def manage() -> Generator[Connection]:
    yield Connection()


@asynccontextmanager
async def manage_async() -> AsyncGenerator[Connection]:
    yield Connection()


assert_type(Depends(connect), Connection)
assert_type(Depends(connect_async), Connection)
assert_type(Depends(open_connection), Connection)
assert_type(Depends(open_connection_async), Connection)
assert_type(Depends(iterate_connection), Connection)
assert_type(Depends(manage), Connection)
assert_type(Depends(manage_async), Connection)
assert_type(Shared(connect), Connection)
assert_type(Shared(open_connection_async), Connection)
assert_type(Shared(manage_async), Connection)


@app.task
def send(to: str, count: int = 1) -> int:
    return len(to) * count


@app.task(timeout=30, retry=Retry(attempts=8), result_ttl=timedelta(hours=1), queue="mail", aliases=["charge_order"])
async def charge(order: int, *, db: Connection = Depends(connect)) -> str:  # noqa: B008
    return str(order)


@tasks.task("named", pool="process")
def work(path: str) -> None: ...


@app.task(external=True)
def resize(path: str) -> int: ...


async def use() -> None:
    assert_type(send("ann"), int)
    assert_type(await charge(1, db=Connection()), str)
    assert_type(send.enqueue("ann", count=2), JobHandle[int])
    assert_type(await send.aenqueue("ann"), JobHandle[int])
    assert_type(send.using(delay=5, priority=3, at=datetime.now(UTC)).enqueue("ann"), JobHandle[int])
    assert_type(charge.using(env="a/b/c", headers={"a": "b"}).job(1), JobSpec[str])
    assert_type(await charge.enqueue(1).aresult(timeout=timedelta(seconds=5)), str)
    assert_type(send.enqueue("ann").result(), int)
    assert_type(app.enqueue_many([send.job("ann")]), list[JobHandle[int]])
    assert_type(app.handle("id", task=send), JobHandle[int])
    assert_type(resize.enqueue("a.png"), JobHandle[int])
    # Results are covariant.
    handle: JobHandle[object] = send.enqueue("ann")
    spec: JobSpec[object] = charge.job(1)
    assert handle.accepted
    assert spec.id
    _ = (AsyncTask, SyncTask, Offload, work)


async def test() -> None:
    with app.testing(overrides={connect: Connection}) as jobs:
        assert_type(jobs.assert_enqueued(send, "ann", count=2), RecordedJob)
        jobs.assert_enqueued_like(charge, queue="mail", args={"order": 1})
        assert_type(await jobs.drain(), dict[str, int])
    outcome = await run_job(send.job("ann"), attempt=2, cancel_after=1)
    assert outcome.state == "done"
