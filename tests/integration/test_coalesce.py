"""Concurrent enqueue calls that share requests, against a real Valkey."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil
import pytest

from headrace.embedded.process import find_free_port
from headrace.embedded.valkey import EmbeddedValkey
from headrace.errors import InvalidJob, QueueClosed, QueueFull, QueueUnavailable, QuotaExceeded
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.quotas import pack_quotas
from headrace.queue.scripts import Stubs, WarmCaps
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import run
from tests.conftest import READY_S, QuickValkey, wait_until

T = TypeVar("T")

REF = QueueRef("acme", "shop", "prod", "emails")
STUBS = Stubs(1, 1_000_000)
OPTIONS = QueueOptions(shards=1)
PAUSE_MS = 120_000  # longer than a test takes: `hold_scripts` ends the pause


def count_scripts(valkey: Valkey) -> int:
    stats = cast("dict[str, dict[str, int]]", valkey.info("commandstats"))
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


@contextmanager
def hold_scripts(valkey: Valkey) -> Generator[None]:
    """Let the server answer no command that writes, until the end of the context."""
    valkey.client_pause(PAUSE_MS, all=False)
    try:
        yield
    finally:
        valkey.client_unpause()


def list_ready(valkey: Valkey) -> list[str]:
    return [member.decode() for member in cast("list[bytes]", valkey.zrange(keys.ready(0, REF), 0, -1))]


def run_client(url: str, act: Callable[[Client], Coroutine[Any, Any, T]], options: QueueOptions = OPTIONS) -> T:
    async def with_client() -> T:
        async with Client(url, options) as client:
            await client.enqueue(REF, NewJob("t", id="first"))
            return await act(client)

    return asyncio.run(with_client())


async def call_while_held(
    valkey: Valkey, calls: Sequence[Callable[[], Coroutine[Any, Any, T]]]
) -> list[T | BaseException]:
    """Start calls at once: the first is in flight alone, and the others share the next request."""
    with hold_scripts(valkey):
        tasks = [asyncio.create_task(call()) for call in calls]
        await asyncio.sleep(0)  # each task runs until it waits
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_concurrent_calls_share_a_request_and_keep_their_order(valkey: Valkey, valkey_url: str) -> None:
    async def act(client: Client) -> None:
        before = count_scripts(valkey)
        ids = [f"{number:02}" for number in range(50)]
        calls = [lambda job_id=job_id: client.enqueue(REF, NewJob("t", id=job_id)) for job_id in ids]
        assert await call_while_held(valkey, calls) == [True] * 50
        assert count_scripts(valkey) - before == 3  # one alone, and two requests for the 49 that waited
        assert list_ready(valkey) == ["first", *ids]

    run_client(valkey_url, act)


def test_calls_one_after_the_other_are_sent_on_their_own(valkey: Valkey, valkey_url: str) -> None:
    async def act(client: Client) -> None:
        before = count_scripts(valkey)
        for _ in range(5):
            assert await client.enqueue(REF, NewJob("t"))
        assert count_scripts(valkey) - before == 5

    run_client(valkey_url, act)


def test_a_call_that_does_not_fit_is_refused_alone_and_as_a_whole(valkey: Valkey, valkey_url: str) -> None:
    async def act(client: Client) -> None:
        sizes = [1, 2, 20, 3, 20, 1]
        calls = [
            lambda n=n, size=size: client.enqueue_many(REF, [NewJob("t", id=f"{n}-{i}") for i in range(size)])
            for n, size in enumerate(sizes)
        ]
        found = await call_while_held(valkey, calls)
        assert [QueueFull if isinstance(each, QueueFull) else each for each in found] == [
            QueueFull if size == 20 else [True] * size for size in sizes
        ]
        assert len(list_ready(valkey)) == 1 + 1 + 2 + 3 + 1

    run_client(valkey_url, act, QueueOptions(shards=1, caps=WarmCaps(items=12)))


def test_two_requests_in_flight_accept_as_many_jobs_as_fit_and_each_id_once(valkey: Valkey, valkey_url: str) -> None:
    async def act(client: Client) -> None:
        ids = [str(number % 60) for number in range(100)]  # ids of the first request occur in the second again
        calls = [lambda job_id=job_id: client.enqueue(REF, NewJob("t", id=job_id)) for job_id in ids]
        found = await call_while_held(valkey, calls)
        assert [each for each in found if each is True] == [True] * 39
        assert {type(each) for each in found} == {bool, QueueFull}
        accepted = [job_id for job_id, each in zip(ids, found, strict=True) if each is True]
        assert sorted(list_ready(valkey)) == sorted(["first", *accepted])

    run_client(valkey_url, act, QueueOptions(shards=1, caps=WarmCaps(items=40)))


def test_refusals_by_a_quota_are_counted_once_per_call(valkey: Valkey, valkey_url: str) -> None:
    async def act(client: Client) -> None:
        run(valkey, STUBS.configure(REF.environment, {"quota": pack_quotas({"warm_jobs": 5})}))
        calls = [lambda: client.enqueue(REF, NewJob("t")) for _ in range(10)]
        found = await call_while_held(valkey, calls)
        assert [each for each in found if each is True] == [True] * 4
        assert len([each for each in found if isinstance(each, QuotaExceeded)]) == 6
        assert cast(Any, valkey.hget(keys.env(0, REF.environment), "refused:warm_jobs")) == b"6"

    run_client(valkey_url, act)


def test_a_closed_queue_refuses_every_caller_with_an_error_of_its_own(valkey: Valkey, valkey_url: str) -> None:
    async def act(client: Client) -> None:
        await client.close_queue(REF)
        found = await call_while_held(valkey, [lambda: client.enqueue(REF, NewJob("t")) for _ in range(5)])
        assert [type(each) for each in found] == [QueueClosed] * 5
        assert len(set(map(id, found))) == 5

    run_client(valkey_url, act)


def test_an_invalid_call_affects_no_other(valkey: Valkey, valkey_url: str) -> None:
    async def act(client: Client) -> None:
        jobs = [NewJob("t"), NewJob("t"), NewJob("t", max_attempts=0), NewJob("t", cast(bytes, "text")), NewJob("t")]
        found = await call_while_held(valkey, [lambda job=job: client.enqueue(REF, job) for job in jobs])
        kinds = [each if isinstance(each, bool) else type(each) for each in found]
        assert kinds == [True, True, InvalidJob, TypeError, True]

    run_client(valkey_url, act)


def test_an_id_in_several_calls_is_accepted_once(valkey: Valkey, valkey_url: str) -> None:
    async def act(client: Client) -> None:
        ids = ["a", "b", "a", "b", "c", "first"]
        calls = [lambda job_id=job_id: client.enqueue(REF, NewJob("t", id=job_id)) for job_id in ids]
        assert await call_while_held(valkey, calls) == [True, True, False, False, True, False]

    run_client(valkey_url, act)


def test_a_caller_that_is_cancelled_while_it_waits_sends_nothing(valkey: Valkey, valkey_url: str) -> None:
    async def act(client: Client) -> None:
        with hold_scripts(valkey):
            tasks = [asyncio.create_task(client.enqueue(REF, NewJob("t", id=str(number)))) for number in range(5)]
            await asyncio.sleep(0)
            tasks[3].cancel()
            await asyncio.sleep(0)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [each if isinstance(each, bool) else type(each) for each in found] == [
            *(True, True, True, asyncio.CancelledError, True)
        ]
        assert list_ready(valkey) == ["first", "0", "1", "2", "4"]

    run_client(valkey_url, act)


def test_closing_a_client_sends_the_calls_that_wait(valkey: Valkey, valkey_url: str) -> None:
    async def act(client: Client) -> list[asyncio.Task[bool]]:
        with hold_scripts(valkey):
            tasks = [asyncio.create_task(client.enqueue(REF, NewJob("t"))) for _ in range(20)]
            await asyncio.sleep(0)
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
        await closing
        return tasks

    assert all(task.result() for task in run_client(valkey_url, act))
    assert len(list_ready(valkey)) == 21


@contextmanager
def own_server(folder: Path) -> Generator[EmbeddedValkey]:
    """Run a server that writes every command to the append-only file before its reply, so that a kill loses none. With
    `appendfsync everysec` Valkey delays the write while it syncs."""
    server = QuickValkey(folder / "data", folder / "log", find_free_port())
    server.start()
    try:
        server.wait_ready(READY_S)
        yield server
    finally:
        server.stop()


def kill_and_restart(server: EmbeddedValkey) -> None:
    psutil.Process(server.child.pid).kill()
    wait_until(server.exit_code, "it died")
    server.start()
    server.wait_ready(READY_S)


def check_jobs(url: str, expected: int) -> None:
    with connect(url) as valkey:
        ready = list_ready(valkey)
        [state] = read_states(valkey, 1)
    assert (len(ready), len(set(ready)), state.depth) == (expected, expected, expected)


def test_tasks_repeat_their_calls_after_the_server_was_killed_and_lose_nothing(tmp_path: Path) -> None:
    with own_server(tmp_path) as server:
        errors: list[QueueUnavailable] = []

        async def produce(client: Client, name: int, killed: asyncio.Event) -> None:
            for number in range(40):
                job = NewJob("t", id=f"{name}-{number}")
                while True:
                    try:
                        await client.enqueue(REF, job)
                        break
                    except QueueUnavailable as error:
                        errors.append(error)
                        await asyncio.sleep(0.05)
                if number == 20:
                    await killed.wait()

        async def kill(client: Client, killed: asyncio.Event) -> None:
            with connect(server.url) as valkey:
                valkey.client_pause(PAUSE_MS, all=False)
            lanes = client._coalescer._waiting  # pyright: ignore[reportPrivateUsage]
            while sum(map(len, lanes.values())) < 2:  # a request is in flight, and others wait for it
                await asyncio.sleep(0.01)
            await asyncio.to_thread(kill_and_restart, server)
            killed.set()

        async def act(client: Client) -> None:
            killed = asyncio.Event()
            await asyncio.gather(*(produce(client, name, killed) for name in range(30)), kill(client, killed))

        run_client(server.url, act)
        check_jobs(server.url, 1 + 30 * 40)
        assert len(errors) > 1
        assert len(set(map(id, errors))) == len(errors)


def start_threads(count: int, do: Callable[[int], object]) -> tuple[list[threading.Thread], dict[int, object]]:
    outcomes: dict[int, object] = {}

    def call(number: int) -> None:
        try:
            outcomes[number] = do(number)
        except BaseException as error:
            outcomes[number] = error

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads, outcomes


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


def test_threads_share_requests(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        client.enqueue(REF, NewJob("t", id="first"))
        before = count_scripts(valkey)
        with hold_scripts(valkey):
            threads, outcomes = start_threads(16, lambda number: client.enqueue(REF, NewJob("t", id=str(number))))
            lanes = client._coalescer._waiting  # pyright: ignore[reportPrivateUsage]
            wait_until(lambda: sum(map(len, lanes.values())) == 15, "the others wait")
        join(threads)
        assert list(outcomes.values()) == [True] * 16
        assert count_scripts(valkey) - before == 2
        assert len(list_ready(valkey)) == 17


def test_threads_lose_nothing_when_the_server_is_killed(tmp_path: Path) -> None:
    with own_server(tmp_path) as server, SyncClient(server.url, OPTIONS) as client:
        client.enqueue(REF, NewJob("t", id="first"))
        restarted, half_done = threading.Event(), threading.Barrier(9)

        def produce(name: int) -> None:
            for number in range(60):
                job = NewJob("t", id=f"{name}-{number}")
                while True:
                    try:
                        client.enqueue(REF, job)
                        break
                    except QueueUnavailable:
                        restarted.wait(1)
                if number == 20:
                    half_done.wait(60)

        threads, outcomes = start_threads(8, produce)
        half_done.wait(60)
        kill_and_restart(server)
        restarted.set()
        join(threads)
        assert set(outcomes.values()) == {None}
        check_jobs(server.url, 1 + 8 * 60)


def test_a_child_process_does_not_wait_for_a_thread_of_its_parent(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        client.enqueue(REF, NewJob("t", id="first"))
        with hold_scripts(valkey):
            threads, _ = start_threads(1, lambda _: client.enqueue(REF, NewJob("t", id="parent")))
            lanes = client._coalescer._waiting  # pyright: ignore[reportPrivateUsage]
            wait_until(lambda: lanes, "a call is in flight")
            child = os.fork()
            if child == 0:
                try:
                    os._exit(0 if client.enqueue(REF, NewJob("t", id="child")) else 1)
                except BaseException:
                    os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        join(threads)
        assert set(list_ready(valkey)) == {"first", "parent", "child"}


@pytest.mark.parametrize("calls", [2, 20])
def test_calls_share_requests_on_a_cluster_too(any_valkey_url: str, calls: int) -> None:
    async def act(client: Client) -> list[bool]:
        return await asyncio.gather(*(client.enqueue(REF, NewJob("t")) for _ in range(calls)))

    assert run_client(any_valkey_url, act) == [True] * calls
