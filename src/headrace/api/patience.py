"""Work that is worth doing only while somebody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request

T = TypeVar("T")


async def while_waited_for(
    request: Request, limiters: tuple[CapacityLimiter, ...], work: Callable[[], T], cancel: Callable[[], None]
) -> T:
    """What `work` returns, from a thread. When the client goes away, `cancel` is called, in another thread, and shall
    make it end. The limiters, entered in order, keep slow work from taking the threads of all other routes."""
    answer = asyncio.ensure_future(_run(limiters, work))
    gone = asyncio.ensure_future(_gone(request))
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


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
