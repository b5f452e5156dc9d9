"""The failover run, in any size: `failover.py` is its command, `test_failover_short.py` a small one.

Two parts, each with servers of its own. In the first, Valkey has a replica that is promoted while it is behind,
PostgreSQL is restored to an earlier state, workers are killed, and for a while there is none; the pipeline and the
alerts run beside it. In the second, Valkey is a cluster: the server of one shard goes away, nodes are killed, and slots
move.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.alerts import records
from headrace.alerts.rules import make_rule
from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.cold.tiers import Tiers
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.embedded.process import GuardedProcess
from headrace.postgres.connect import connect as connect_postgres
from headrace.postgres.migrate import migrate as migrate_postgres
from headrace.queue.client import SyncClient
from headrace.queue.state import read_states
from headrace.settings.pipeline import WarehouseSettings
from headrace.warehouse.connect import connect as connect_clickhouse
from headrace.warehouse.migrate import migrate as migrate_clickhouse
from headrace.warehouse.query_runner import QueryRunner
from tests.chaos.children import kill, read_pid, stop_all
from tests.chaos.exactly_once_parts import Pipeline
from tests.chaos.failover_judge import Report, Verdict, find_silent_zeros, judge_jobs, make_report
from tests.chaos.failover_plan import (
    ALERT_ABOVE,
    BUSY,
    CAP,
    LIMIT,
    LIMITED,
    PAUSED,
    SHARDS,
    STREAM_MAXLEN,
    first_jobs,
    kept_jobs,
    producer_file,
    read_accepted,
)
from tests.chaos.failover_producer import OPTIONS
from tests.chaos.failover_servers import (
    LossWindow,
    MovingCluster,
    ReplicatedValkey,
    RestorablePostgres,
    now_ms,
    wait_for,
)
from tests.chaos.failover_tasks import FOLDER

ROOT = Path(__file__).parents[2]
READY_S = 240.0
POLL_S = 0.05
DATABASE = WarehouseSettings.database
CALLS_BETWEEN = 30  # of producers, between two faults
REPORT_S = 30.0  # within which a server that went back is recorded

SETTINGS = {
    "HEADRACE_QUEUE_SHARDS": str(SHARDS),
    "HEADRACE_QUEUE_WARM_MAX_ITEMS": str(CAP),
    "HEADRACE_METRICS_STREAM_MAXLEN": str(STREAM_MAXLEN),
    "HEADRACE_QUEUE_LEASE": "10s",
    "HEADRACE_QUEUE_RETRY_BASE": "100ms",
    "HEADRACE_QUEUE_RETRY_MAX": "500ms",
    "HEADRACE_WORKER_HEARTBEAT": "1s",
    "HEADRACE_COLD_REFILL_EVERY": "1s",
    "HEADRACE_COLD_AUDIT_EVERY": "10s",
    "HEADRACE_ALERTS_EVERY": "5s",
}


@dataclass(frozen=True)
class Size:
    producers: int = 2
    workers: int = 3
    failovers: int = 10
    behind_s: tuple[float, float] = (0.0, 1.0)  # how far the promoted replica is behind
    restores: int = 5
    worker_kills: int = 8
    no_workers_s: float = 180.0
    shard_away_s: float = 180.0
    node_kills: int = 4
    slot_moves: int = 6
    between_s: float = 3.0  # load between two faults
    with_history: bool = True  # run the pipeline and the alerts
    settle_s: float = 300.0


SHORT = Size(
    producers=1,
    workers=2,
    failovers=2,
    restores=1,
    worker_kills=1,
    no_workers_s=2.0,
    shard_away_s=3.0,
    node_kills=1,
    slot_moves=1,
    between_s=1.0,
    with_history=False,
)


@dataclass
class Crew:
    """Headrace's processes, as its commands start them, and the producers."""

    folder: Path
    env: dict[str, str]
    children: dict[str, GuardedProcess] = field(default_factory=dict[str, GuardedProcess])
    started: Counter[str] = field(default_factory=Counter[str])

    def start(self, role: str, *command: str) -> str:
        self.started[role] += 1
        name = f"{role}-{self.started[role]}"
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        env = {"PYTHONPATH": path, FOLDER: str(self.folder), **SETTINGS, **self.env}
        child = GuardedProcess(name, [sys.executable, "-m", *command], log_file=self.folder / f"{name}.log", env=env)
        child.start()
        self.children[name] = child
        return name

    def start_worker(self) -> None:
        self.start("worker", "headrace", "worker", "tests.chaos.failover_tasks:tasks")

    def start_producers(self, count: int, valkey: str, postgres: str) -> None:
        for number in range(1, count + 1):
            self.start("producer", "tests.chaos.failover_producer", str(number), valkey, postgres, str(self.folder))

    def of(self, role: str) -> list[str]:
        return [name for name in self.children if name.startswith(f"{role}-")]

    def kill(self, name: str) -> None:
        kill(self.children.pop(name))

    def refuse_crashed(self) -> None:
        for name, child in self.children.items():
            if (code := child.exit_code()) is not None:
                raise RuntimeError(f"{name} ended by itself with {code}. The end of its log:\n{child.log_tail()}")

    def stop(self, role: str) -> None:
        stop_all([self.children.pop(name) for name in self.of(role)])

    def stop_all(self) -> None:
        for child in self.children.values():
            if child.exit_code() is None:
                os.kill(read_pid(child), signal.SIGCONT)
        stop_all(list(self.children.values()))


@dataclass
class Faults:
    """Counts the faults, and says what is being done."""

    counts: Counter[str] = field(default_factory=Counter[str])

    def note(self, kind: str, words: str = "") -> None:
        self.counts[kind] += 1
        say(f"{kind} {self.counts[kind]} {words}")


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def run_chaos(size: Size, folder: Path) -> Report:
    began = time.monotonic()
    faults = Faults()
    verdicts = [run_replicated(size, folder / "replicated", faults), run_cluster(size, folder / "cluster", faults)]
    return make_report(verdicts, faults.counts, time.monotonic() - began)


# The first part: a primary with a replica, and a PostgreSQL that goes back


@dataclass
class Replicated:
    size: Size
    folder: Path
    faults: Faults
    valkey: ReplicatedValkey
    postgres: RestorablePostgres
    crew: Crew
    client: SyncClient
    dice: random.Random = field(default_factory=random.Random)
    windows: list[LossWindow] = field(default_factory=list[LossWindow])
    unreported: list[LossWindow] = field(default_factory=list[LossWindow])

    def run(self) -> None:
        """All faults in a random order, with load between them."""
        steps: list[Callable[[], None]] = [
            *[self.fail_over] * self.size.failovers,
            *[self.restore] * self.size.restores,
            *[self.kill_worker] * self.size.worker_kills,
        ]
        self.dice.shuffle(steps)
        self.postgres.back_up()
        wait_for(lambda: count_checked_shards(self.postgres.url) == SHARDS, "movers have checked every shard once")
        for step in steps:
            self.let_run()
            step()
        self.let_run()

    def let_run(self) -> None:
        """Wait for some load, measured by what producers achieve: a slow machine has as much of it."""
        before = self.count_calls()
        wait_for(lambda: self.count_calls() >= before + CALLS_BETWEEN, "producers get on")
        time.sleep(self.size.between_s * self.dice.uniform(0.5, 1.5))

    def count_calls(self) -> int:
        """Return how many calls of producers were answered."""
        self.crew.refuse_crashed()
        files = [producer_file(self.folder, number + 1) for number in range(self.size.producers)]
        return sum(file.read_bytes().count(b"\n") for file in files if file.exists())

    def fail_over(self) -> None:
        window = self.valkey.fail_over(self.dice.uniform(*self.size.behind_s))
        self.windows.append(window)
        self.unreported.append(window)
        self.faults.note("valkey_failover", f"{window.until_ms - window.from_ms} ms")

    def restore(self) -> None:
        self.note_reports()  # they are in PostgreSQL and go back with it
        window = self.postgres.restore()
        self.windows.append(window)
        self.unreported.append(window)
        self.faults.note("postgres_restored", f"{window.until_ms - window.from_ms} ms")
        self.let_run()
        self.postgres.back_up()

    def note_reports(self, seconds: float = REPORT_S) -> None:
        """Wait a while for Headrace to record what happened in each loss window."""
        deadline = time.monotonic() + seconds
        while self.unreported and time.monotonic() < deadline:
            events = read_server_events(self.postgres.url)
            self.unreported = [
                window
                for window in self.unreported
                if not any(server == window.server and at_ms >= window.from_ms for server, at_ms in events)
            ]
            time.sleep(POLL_S)

    def kill_worker(self) -> None:
        self.crew.kill(self.dice.choice(self.crew.of("worker")))
        self.crew.start_worker()
        self.faults.note("worker_killed")

    def live_without_workers(self) -> None:
        for name in self.crew.of("worker"):
            self.crew.kill(name)
        self.faults.note("all_workers_killed", f"for {self.size.no_workers_s:g} s")
        time.sleep(self.size.no_workers_s)


def run_replicated(size: Size, folder: Path, faults: Faults) -> Verdict:
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        valkey = ReplicatedValkey(folder)
        stack.callback(valkey.stop)
        postgres = RestorablePostgres(folder)
        stack.callback(postgres.stop)
        migrate_postgres(postgres.url, POSTGRES_SCHEMAS)
        env = {"HEADRACE_REDIS_URL": valkey.url, "HEADRACE_POSTGRES_URL": postgres.url}
        tiers = Tiers(valkey.url, postgres.url, OPTIONS)
        client = stack.enter_context(SyncClient(valkey.url, OPTIONS, tiers))
        open_queues(client)
        crew = Crew(folder, env)
        pipeline = clickhouse = None
        if size.with_history:
            clickhouse = EmbeddedClickHouse(folder / "clickhouse", folder)
            clickhouse.start()
            stack.callback(clickhouse.stop)
            clickhouse.wait_ready(READY_S)
            migrate_clickhouse(connect_clickhouse(clickhouse.url), DATABASE)
            crew.env["HEADRACE_CLICKHOUSE_URL"] = clickhouse.url
            add_backlog_rules(postgres.url)
            pipeline = Pipeline(folder, valkey.url, clickhouse.url, {"HEADRACE_POSTGRES_URL": postgres.url})
            pipeline.start()
            stack.callback(pipeline.stop)
            crew.start("alerts", "headrace", "alerts", "run")
        stack.callback(crew.stop_all)
        began_ms = now_ms()
        for _ in range(size.workers):
            crew.start_worker()
        crew.start("mover", "headrace", "mover")
        crew.start_producers(size.producers, valkey.url, postgres.url)
        replicated = Replicated(size, folder, faults, valkey, postgres, crew, client)
        replicated.run()
        replicated.live_without_workers()
        missing = find_missing_alerts(postgres.url) if size.with_history else []
        for _ in range(size.workers):
            crew.start_worker()
        crew.stop("producer")
        settle(client, size.settle_s)
        say("settled; looking at what was kept")
        replicated.note_reports()
        verdict = judge_jobs(folder, size.producers, client.redis, tiers, replicated.windows, replicated.unreported)
        verdict.add("alerts_missing", missing)
        if pipeline is not None and clickhouse is not None:
            reads = QueryRunner(connect_clickhouse(clickhouse.url, DATABASE))
            wait_for(lambda: is_caught_up(reads, began_ms), "the pipeline has caught up", size.settle_s)
            verdict.add("silent_zero", find_silent_zeros(reads, read_accepted(folder, size.producers), began_ms))
        return verdict


def open_queues(client: SyncClient) -> None:
    """A queue exists with its first job, and only then can be limited or paused. The paused one has many, so that there
    is always something to move."""
    for ref, job in first_jobs():
        client.enqueue(ref, job)
    client.limits(LIMITED, LIMIT)
    client.pause(PAUSED)
    client.enqueue_many(PAUSED, kept_jobs())


def add_backlog_rules(postgres: str) -> None:
    with connect_postgres(postgres) as conn:
        for ref in BUSY:
            given = {
                "name": f"backlog of {ref.env}",
                "metric": "BACKLOG",
                "queue": ref.queue,
                "operator": ">",
                "threshold": ALERT_ABOVE,
                "window_s": 60,
                "cooldown_s": 0,  # it may have fired and resolved during an earlier fault
            }
            records.put_rule(conn, make_rule(records.generate_id("rule"), ref.environment, given))


def find_missing_alerts(postgres: str) -> list[str]:
    """Return the environments without an open backlog incident, although no worker ran for a while."""
    with connect_postgres(postgres) as conn:
        fired = {incident.env for incident in records.list_incidents(conn, records.ANY_ENVIRONMENT, is_open=True)}
    return [f"the backlog of {ref.env}" for ref in BUSY if ref.env not in fired]


def read_server_events(postgres: str) -> list[tuple[str, int]]:
    """(server, when it was noticed in ms) of every recorded event."""
    with connect_postgres(postgres) as conn:
        rows: Any = conn.execute("SELECT server, extract(epoch FROM noticed_at) * 1000 FROM server_events").fetchall()
    return [(str(server), int(at_ms)) for server, at_ms in rows]


def count_checked_shards(postgres: str) -> int:
    """Return of how many shards a mover has stored what Valkey holds. It notices no failover before that."""
    with connect_postgres(postgres) as conn:
        rows: Any = conn.execute("SELECT shard FROM valkey_servers").fetchall()
    return len(rows)


def is_caught_up(reads: QueryRunner, since_ms: int) -> bool:
    from headrace.warehouse import pipeline_batches

    watermark = pipeline_batches.read_losses(reads, since_ms, now_ms()).watermark_ms
    return watermark is not None and watermark >= now_ms() - 30_000


def settle(client: SyncClient, seconds: float) -> None:
    """Until nothing waits or runs but in the paused queue; what is left after that is stuck."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        states = [state for state in read_states(client.redis, SHARDS) if state.ref != PAUSED]
        if not any(state.depth or state.running or state.scheduled for state in states):
            return
        time.sleep(POLL_S)


# The second part: a cluster


def run_cluster(size: Size, folder: Path, faults: Faults) -> Verdict:
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        cluster = MovingCluster.start(folder)
        stack.callback(cluster.stop)
        url = cluster.cluster.url
        client = stack.enter_context(SyncClient(url, OPTIONS))
        open_queues(client)
        crew = Crew(folder, {"HEADRACE_REDIS_URL": url})
        stack.callback(crew.stop_all)
        for _ in range(size.workers):
            crew.start_worker()
        crew.start_producers(size.producers, url, "-")
        dice = random.Random()
        steps: list[Callable[[], None]] = [
            *[lambda: move_slot(cluster, dice, faults)] * size.slot_moves,
            *[lambda: lose_node(cluster, dice.randrange(SHARDS), dice.uniform(0.1, 2.0), faults)] * size.node_kills,
        ]
        dice.shuffle(steps)
        for step in steps:
            time.sleep(size.between_s * dice.uniform(0.5, 1.5))
            step()
        lose_node(cluster, 1, size.shard_away_s, faults)
        time.sleep(size.between_s)
        crew.stop("producer")
        settle(client, size.settle_s)
        return judge_jobs(folder, size.producers, client.redis, None)


def move_slot(cluster: MovingCluster, dice: random.Random, faults: Faults) -> None:
    moved = cluster.move_shard(dice.randrange(SHARDS))
    faults.note("slot_moved", f"{moved} keys")


def lose_node(cluster: MovingCluster, shard: int, seconds: float, faults: Faults) -> None:
    """The server of a shard is killed and comes back with its files."""
    number = cluster.find_node_number(shard)
    cluster.kill(number)
    time.sleep(seconds)
    cluster.restart(number)
    faults.note("shard_away", f"shard {shard} for {seconds:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr chaos failover")
    parser.add_argument("--json", action="store_true", help="one line of JSON (the default, and all there is)")
    parser.add_argument("--short", action="store_true", help="the small run that is part of the tests")
    parser.add_argument("--keep", type=Path, help="a folder for logs and notes; else they are thrown away")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as folder:
        where = (given.keep or Path(folder)).resolve()
        where.mkdir(parents=True, exist_ok=True)
        report = run_chaos(SHORT if given.short else Size(), where)
    print(json.dumps(asdict(report)))
    sys.exit(0 if report.holds else 1)
