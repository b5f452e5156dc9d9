"""Every kind of URL reaches a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.embedded.process import LOOPBACK, GuardedProcess
from headrace.embedded.valkey import USER, EmbeddedValkey, find_server
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import Client, SyncClient
from headrace.valkey.connect import connect
from headrace.valkey.probe import read_server_version
from tests.conftest import READY_S, wait_until
from tests.ports import reserved_port
from tests.valkey_cluster import build_supervisor_url

REF = QueueRef("o", "p", "e", "q")
PATIENT = "sentinel down-after-milliseconds the-queue 600000\n"
"""Long enough that a paused master is not replaced."""


async def enqueue(url: str) -> bool:
    async with Client(url) as client:
        return await client.enqueue(REF, NewJob("t", id="from the other client"))


def test_user_and_password(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log")
    server.start()
    try:
        server.wait_ready(READY_S)
        with connect(build_supervisor_url(server)) as client:
            client.acl_setuser("odd", enabled=True, passwords="+p@ss:word/", keys="*", channels="*", commands=["+@all"])
        url = f"redis://odd:p%40ss%3Aword%2F@{LOOPBACK}:{server.port}/0"
        assert SyncClient(url).enqueue(REF, NewJob("t"))
        assert read_server_version(f"redis://{LOOPBACK}:{server.port}/0") is None
    finally:
        server.stop()


def test_a_unix_socket(tmp_path: Path) -> None:
    socket = tmp_path / "valkey.sock"
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log", extra=("--unixsocket", str(socket)))
    server.start()
    server.wait_ready(READY_S)
    try:
        assert SyncClient(f"unix://{USER}:{server.passwords[USER]}@{socket}?db=0").enqueue(REF, NewJob("t"))
    finally:
        server.stop()


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as found:
        yield found


def test_the_master_that_sentinels_know(tmp_path: Path, port: int) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log")
    server.start()
    server.wait_ready(READY_S)
    password = server.passwords[USER]
    login = f"sentinel auth-user the-queue {USER}\nsentinel auth-pass the-queue {password}\n"
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind {LOOPBACK}\nsentinel monitor the-queue {LOOPBACK} {server.port} 1\n{login}{PATIENT}"
    )
    sentinel = GuardedProcess(
        "sentinel", [find_server("bundled"), str(config), "--sentinel"], log_file=tmp_path / "sentinel.log"
    )
    sentinel.start()
    try:
        url = f"redis+sentinel://{USER}:{password}@{LOOPBACK}:1,{LOOPBACK}:{port}/the-queue/0"
        wait_until(lambda: read_server_version(url), "the sentinel answers", READY_S)
        with SyncClient(url) as client:
            assert client.enqueue(REF, NewJob("t"))
        assert asyncio.run(enqueue(url))
    finally:
        sentinel.stop()
        server.stop()


def test_a_cluster_found_through_one_of_its_nodes(any_valkey_url: str) -> None:
    url = any_valkey_url.split(",")[0]
    with SyncClient(url) as client:
        assert client.enqueue(REF, NewJob("t"))
    assert asyncio.run(enqueue(url))
