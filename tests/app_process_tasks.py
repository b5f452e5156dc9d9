"""Typed tasks for child processes. They append lines to the file that an argument names."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from headrace import Bury, Depends, Headrace, LeasedJob, Middleware, Retry, RunningJob, Shared, current_env, current_job
from headrace.errors import NoJob


@dataclass
class Item:
    sku: str
    price: Decimal


@asynccontextmanager
async def lifespan(app: Headrace) -> AsyncGenerator[str]:
    yield f"state of {os.getpid()}"


class Surrounding(Middleware):
    """Runs in the worker (`running`) and in the child process (`calling`)."""

    async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
        self.parent = os.getpid()
        return await call_next()

    def calling(self, job: RunningJob, call_next: Callable[[], object]) -> object:
        os.environ["CALLING"] = f"calling {job.task}"
        return call_next()


app = Headrace(os.environ.get("APP_PROCESS_URL"), env="acme/shop/prod", lifespan=lifespan, middleware=[Surrounding()])


def write(path: str, *parts: object) -> None:
    with Path(path).open("a") as file:
        file.write(" ".join(map(str, parts)) + "\n")


async def pool() -> AsyncGenerator[int]:
    yield os.getpid()


async def session(path: str, pool: int = Shared(pool)) -> AsyncGenerator[int]:
    try:
        yield pool
    except ValueError as error:
        write(path, "rollback", error)
        raise
    else:
        write(path, "commit")


def cursor(path: str, session: int = Depends(session)) -> Generator[int]:
    yield session
    write(path, "closed")


@app.task(pool="process", result_ttl=60)
def record(path: str, items: list[Item], cursor: int = Depends(cursor)) -> Decimal:
    assert cursor == os.getpid()
    job = current_job()
    write(path, os.getpid(), job.task, job.attempt, current_env().org, app.state, os.environ["CALLING"])
    return sum((item.price for item in items), Decimal())


@app.task(pool="process")
async def record_async(path: str, session: int = Depends(session)) -> None:
    assert session == os.getpid()
    write(path, os.getpid(), current_job().task, dict(current_job().headers), app.state)


@app.task(pool="process", retry=Retry(attempts=2, base=0, longest=0, never=(KeyError,)))
def fail(path: str, kind: str, session: int = Depends(session)) -> None:
    write(path, kind, current_job().attempt)
    match kind:
        case "bury":
            raise Bury("no")
        case "key":
            raise KeyError("x")
        case _:
            raise ValueError("broken")


@app.task(pool="process")
def look_for_job(job: LeasedJob) -> None:
    """Write whether a typed job of this process before has left its context."""
    try:
        write(job.payload.decode(), current_job().task)
    except NoJob:
        write(job.payload.decode(), "no job")


@app.task(pool="process", retry=Retry(attempts=1))
async def leave() -> None:
    raise SystemExit(3)
