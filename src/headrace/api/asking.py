"""Questions to ClickHouse on behalf of a request: as many at once as a process may ask, for as long as somebody waits.

They have threads of their own: while ClickHouse is slow or silent, the routes that do not need it go on.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter
from fastapi import Request

from headrace.api.callers import Caller
from headrace.api.patience import while_waited_for
from headrace.api.services import Services
from headrace.warehouse.reads import HistoryWithdrawn, Reads

MAX_AT_ONCE = 24
"""Requests of one process that ask."""

MAX_PER_ORG = 6
"""Of those, with keys of one organisation; keys that reach everything count as one more."""

_limiter = CapacityLimiter(MAX_AT_ONCE)
_org_limiters: WeakValueDictionary[str | None, CapacityLimiter] = WeakValueDictionary()

T = TypeVar("T")


async def asked(request: Request, to: Services, by: Caller, answer: Callable[[Reads], T]) -> T:
    """Answer a request from ClickHouse; queries end when the client leaves or after `api.query_timeout`. Slow queries
    of one organisation delay only its own."""
    reads: list[Reads] = []
    gone = Event()

    def refuse_gone() -> None:
        if gone.is_set():
            raise HistoryWithdrawn()

    def work() -> T:
        refuse_gone()  # while this waited for its turn
        reads.append(Reads(to.clickhouse, to.settings.query_timeout))
        refuse_gone()  # while this connected
        return answer(reads[0])

    def cancel() -> None:
        gone.set()
        for each in reads:
            each.cancel()

    of_org = _org_limiters.setdefault(by.scope.org, CapacityLimiter(MAX_PER_ORG))
    return await while_waited_for(request, (of_org, _limiter), work, cancel)
