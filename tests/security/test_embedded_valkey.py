"""Attacks on the embedded Valkey: without a password, and with that of Headrace's user."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
import redis.exceptions

from headrace.embedded.credentials import FILE
from headrace.embedded.valkey import SUPERVISOR, USER, EmbeddedValkey
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import SyncClient
from headrace.valkey.connect import connect
from tests.security.servers import started
from tests.valkey_cluster import build_supervisor_url

REFUSED = r"(?i)permission|not allowed|can't run|ACL"


class StrictValkey(EmbeddedValkey):
    """A server with the rules of `headrace up`, which other tests relax."""

    rules = "+@all -@admin -@dangerous +info"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    folder = tmp_path_factory.mktemp("valkey")
    with started(StrictValkey(folder / "data", folder / "log")) as server:
        yield server


@pytest.mark.parametrize("login", ["", "default:@", ":guessed@", f"{USER}:guessed@", f"{SUPERVISOR}:@"])
def test_a_command_needs_the_password(server: EmbeddedValkey, login: str) -> None:
    with (
        redis.Redis.from_url(f"redis://{login}127.0.0.1:{server.port}/0") as client,
        pytest.raises((redis.AuthenticationError, redis.exceptions.NoPermissionError)),
    ):
        client.get("anything")


@pytest.mark.parametrize(
    "command",
    [
        "CONFIG SET dir /tmp",
        "CONFIG GET *",
        "CONFIG REWRITE",
        "MODULE LOAD /tmp/evil.so",
        "DEBUG SLEEP 0",
        "SHUTDOWN NOSAVE",
        "REPLICAOF 127.0.0.1 1",
        "SLAVEOF 127.0.0.1 1",
        "FAILOVER",
        "ACL SETUSER mine on nopass ~* +@all",
        "ACL LIST",
        "FLUSHALL",
        "KEYS *",
        "SAVE",
        "BGREWRITEAOF",
        "MONITOR",
        "CLIENT KILL TYPE normal",
        "MIGRATE 127.0.0.1 1 key 0 10",
        "CLUSTER MEET 127.0.0.1 1",
        "SYNC",
    ],
)
def test_the_user_of_headrace_does_not_control_the_server(server: EmbeddedValkey, command: str) -> None:
    with connect(server.url) as client, pytest.raises(redis.exceptions.ResponseError, match=REFUSED):
        client.execute_command(*command.split())


def test_a_script_has_no_more_rights(server: EmbeddedValkey) -> None:
    with connect(server.url) as client, pytest.raises(redis.exceptions.ResponseError, match=REFUSED):
        client.execute_command("EVAL", "return redis.call('CONFIG', 'GET', 'dir')", 0)


def test_the_supervisor_controls_it_and_jobs_go_through(server: EmbeddedValkey) -> None:
    with connect(build_supervisor_url(server)) as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}
    with SyncClient(server.url) as queue:
        assert queue.enqueue(QueueRef("o", "p", "e", "q"), NewJob("t"))


def test_the_passwords_are_for_the_owner_alone(server: EmbeddedValkey) -> None:
    for name in (FILE, "users.acl"):
        assert stat.S_IMODE((server.data_dir / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700
    secrets = set(server.passwords.values())
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not any(secret in line for secret in secrets for line in [*lines, server.log_file.read_text()])


def test_a_data_directory_without_users_gets_them(tmp_path: Path) -> None:
    """Earlier releases wrote no users; the keys are kept."""
    server = StrictValkey(tmp_path / "data", tmp_path / "log")
    with started(server), connect(server.url) as client:
        client.set("kept", "yes")
    for name in (FILE, "users.acl"):
        (tmp_path / "data" / name).unlink()
    with started(server):
        with redis.Redis(port=server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.get("kept")
        with connect(server.url) as client:
            assert client.get("kept") == b"yes"
