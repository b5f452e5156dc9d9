"""A question is withdrawn when nobody waits for the answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from anyio import CapacityLimiter
from fastapi import Request

from headrace.api.patience import while_waited_for

SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}


async def ask(client_leaves: bool, work: Any, cancel: Any) -> Any:
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        if (message := next(messages, None)) is not None:
            return message
        if not client_leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return await while_waited_for(Request(SCOPE, receive), CapacityLimiter(2), work, cancel)


def test_the_answer_of_whoever_stays() -> None:
    assert asyncio.run(ask(False, lambda: 7, pytest.fail)) == 7


def test_the_work_of_whoever_leaves_is_ended() -> None:
    ended = threading.Event()

    def work() -> str:
        assert ended.wait(30), "nobody ended it"
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        asyncio.run(ask(True, work, ended.set))


def test_an_error_of_the_work_is_the_answer() -> None:
    def work() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(ask(False, work, pytest.fail))
