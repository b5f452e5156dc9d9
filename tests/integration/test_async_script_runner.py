"""Script calls of the asynchronous client, on connections that it reads and writes itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import psutil
import pytest
from redis.exceptions import DataError

from headrace.embedded.process import find_free_port
from headrace.embedded.valkey import USER
from headrace.errors import QueueClosed, QueueUnavailable
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import Client, QueueOptions
from headrace.valkey.async_script_runner import AsyncScriptRunner
from headrace.valkey.connect import Valkey, connect, connect_async
from headrace.valkey.script_runner import CHECK_IDLE_AFTER_S
from headrace.valkey.scripts import Script, ScriptCall
from tests.conftest import READY_S, QuickValkey, wait_until

T = TypeVar("T")

REF = QueueRef("acme", "shop", "prod", "emails")
PAUSE_MS = 120_000  # longer than a test takes: `hold_scripts` ends the pause


def make_call(text: str, source: str = "return ARGV[1]") -> ScriptCall[bytes]:
    return ScriptCall[bytes](Script("echo", source, source), ["k"], [text], bytes)


ECHO = make_call("hello")
WRITE = make_call("hello", "redis.call('SET', 'k', '1', 'PX', 1) return ARGV[1]")  # waits while scripts are held
FAIL = make_call("", "return redis.error_reply('CLOSED')")


def run_with(url: str, act: Callable[[AsyncScriptRunner], Awaitable[T]], timeout_s: float = 60.0) -> T:
    async def with_runner() -> T:
        async with connect_async(url, timeout_s=timeout_s) as client:
            runner = AsyncScriptRunner(client)
            try:
                return await act(runner)
            finally:
                await runner.close()

    return asyncio.run(with_runner())


@contextmanager
def hold_scripts(valkey: Valkey) -> Generator[None]:
    """Let the server answer no command that may write, until the end of the context."""
    valkey.client_pause(PAUSE_MS, all=False)
    try:
        yield
    finally:
        valkey.client_unpause()


def list_clients(valkey: Valkey) -> set[str]:
    return {entry["id"] for entry in cast(Any, valkey.client_list())}


async def wait_until_blocked(valkey: Valkey, count: int) -> None:
    while cast(Any, valkey.info("clients"))["blocked_clients"] < count:
        await asyncio.sleep(0.001)


def test_a_script_that_the_server_does_not_have_is_sent(valkey: Valkey, valkey_url: str) -> None:
    async def act(runner: AsyncScriptRunner) -> None:
        valkey.script_flush()
        assert await runner.run(ECHO) == b"hello"
        assert cast(Any, valkey.script_exists(ECHO.script.sha)) == [True]
        assert await runner.run(ECHO) == b"hello"

    run_with(valkey_url, act)


def test_concurrent_calls_get_their_own_replies_on_one_connection(valkey: Valkey, valkey_url: str) -> None:
    async def act(runner: AsyncScriptRunner) -> None:
        before = list_clients(valkey)
        texts = [str(number) * (1 + number * 97 % 20_000) for number in range(300)]
        replies = await asyncio.gather(*(runner.run(make_call(text)) for text in texts))
        assert replies == [text.encode() for text in texts]
        assert len(list_clients(valkey) - before) == 1

    run_with(valkey_url, act)


def test_errors_of_scripts_are_translated_and_keep_the_connection(valkey: Valkey, valkey_url: str) -> None:
    async def act(runner: AsyncScriptRunner) -> None:
        await runner.run(ECHO)
        before = list_clients(valkey)
        found = await asyncio.gather(*(runner.run(call) for call in (FAIL, ECHO, FAIL, ECHO)), return_exceptions=True)
        assert [type(each) for each in found] == [QueueClosed, bytes, QueueClosed, bytes]
        with pytest.raises(DataError):
            await runner.run(ScriptCall(ECHO.script, ["k"], [cast(Any, object())], bytes))
        assert await runner.run(ECHO) == b"hello"
        assert list_clients(valkey) == before

    run_with(valkey_url, act)


@pytest.mark.parametrize("loop_is_busy", [False, True])
def test_a_connection_that_the_server_closed_while_idle_is_replaced(
    valkey: Valkey, valkey_url: str, loop_is_busy: bool
) -> None:
    async def act(runner: AsyncScriptRunner) -> None:
        for _ in range(5):
            assert await runner.run(ECHO) == b"hello"
            valkey.client_kill_filter(skipme=True, _type="normal")
            pause_s = CHECK_IDLE_AFTER_S * 2  # the connection counts as idle only after this time
            if loop_is_busy:  # the event loop cannot see that the connection was closed
                time.sleep(pause_s)
            else:
                await asyncio.sleep(pause_s)
        assert await runner.run(ECHO) == b"hello"

    run_with(valkey_url, act)


def test_every_call_in_flight_fails_when_the_connection_is_lost(valkey: Valkey, valkey_url: str) -> None:
    async def act(runner: AsyncScriptRunner) -> None:
        await runner.run(WRITE)
        with hold_scripts(valkey):
            calls = [asyncio.create_task(runner.run(WRITE)) for _ in range(10)]
            await wait_until_blocked(valkey, 1)
            valkey.client_kill_filter(skipme=True, _type="normal")
            found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in found] == [QueueUnavailable] * 10
        assert len(set(map(id, found))) == 10
        assert await runner.run(ECHO) == b"hello"

    run_with(valkey_url, act)


def test_the_reply_to_a_cancelled_call_goes_to_no_other(valkey: Valkey, valkey_url: str) -> None:
    async def act(runner: AsyncScriptRunner) -> None:
        await runner.run(WRITE)
        before = list_clients(valkey)
        with hold_scripts(valkey):
            calls = [
                asyncio.create_task(runner.run(make_call(str(number), WRITE.script.source))) for number in range(20)
            ]
            await wait_until_blocked(valkey, 1)
            for call in calls[::3]:
                call.cancel()
            await asyncio.wait(calls[::3])
            late = asyncio.create_task(runner.run(make_call("late")))
            await asyncio.sleep(0)
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [each for each in found if isinstance(each, bytes)] == [
            str(number).encode() for number in range(20) if number % 3
        ]
        assert {type(each) for each in found[::3]} == {asyncio.CancelledError}
        assert await late == b"late"
        assert list_clients(valkey) == before

    run_with(valkey_url, act)


def test_a_caller_that_is_cancelled_while_the_connection_opens_does_not_affect_others(valkey_url: str) -> None:
    async def act(runner: AsyncScriptRunner) -> None:
        calls = [asyncio.create_task(runner.run(make_call(str(number)))) for number in range(4)]
        await asyncio.sleep(0)
        calls[0].cancel()
        assert await asyncio.gather(*calls[1:]) == [b"1", b"2", b"3"]

    run_with(valkey_url, act)


def test_a_server_that_does_not_respond_raises_and_the_next_call_gets_its_own_reply(
    valkey: Valkey, valkey_url: str
) -> None:
    async def act(runner: AsyncScriptRunner) -> None:
        await runner.run(ECHO)
        with hold_scripts(valkey):
            calls = [asyncio.create_task(runner.run(WRITE)) for _ in range(3)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in found] == [QueueUnavailable] * 3
        deadline = time.monotonic() + 60
        while True:
            try:
                assert await runner.run(make_call("next")) == b"next"
                break
            except QueueUnavailable:
                assert time.monotonic() < deadline

    run_with(valkey_url, act, timeout_s=0.3)


def test_a_call_does_not_time_out_with_the_one_before_it(valkey: Valkey, valkey_url: str) -> None:
    """The first call is sent when the timeout of its connection is short; the others have a longer one."""

    async def act(runner: AsyncScriptRunner) -> None:
        await runner.run(WRITE)
        [connection] = runner._connections.values()  # pyright: ignore[reportPrivateUsage]
        connection._end_late_calls()  # pyright: ignore[reportPrivateUsage]  # there are none: removes the timer
        with hold_scripts(valkey):
            connection._timeout_s = 0.05  # pyright: ignore[reportPrivateUsage]
            first = asyncio.create_task(runner.run(WRITE))
            await wait_until_blocked(valkey, 1)
            connection._timeout_s = 60.0  # pyright: ignore[reportPrivateUsage]
            second = asyncio.create_task(runner.run(make_call("second", WRITE.script.source)))
            with pytest.raises(QueueUnavailable):
                await first
        assert await second == b"second"
        assert not connection.is_usable
        assert await runner.run(ECHO) == b"hello"

    run_with(valkey_url, act)


def test_event_loops_of_several_threads_have_their_own_connections(valkey: Valkey, valkey_url: str) -> None:
    before = list_clients(valkey)
    errors: list[BaseException] = []
    client = connect_async(valkey_url, timeout_s=60.0)
    runner = AsyncScriptRunner(client)

    async def call(name: int) -> None:
        texts = [f"{name}-{number}" for number in range(50)]
        for _ in range(5):
            found = await asyncio.gather(*(runner.run(make_call(text)) for text in texts))
            assert found == [text.encode() for text in texts]
        assert await _call_and_close(runner) == b"hello"  # closes those of all loops

    def run_loop(name: int) -> None:
        async def retry() -> None:
            while True:
                try:
                    return await call(name)
                except QueueUnavailable:  # another loop has closed the connections
                    pass

        try:
            asyncio.run(retry())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run_loop, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for _ in range(3):  # loops one after the other
        assert asyncio.run(_call_and_close(runner)) == b"hello"
    wait_until(lambda: list_clients(valkey) <= before, "every connection is closed")


async def _call_and_close(runner: AsyncScriptRunner) -> bytes:
    try:
        return await runner.run(ECHO)
    finally:
        await runner.close()


def test_calls_work_again_after_the_server_was_restarted(tmp_path: Path) -> None:
    server = QuickValkey(tmp_path / "data", tmp_path / "log", find_free_port())
    server.start()
    try:
        server.wait_ready(READY_S)

        async def act(runner: AsyncScriptRunner) -> None:
            assert await runner.run(ECHO) == b"hello"
            psutil.Process(server.child.pid).kill()
            await asyncio.to_thread(wait_until, server.exit_code, "it died")
            with pytest.raises(QueueUnavailable):
                await runner.run(ECHO)
            server.start()
            await asyncio.to_thread(server.wait_ready, READY_S)
            assert await runner.run(ECHO) == b"hello"

        run_with(server.url, act)
    finally:
        server.stop()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def test_an_encrypted_connection(valkey: Valkey, valkey_url: str, tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {key} -out {certificate}"
    subprocess.run(request.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    parts = urlsplit(valkey_url)

    async def decrypt(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own_reader, own_writer = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(forward(reader, own_writer), forward(own_reader, writer))

    async def act() -> None:
        async with await asyncio.start_server(decrypt, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            url = f"rediss://{parts.username}:{parts.password}@127.0.0.1:{port}/0?ssl_cert_reqs=none"
            async with connect_async(url) as client:
                runner = AsyncScriptRunner(client)
                texts = [str(number) * 5000 for number in range(20)]
                replies = await asyncio.gather(*(runner.run(make_call(text)) for text in texts))
                assert replies == [text.encode() for text in texts]
                valkey.client_kill_filter(skipme=True, _type="normal")
                await asyncio.sleep(CHECK_IDLE_AFTER_S * 2)
                while True:  # the proxy takes a moment to pass it on
                    try:
                        assert await runner.run(ECHO) == b"hello"
                        break
                    except QueueUnavailable:
                        pass
                await runner.close()

    asyncio.run(act())


def test_a_unix_socket_and_another_database(tmp_path: Path) -> None:
    socket = tmp_path / "valkey.sock"
    server = QuickValkey(tmp_path / "data", tmp_path / "log", extra=("--unixsocket", str(socket)))
    server.start()
    try:
        server.wait_ready(READY_S)

        async def act(runner: AsyncScriptRunner) -> None:
            assert await runner.run(make_call("", "redis.call('SET', 'k', 1) return 'set'")) == b"set"

        run_with(f"unix://{USER}:{server.passwords[USER]}@{socket}?db=3", act)
        with connect(server.url.removesuffix("/0") + "/3") as client:
            assert client.exists("k")
    finally:
        server.stop()


def test_closing_ends_the_connection_and_the_runner_stays_usable(valkey: Valkey, valkey_url: str) -> None:
    before = list_clients(valkey)

    async def act(runner: AsyncScriptRunner) -> None:
        await runner.run(ECHO)
        await runner.close()
        while list_clients(valkey) > before:
            await asyncio.sleep(0.001)
        assert await runner.run(ECHO) == b"hello"

    run_with(valkey_url, act)
    wait_until(lambda: list_clients(valkey) <= before, "the connection is closed")


def test_a_forked_child_opens_its_own_connection(valkey_url: str) -> None:
    client = connect_async(valkey_url)
    runner = AsyncScriptRunner(client)

    async def call() -> bytes:
        return await runner.run(ECHO)

    with asyncio.Runner() as parent:
        assert parent.run(call()) == b"hello"
        child = os.fork()
        if child == 0:
            try:
                asyncio._set_running_loop(None)
                os._exit(0 if asyncio.run(_call_and_close(runner)) == b"hello" else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert parent.run(_call_and_close(runner)) == b"hello"


def test_a_client_runs_calls_of_a_shard_on_every_kind_of_server(any_valkey_url: str) -> None:
    async def act() -> None:
        async with Client(any_valkey_url, QueueOptions(shards=2)) as client:
            shard = client.options.make_stubs().find_shard(REF)
            await client.enqueue(REF, NewJob("t", id="a"))
            leased = await client.run_on_shard(shard, client.options.make_stubs().dequeue(shard, 10, 60_000))
            assert [job.id for job in leased] == ["a"]

    asyncio.run(act())
