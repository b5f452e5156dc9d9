"""Secrets of a running `headrace up` that another user of the machine, or a reader of logs, could find."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import clickhouse_connect
import psycopg
import pytest
import redis

from headrace.app.endpoints import SERVERS
from headrace.embedded.credentials import FILE
from headrace.valkey.connect import connect
from tests.conftest import wait_until
from tests.programs import find_tool
from tests.security.local_user import needs_another_user, run_as_stranger
from tests.stack import CHART_S, RunningStack, command_lines

pytestmark = pytest.mark.timeout(1200)

GIVEN = "given-by-flag"

ATTACK = """
import glob, json, socket, sys, urllib.error, urllib.request
import psycopg

found = []
asked = json.load(sys.stdin)
with socket.create_connection(("127.0.0.1", asked["redis_port"]), 60) as valkey:
    valkey.sendall(b"INFO\\r\\n")
    if not valkey.recv(100).startswith(b"-NOAUTH"):
        found.append("redis")
for host in ("127.0.0.1", asked["postgres_socket"]):
    for user in ("headrace", "headrace_admin", "postgres"):
        try:
            psycopg.connect(host=host, port=asked["postgres_port"], user=user, dbname="headrace", connect_timeout=60)
            found.append(f"postgres by {host} as {user}")
        except psycopg.OperationalError:
            pass
try:
    urllib.request.urlopen(f"http://127.0.0.1:{asked['clickhouse_port']}/?query=SELECT+1", timeout=60)
    found.append("clickhouse")
except urllib.error.HTTPError:
    pass
for path in asked["files"]:
    try:
        open(path).close()
        found.append(path)
    except PermissionError:
        pass
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        with open(path, "rb") as file:
            text = file.read().decode(errors="replace")
    except OSError:
        continue
    if any(secret in text for secret in asked["secrets"]):
        found.append(path)
print(json.dumps(found))
"""


def read_secrets(data_dir: Path) -> set[str]:
    files = [json.loads((data_dir / server / FILE).read_text()) for server in ("valkey", "postgres", "clickhouse")]
    return {password for passwords in files for password in passwords.values()}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Yield a stack with a password on its own command line."""
    folder = tmp_path_factory.mktemp("stack")
    given = {"streams.url": f"redis://:{GIVEN}@127.0.0.1:1/0"}
    stack = RunningStack(folder / "data", "--port", "0", settings=given)
    try:
        assert stack.dashboard
        secrets = read_secrets(stack.data_dir)
        yield stack
        code, out, err = stack.stop()
        assert code == 0, err
        assert "redis redis://headrace:***@127.0.0.1" in err
        assert not [secret for secret in secrets if secret in out + err], "a password was printed"
    finally:
        if stack.process.poll() is None:
            stack.stop()


@needs_another_user
def test_another_user_of_the_machine_reaches_nothing(stack: RunningStack) -> None:
    redis_url, postgres_url, clickhouse_url = (urlsplit(stack.urls[server]) for server in SERVERS)
    with connect(stack.urls["redis"]) as client:
        assert client.info()
    asked = {
        "redis_port": redis_url.port,
        "postgres_port": postgres_url.port,
        "postgres_socket": str(stack.data_dir / "postgres" / "cluster"),
        "clickhouse_port": clickhouse_url.port,
        "files": [
            str(stack.data_dir / name) for name in ("stack.json", "api.key", f"valkey/{FILE}", f"postgres/{FILE}")
        ],
        "secrets": sorted(read_secrets(stack.data_dir)),
    }
    done = run_as_stranger(ATTACK, text=json.dumps(asked))
    assert (done.stdout, done.stderr) == ("[]\n", "")


def has_spark_workers(stack: RunningStack) -> bool:
    return any("-m pyspark." in line for line in command_lines(stack.descendants()))


def test_passwords_appear_nowhere(stack: RunningStack) -> None:
    """Checks command lines, logs, `config show` and files that other users can read."""
    secrets = read_secrets(stack.data_dir)
    wait_until(lambda: has_spark_workers(stack), "Spark has started processes of its own", CHART_S)
    for line in command_lines(stack.descendants()):
        assert not [secret for secret in {*secrets, GIVEN} if secret in line], line
    for log in (stack.data_dir / "log").iterdir():
        text = log.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], log
    for path in (path for path in stack.data_dir.rglob("*") if path.suffix in (".json", ".xml", ".acl", ".key")):
        assert path.stat().st_mode & 0o077 == 0 or not any(secret in path.read_text() for secret in secrets), path
    command = [sys.executable, "-m", "headrace", "--set", f"redis.url={stack.urls['redis']}", "config", "show"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "redis://headrace:***@" in shown


# --- Clients that are not Headrace's own ------------------------------------------------------------


def print_url(stack: RunningStack, server: str) -> str:
    """Return the output of `headrace url`; `headrace up` refers to it where passwords are masked."""
    command = [sys.executable, "-m", "headrace", "--set", f"embedded.data_dir={stack.data_dir}", "url", server]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_clients_for_python_connect_by_the_printed_urls(stack: RunningStack) -> None:
    with redis.Redis.from_url(print_url(stack, "redis")) as valkey:
        assert valkey.ping()
    with psycopg.connect(print_url(stack, "postgres")) as conn:
        assert conn.execute("SELECT count(*) >= 0 FROM api_keys").fetchone() == (True,)
    clickhouse = clickhouse_connect.get_client(dsn=print_url(stack, "clickhouse"))
    assert clickhouse.command("SELECT 1") == 1
    clickhouse.close()


def test_valkey_cli_connects_by_the_printed_url(stack: RunningStack) -> None:
    command = [find_tool("redis-tools", "valkey-cli", "redis-cli"), "-u", print_url(stack, "redis"), "PING"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "PONG\n"
