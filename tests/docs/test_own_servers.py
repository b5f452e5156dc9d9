"""The pages about servers of your own work word by word, on servers that Headrace did not start itself.

Blocks `sh servers` and `sh cluster` export URLs; here they get those of the test. `tests.docs.reader` describes the
other labels. Ports and addresses in the commands are replaced by free ones of this machine.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.cli.main import COMMANDS
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.embedded.java import find_java
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import LOOPBACK, find_free_port
from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import SyncClient
from headrace.valkey.connect import connect
from tests.docs.blocks import ROOT, CodeBlock, make_environment, read_blocks
from tests.docs.reader import Reader
from tests.valkey_cluster import EmbeddedValkeyCluster

OWN_SERVERS = ROOT / "docs" / "how-to" / "run-against-your-own-servers.md"
SPARK_CLUSTER = ROOT / "docs" / "how-to" / "run-the-pipeline-on-a-cluster.md"
READY_S = 240.0
COMPONENTS = {"pipeline", "api", "worker", "mover", "alerts", "snapshot", "autoscale", "streams"}
SERVER_URLS = {
    "HEADRACE_REDIS_URL": "redis",
    "HEADRACE_POSTGRES_URL": "postgres",
    "HEADRACE_CLICKHOUSE_URL": "clickhouse",
}
PORT = re.compile(r"\b(?:8080|91\d\d|7077)\b")


class StreamsValkey(EmbeddedValkey):
    """Lets another application use streams of its own."""

    rules = "+@all"


@dataclass(frozen=True)
class ForeignServers:
    redis: str
    postgres: str
    clickhouse: str

    def replace_url(self, variable: str) -> str:
        return getattr(self, SERVER_URLS[variable])


@contextmanager
def run_servers(folder: Path, kind: str) -> Generator[ForeignServers]:
    """Run servers that contain nothing yet, apart from the folder in which the page is followed."""
    data, log = folder / "servers", folder / "servers-log"
    valkey = EmbeddedValkeyCluster(data / "cluster", log) if kind == "cluster" else StreamsValkey(data / "valkey", log)
    postgres = EmbeddedPostgres(data / "postgres", log, find_free_port())
    clickhouse = EmbeddedClickHouse(data / "clickhouse", log)
    with ExitStack() as stack:
        for server in (valkey, postgres, clickhouse):
            stack.callback(server.stop)
            server.start()
            server.wait_ready(READY_S)
        yield ForeignServers(valkey.url, postgres.url, clickhouse.url)


def make_adapter() -> Callable[[str], str]:
    """Return a function that replaces each port of the page by a free one, always the same."""
    ports: dict[str, str] = {}

    def adapt(text: str) -> str:
        return PORT.sub(lambda match: ports.setdefault(match[0], str(find_free_port())), text)

    return adapt


def read_exports(block: CodeBlock) -> dict[str, str]:
    """Return the variables that a block exports."""
    found: dict[str, str] = {}
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "export", line
        name, _, value = words[1].partition("=")
        found[name] = value
    return found


def use_other_application(servers: ForeignServers) -> None:
    """Do what the application does whose stream is watched: create a group and add an entry."""
    with connect(servers.redis) as client:
        client.xgroup_create("orders", "billing", mkstream=True)
        client.xadd("orders", {"order": "1"})


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["one server", "cluster"])
def test_every_component_runs_on_your_own_servers(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    env = make_environment(PYTHONUNBUFFERED="1", COLUMNS="200")
    with run_servers(tmp_path, kind) as servers, ExitStack() as stack:
        reader = Reader(folder, env, stack, stop=signal.SIGTERM, adapt=make_adapter())
        for block in read_blocks(OWN_SERVERS):
            if block.label == "servers":
                reader.env |= {name: servers.replace_url(name) for name in read_exports(block)}
            elif block.label == "cluster":
                if kind == "cluster":
                    reader.env |= read_exports(block) | {"HEADRACE_REDIS_URL": servers.redis}
            else:
                reader.follow(block)
                if block.label == "streams":
                    use_other_application(servers)
        assert reader.terminals.keys() == COMPONENTS
        assert not folder.joinpath(".headrace", "valkey").exists(), "no embedded server was started"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_pipeline_runs_on_a_standalone_spark_cluster(tmp_path: Path) -> None:
    """The section Standalone, on this machine, with less memory; the commands for other clusters are not run."""
    folder = tmp_path / "driver"
    folder.mkdir()
    ports = make_adapter()
    java = find_java(tmp_path, None, os.environ)
    env = make_environment(PYTHONUNBUFFERED="1", JAVA_HOME=str(java.home), SPARK_LOCAL_IP=LOOPBACK)
    env |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_CONF_DIR": str(tmp_path)}
    tmp_path.joinpath("spark-defaults.conf").write_text("spark.executor.memory 512m\n")

    def adapt(text: str) -> str:
        text = re.sub(r"\b10\.0\.0\.\d\b", LOOPBACK, ports(text))
        text = text.replace("BIN/", f"{Path(sys.executable).parent}/").replace("--memory 4g", "--memory 1g")
        return text.replace("--cores 2", "--cores 1")

    page = [block for block in read_blocks(SPARK_CLUSTER) if not block.text.startswith(("HEADRACE_", "export HADOOP"))]
    with run_servers(tmp_path, "one server") as servers, ExitStack() as stack:
        reader = Reader(folder, env, stack, stop=signal.SIGTERM, adapt=adapt)
        reader.env |= {name: servers.replace_url(name) for name in SERVER_URLS}
        with SyncClient(servers.redis) as client:
            client.enqueue(QueueRef("acme", "shop", "prod", "mail"), NewJob("send", b""))
        for block in page:
            if block.label == "driver":
                reader.env |= read_exports(CodeBlock("sh", "", adapt(block.text), block.line))
            elif block.language == "sh":
                reader.follow(block)
        assert reader.terminals.keys() == {"master", "executor", "pipeline"}


def test_the_page_names_every_long_running_command() -> None:
    """A component that is added must be added to the page."""
    text = OWN_SERVERS.read_text("utf-8")
    started = {block.label for block in read_blocks(OWN_SERVERS) if block.language == "sh"}
    assert started >= COMPONENTS
    with_port = re.findall(r"^\| `(headrace [a-z ]+)` \|", _read_process_page(), re.MULTILINE)
    assert len(with_port) == len(COMPONENTS)
    for command in with_port:
        assert f"| `{command}` |" in text, command
        assert command.split()[1] in COMMANDS


def _read_process_page() -> str:
    page = (ROOT / "docs" / "reference" / "process-metrics.md").read_text("utf-8")
    return page.partition("| command | option | setting |")[2].partition("\n\n")[0]


def test_the_unit_starts_the_worker_of_the_page() -> None:
    blocks = {block.label: block.text for block in read_blocks(OWN_SERVERS) if block.language != "text"}
    unit = configparser.ConfigParser()
    unit.read_string(blocks["headrace-worker.service"])
    assert unit["Service"]["ExecStart"].endswith(f"/{blocks['worker'].strip()}")
    assert int(unit["Service"]["TimeoutStopSec"]) > 30, "longer than worker.grace"
