"""Run ClickHouse queries for a request, in a thread pool of their own (MAX_CONCURRENT_QUERIES), so that a slow
ClickHouse does not block other routes."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter
from fastapi import Request

from headrace.api.access import Caller
from headrace.api.disconnect import run_until_disconnect
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
