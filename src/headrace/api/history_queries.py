"""Run ClickHouse queries for a request, in a thread pool of their own (MAX_CONCURRENT_QUERIES), so that a slow
ClickHouse does not block other routes, and cancel them when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from threading import Event
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from headrace.api.access import Caller
from headrace.api.services import Services
from headrace.warehouse.query_runner import HistoryCancelled, QueryRunner

MAX_CONCURRENT_QUERIES = 24
"""Concurrent requests with ClickHouse queries per process."""

MAX_PER_ORG = 6
"""Maximum of those for the keys of one organisation; keys with global scope count as one more organisation."""

_limiter = CapacityLimiter(MAX_CONCURRENT_QUERIES)
_org_limiters: WeakValueDictionary[str | None, CapacityLimiter] = WeakValueDictionary()

T = TypeVar("T")


async def run_history_query(
    request: Request, services: Services, caller: Caller, query: Callable[[QueryRunner], T]
) -> T:
    """Run `query` and cancel its ClickHouse queries when the client disconnects or `api.query_timeout` passes.

    Slow queries of one organisation delay only its own.
    """
    reads: list[QueryRunner] = []
    gone = Event()

    def refuse_gone() -> None:
        if gone.is_set():
            raise HistoryCancelled()

    def work() -> T:
        refuse_gone()  # the client may have disconnected while this waited for a thread
        reads.append(QueryRunner(services.clickhouse, services.settings.query_timeout))
        refuse_gone()  # or while this connected
        return query(reads[0])

    def cancel() -> None:
        gone.set()
        for each in reads:
            each.cancel()

    org_limiter = _org_limiters.setdefault(caller.scope.org, CapacityLimiter(MAX_PER_ORG))
    return await run_until_disconnect(request, (org_limiter, _limiter), work, cancel)


async def run_until_disconnect(
    request: Request, limiters: tuple[CapacityLimiter, ...], work: Callable[[], T], cancel: Callable[[], None]
) -> T:
    """Run `work` in a thread and return its result.

    If the client disconnects first, `cancel` is called from another thread and must make `work` return. `limiters` are
    acquired in order and bound the threads used.
    """
    answer = asyncio.ensure_future(_run(limiters, work))
    gone = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            await to_thread.run_sync(cancel)
        return await answer
    finally:
        gone.cancel()


async def _run(limiters: tuple[CapacityLimiter, ...], work: Callable[[], T]) -> T:
    *outer, last = limiters
    async with AsyncExitStack() as held:
        for each in outer:
            await held.enter_async_context(each)
        return await to_thread.run_sync(work, limiter=last)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
