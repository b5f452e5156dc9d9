"""Script calls on connections that the synchronous client keeps out of redis-py's pool."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, cast

import pytest

from headrace.errors import QueueClosed, QueueUnavailable
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import Stubs
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.script_runner import CHECK_IDLE_AFTER_S, MAX_KEPT, ScriptRunner
from headrace.valkey.scripts import Script, ScriptCall

REF = QueueRef("acme", "shop", "prod", "emails")
STUBS = Stubs(1, 1_000_000)
ECHO = ScriptCall[bytes](Script("echo", "return ARGV[1]", "return ARGV[1]"), ["k"], ["hello"], bytes)


def list_clients(valkey: Valkey) -> list[dict[str, str]]:
    return cast(Any, valkey.client_list())


def test_a_script_that_the_server_does_not_have_is_sent(valkey: Valkey) -> None:
    runner = ScriptRunner(valkey)
    valkey.script_flush()
    assert runner.run(ECHO) == b"hello"
    assert cast(Any, valkey.script_exists(ECHO.script.sha)) == [True]
    assert runner.run(ECHO) == b"hello"


def test_errors_of_scripts_keep_the_connection(valkey_url: str, valkey: Valkey) -> None:
    with SyncClient(valkey_url, QueueOptions(shards=1)) as client:
        client.enqueue(REF, NewJob("t"))
        client.close_queue(REF)
        before = {entry["id"] for entry in list_clients(valkey)}
        for _ in range(3):
            with pytest.raises(QueueClosed):
                client.enqueue(REF, NewJob("t"))
        client.open_queue(REF)
        assert client.enqueue(REF, NewJob("t"))
        assert {entry["id"] for entry in list_clients(valkey)} == before


def test_a_connection_that_the_server_closed_while_idle_is_opened_again(valkey_url: str, valkey: Valkey) -> None:
    with connect(valkey_url) as own:
        runner = ScriptRunner(own)
        runner.run(ECHO)
        valkey.client_kill_filter(skipme=True, _type="normal")
        time.sleep(CHECK_IDLE_AFTER_S * 2)  # the connection counts as idle only after this time
        assert runner.run(ECHO) == b"hello"


def test_a_server_that_does_not_respond_raises_and_the_next_call_gets_its_own_reply(valkey_url: str) -> None:
    with connect(valkey_url, timeout_s=0.2) as own:
        runner = ScriptRunner(own)
        runner.run(ECHO)
        block = "local started = os.clock() while os.clock() - started < 1 do end"
        busy = ScriptCall[None](Script("busy", block, block), ["k"], [], lambda _: None)
        with pytest.raises(QueueUnavailable):
            runner.run(busy)
        deadline = time.monotonic() + 60
        while True:
            try:
                assert runner.run(ECHO) == b"hello"
                break
            except QueueUnavailable:
                assert time.monotonic() < deadline


def test_the_number_of_kept_connections_is_bounded_and_close_ends_them(valkey_url: str, valkey: Valkey) -> None:
    before = len(list_clients(valkey))
    with connect(valkey_url) as own:
        runner = ScriptRunner(own)
        start, errors = threading.Barrier(MAX_KEPT * 2), list[BaseException]()

        def call() -> None:
            start.wait()
            try:
                for _ in range(20):
                    assert runner.run(ECHO) == b"hello"
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=call) for _ in range(MAX_KEPT * 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(runner._kept) <= MAX_KEPT  # pyright: ignore[reportPrivateUsage]
        runner.close()
        assert runner.run(ECHO) == b"hello"  # usable afterwards, as a client of redis-py is
        runner.close()
    assert len(list_clients(valkey)) == before


def test_a_forked_child_does_not_use_the_connections_of_its_parent(valkey_url: str) -> None:
    with SyncClient(valkey_url, QueueOptions(shards=1)) as client:
        client.enqueue(REF, NewJob("t", id="before"))
        child = os.fork()
        if child == 0:
            try:
                accepted = [client.enqueue(REF, NewJob("t", id=f"child {number}")) for number in range(50)]
                os._exit(0 if all(accepted) else 1)
            except BaseException:
                os._exit(2)
        assert all(client.enqueue(REF, NewJob("t", id=f"parent {number}")) for number in range(50))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.redis.zcard("hr:{0}:q:acme:shop:prod:emails:ready") == 101
