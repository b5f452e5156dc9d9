"""Work that is worth doing only while somebody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request

T = TypeVar("T")


async def while_waited_for(
    request: Request, limiter: CapacityLimiter, work: Callable[[], T], cancel: Callable[[], None]
) -> T:
    """What `work` returns, from a thread. When the client goes away, `cancel` is called, in another thread, and shall
    make it end. The limiter keeps slow work from taking the threads of all other routes."""
    answer = asyncio.ensure_future(to_thread.run_sync(work, limiter=limiter))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            await to_thread.run_sync(cancel)
        return await answer
    finally:
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
