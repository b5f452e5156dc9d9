"""ClickHouse queries are cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from anyio import CapacityLimiter
from clickhouse_connect.driver.exceptions import DatabaseError
from fastapi import Request

from headrace.api import history_queries as asking
from headrace.api.access import GLOBAL_SCOPE, AccessLevel, Caller
from headrace.api.history_queries import run_until_disconnect
from headrace.api.services import Services
from headrace.errors import ServiceUnavailable
from headrace.warehouse.query_runner import (
    HistoryBusy,
    HistoryCancelled,
    HistoryForbidden,
    HistoryMissing,
    HistoryTooSlow,
    translate_query_errors,
)

BY = Caller("key_1", "test", GLOBAL_SCOPE, AccessLevel.READ)
SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}


def request(client_leaves: bool) -> Request:
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        if (message := next(messages, None)) is not None:
            return message
        if not client_leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return Request(SCOPE, receive)


async def ask(client_leaves: bool, work: Any, cancel: Any) -> Any:
    return await run_until_disconnect(request(client_leaves), (CapacityLimiter(2),), work, cancel)


def test_a_connected_client_gets_the_result() -> None:
    assert asyncio.run(ask(False, lambda: 7, pytest.fail)) == 7


def test_the_work_of_a_disconnected_client_is_cancelled() -> None:
    ended = threading.Event()

    def work() -> str:
        assert ended.wait(60), "the work was not cancelled"
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        asyncio.run(ask(True, work, ended.set))


def test_a_client_that_disconnects_while_queued_runs_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads are busy when the client disconnects; its query must not run when one becomes free."""
    limiter, left = CapacityLimiter(1), threading.Event()

    def watched(request: Request, _: Any, work: Any, cancel: Any) -> Any:
        def leave() -> None:
            cancel()
            left.set()

        return run_until_disconnect(request, (limiter,), work, leave)

    monkeypatch.setattr(asking, "run_until_disconnect", watched)
    nobody = Services("redis://127.0.0.1:1", "http://127.0.0.1:1", "x", 1)

    async def leave_while_waiting() -> None:
        await limiter.acquire()
        leaving = asyncio.ensure_future(
            asking.run_history_query(request(client_leaves=True), nobody, BY, lambda _: pytest.fail("it asks"))
        )
        assert await asyncio.to_thread(left.wait, 60), "the disconnect was not noticed"
        limiter.release()
        await leaving

    with pytest.raises(HistoryCancelled):
        asyncio.run(leave_while_waiting())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *((159, HistoryTooSlow), (241, HistoryBusy), (201, HistoryBusy), (60, HistoryMissing), (81, HistoryMissing)),
        *((516, HistoryForbidden), (236, ServiceUnavailable), (None, ServiceUnavailable), (62, DatabaseError)),
    ],
)
def test_what_is_not_the_fault_of_a_question_is_no_bug(code: int | None, expected: type[Exception]) -> None:
    """62 is a syntax error: that one is."""
    with pytest.raises(expected), translate_query_errors("http://127.0.0.1"):
        raise DatabaseError("said by ClickHouse", code=code)


def test_no_request_waits_for_another_that_hangs_on_clickhouse() -> None:
    """Two first requests connect at the same time, though ClickHouse does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(2) as pool:
        silent.settimeout(60)
        services = Services("redis://127.0.0.1:1", "http://{}:{}".format(*silent.getsockname()), "x", 1)
        asked = [pool.submit(lambda: services.clickhouse) for _ in range(2)]
        try:
            taken = [silent.accept()[0] for _ in asked]
            assert not any(each.done() for each in asked)
        finally:
            silent.close()
        for connection in taken:
            connection.close()
        for each in asked:
            with pytest.raises(ServiceUnavailable):
                each.result(60)


def test_an_error_of_the_work_is_the_answer() -> None:
    def work() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(ask(False, work, pytest.fail))
