"""Run work in a thread and cancel it when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request

T = TypeVar("T")


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
