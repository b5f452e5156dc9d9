"""Connections of an app: one client per event loop and per process, opened again after they were closed."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from headrace import Headrace, JobState
from headrace.app.clients import ServerTransport
from headrace.errors import ServiceUnavailable
from headrace.queue.client import Client

ENV = "acme/shop/prod"
LONGEST_S = 120


class Sender:
    """An app with one task."""

    def __init__(self, url: str | None) -> None:
        self.app = Headrace(url, env=ENV)

        @self.app.task
        def send(to: str) -> None: ...

        self.send = send
        assert isinstance(self.app.transport, ServerTransport)
        self.transport = self.app.transport


@pytest.fixture
def sender(valkey_url: str) -> Iterator[Sender]:
    sender = Sender(valkey_url)
    with sender.app:
        yield sender


def run_in_fork(function: Callable[[], None]) -> int:
    """Run a function in a forked process. Return its exit code: 0 if the function has not raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST_S)  # a child that hangs must not stay
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_every_event_loop_has_a_client_of_its_own(sender: Sender) -> None:
    clients: list[int] = []

    async def main() -> None:
        async with sender.app:
            handle = await sender.send.aenqueue("ann")
            client = sender.transport.get_async_client()
            assert sender.transport.get_async_client() is client
            clients.append(id(client))
            assert await handle.astate() == JobState.READY

    for _ in range(3):
        asyncio.run(main())
    assert len(clients) == 3


def test_an_event_loop_that_ends_without_a_close_does_not_disturb_the_next(sender: Sender) -> None:
    async def send() -> bool:
        return (await sender.send.aenqueue("ann")).accepted

    async def send_and_close() -> bool:
        async with sender.app:
            return await send()

    assert [asyncio.run(send_and_close()) for _ in range(3)] == [True] * 3


def test_connections_of_event_loops_that_have_ended_are_not_kept(sender: Sender) -> None:
    for _ in range(20):
        assert asyncio.run(sender.send.aenqueue("ann")).accepted
    gc.collect()
    clients = [each for each in gc.get_objects() if type(each) is Client]
    assert len(clients) <= 2


def test_closed_connections_are_opened_again(sender: Sender) -> None:
    for _ in range(2):
        assert sender.send.enqueue("ann").accepted
        sender.app.close()


def test_a_forked_process_has_connections_of_its_own(sender: Sender) -> None:
    sender.send.using(id="parent").enqueue("ann")
    client = sender.transport.get_client()

    def use() -> None:
        assert sender.send.using(id="child").enqueue("bob").accepted
        assert sender.transport.get_client() is not client
        asyncio.run(use_async())

    async def use_async() -> None:
        async with sender.app:
            assert (await sender.send.using(id="async").aenqueue("eve")).accepted

    assert run_in_fork(use) == 0
    assert sender.transport.get_client() is client
    states = [sender.app.handle(job_id).state() for job_id in ("parent", "child", "async")]
    assert states == [JobState.READY] * 3


def test_a_fork_while_another_thread_connects_does_not_block_the_child(sender: Sender) -> None:
    def use() -> None:
        assert sender.send.enqueue("bob").accepted

    with sender.transport.lock:  # held by a thread that does not exist in the child
        assert run_in_fork(use) == 0


def test_the_constructor_needs_no_server() -> None:
    sender = Sender("redis://localhost:1/0")
    assert sender.send.job("ann").body == b'{"to":"ann"}'
    with pytest.raises(ServiceUnavailable), sender.app:
        sender.send.enqueue("ann")
