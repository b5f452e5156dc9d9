"""The pipeline on a real Spark cluster: a master and two workers, whose executors are killed during a run."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
import pytest

from headrace.embedded.java import find_java
from headrace.embedded.process import LOOPBACK, GuardedProcess
from headrace.queue.client import SyncClient
from headrace.valkey.connect import Valkey
from headrace.warehouse.connect import Client
from tests.chaos.exactly_once_crew import OPTIONS, open_queues
from tests.chaos.exactly_once_judge import Counted, count
from tests.chaos.exactly_once_parts import Pipeline
from tests.chaos.exactly_once_run import Crew
from tests.conftest import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKERS = 2
KILLS = 2
START_S = 600.0
BATCH_S = 600.0

DEFAULTS = """\
spark.executor.memory 512m
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""


@dataclass(frozen=True)
class Cluster:
    """Spark's own standalone cluster, from the wheel, on this machine."""

    url: str
    env: Mapping[str, str]
    workers: Sequence[GuardedProcess]

    def executors(self) -> list[psutil.Process]:
        """Return the running executors of this cluster's workers."""
        found: list[psutil.Process] = []
        for worker in self.workers:
            for process in psutil.Process(worker.pid).children(recursive=True):
                try:
                    if any(EXECUTOR in word for word in process.cmdline()):
                        found.append(process)
                except psutil.Error:  # the process has just ended
                    pass
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    java = find_java(tmp_path, None, os.environ)
    folder = tmp_path / "cluster"
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (conf / "spark-defaults.conf").write_text(DEFAULTS)
    env = {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": LOOPBACK,
    }
    with ExitStack() as stack:

        def started(name: str, *arguments: str) -> GuardedProcess:
            command = [str(SPARK_HOME / "bin" / "spark-class"), *arguments]
            child = GuardedProcess(name, command, log_file=folder / f"{name}.log", env=env)
            stack.callback(child.stop)
            child.start()
            return child

        place = ("--host", LOOPBACK, "--webui-port", "0")
        master = started("master", f"{DEPLOY}.master.Master", *place, "--port", "0")
        url: str = wait_until(lambda: master_url(master), "the master listens", START_S)
        size = ("--cores", "1", "--memory", "512m", "--work-dir", str(folder / "work"))
        workers = [
            started(f"worker-{number}", f"{DEPLOY}.worker.Worker", *place, *size, url) for number in range(WORKERS)
        ]
        yield Cluster(url, env, workers)


def master_url(master: GuardedProcess) -> str | None:
    """Return the address that the master logs: a chosen port may be taken before it starts."""
    found = re.search(rf"Starting Spark master at (spark://{LOOPBACK}:\d+)", master.log_file.read_text("utf-8"))
    return found and found[1]


@pytest.mark.slow
def test_executors_that_are_killed_lose_nothing_and_count_nothing_twice(
    cluster: Cluster, valkey: Valkey, valkey_url: str, clickhouse_url: str, warehouse: Client, tmp_path: Path
) -> None:
    where = {"HEADRACE_PIPELINE_MASTER": cluster.url, "HEADRACE_WAREHOUSE_DATABASE": str(warehouse.database)}
    pipeline = Pipeline(tmp_path, valkey_url, clickhouse_url, {**cluster.env, **where})
    crew = Crew(tmp_path, valkey_url)
    killed: set[int] = set()
    with ExitStack() as stack, SyncClient(valkey_url, OPTIONS) as client:
        stack.callback(pipeline.stop)
        stack.callback(crew.stop_all)
        open_queues(client)
        pipeline.start()
        crew.start("worker")
        crew.start("producer")
        for _ in range(KILLS):
            wait_for_batches(pipeline, 2)
            killed.add(kill_an_executor(cluster))
        wait_for_batches(pipeline, 2)
        crew.stop_all()

        def agrees() -> Counted | None:
            found = count(valkey, warehouse)
            return found if found.agrees else None

        found: Counted = wait_until(agrees, "history agrees with the queues", BATCH_S)
    assert found.lost_events == 0
    assert found.reconciled.tiers["1h"] == found.reconciled.odometers
    assert len(killed) == KILLS


def wait_for_batches(pipeline: Pipeline, more: int) -> None:
    wanted = pipeline.batches_of_this_life() + more
    wait_until(lambda: pipeline.batches_of_this_life() >= wanted, f"{more} batches more", BATCH_S)


def kill_an_executor(cluster: Cluster) -> int:
    """Kill an executor once there are as many as workers, so killed ones have been replaced."""

    def whole() -> list[psutil.Process] | None:
        found = cluster.executors()
        return found if len(found) == WORKERS else None

    victim: psutil.Process = wait_until(whole, "every worker has an executor", START_S)[0]
    os.kill(victim.pid, signal.SIGKILL)
    return victim.pid
