"""The chaos run of the pipeline, in any size: `exactly_once.py` is its command, `test_exactly_once_short.py` a small
run."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.maintenance_owner import own_maintenance

from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.embedded.process import GuardedProcess, choose_port
from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.event import Op
from headrace.queue.client import SyncClient
from headrace.queue.state import read_states
from headrace.settings.pipeline import WarehouseSettings
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool
from headrace.valkey.connect import Valkey
from headrace.warehouse.connect import connect
from headrace.warehouse.migrate import migrate
from tests.chaos.exactly_once_crew import OPTIONS, SHARDS, open_queues
from tests.chaos.exactly_once_judge import (
    Counted,
    Report,
    count,
    count_events,
    optimize,
    stream_length,
)
from tests.chaos.exactly_once_parts import READY_S, Pipeline, Warehouse, lose_newest

ROOT = Path(__file__).parents[2]
DATABASE = WarehouseSettings.database
POLL_S = 0.02
LOOK_EVERY_S = 0.25
FIRST_BATCH_S = 300.0
DRAIN_S = 60.0  # time for the worker to finish at the end

PIPELINE, CLICKHOUSE, CONNECTIONS = "pipeline", "clickhouse", "connections"


@dataclass(frozen=True)
class Size:
    seconds: float = 200.0
    producers: int = 2
    least_pipeline: int = 6  # minimum kills; the run continues until they are done
    least_others: int = 7  # minimum kills of ClickHouse, and cuts of connections
    longest_s: float = 400.0
    pipeline_lives_s: tuple[float, float] = (0.0, 6.0)  # after its first batch
    java_alone_every: int = 3  # every third kill of the pipeline kills Java only; the first ones kill everything
    clickhouse_every_s: tuple[float, float] = (8.0, 20.0)
    clickhouse_down_s: tuple[float, float] = (0.2, 4.0)
    connections_every_s: tuple[float, float] = (5.0, 18.0)
    losses: tuple[int, ...] = (1, 3)  # batches that the checkpoint loses at the first and second kill
    settle_s: float = 300.0
    workers: int = 4  # of the exporter


SHORT = Size(
    seconds=5.0,
    producers=1,
    least_pipeline=1,
    least_others=2,
    longest_s=400.0,
    pipeline_lives_s=(0.0, 0.5),
    clickhouse_every_s=(1.0, 3.0),
    clickhouse_down_s=(0.2, 1.0),
    connections_every_s=(1.0, 3.0),
    losses=(1,),
    settle_s=300.0,
)


@dataclass
class Crew:
    """Producers and a worker."""

    folder: Path
    url: str
    members: dict[str, list[GuardedProcess]] = field(default_factory=dict[str, list[GuardedProcess]])

    def start(self, role: str) -> None:
        team = self.members.setdefault(role, [])
        command = [sys.executable, "-m", "tests.chaos.exactly_once_crew", role, self.url]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        log_file = self.folder / f"{role}-{len(team) + 1}.log"
        team.append(GuardedProcess(role, command, log_file=log_file, env={"PYTHONPATH": path}))
        team[-1].start()

    def refuse_dead(self) -> None:
        for team in self.members.values():
            for child in team:
                if (code := child.exit_code()) is not None:
                    raise RuntimeError(f"A {child.name} ended by itself with {code}. Its log:\n{child.log_tail()}")

    def stop(self, role: str) -> None:
        for child in self.members.pop(role, []):
            child.stop()

    def stop_all(self) -> None:
        for role in list(self.members):
            self.stop(role)


@dataclass
class Chaos:
    size: Size
    valkey: Valkey
    crew: Crew
    pipeline: Pipeline
    warehouse: Warehouse
    dice: random.Random
    kills: Counter[str] = field(default_factory=Counter[str])
    connections_cut: int = 0
    files_lost: int = 0
    losses: list[int] = field(default_factory=list[int])
    longest_stream: int = 0

    def run(self) -> None:
        """Run until the time is over and enough processes were killed; the last pipeline has then finished a batch."""
        began = time.monotonic()
        self.losses = list(self.size.losses)
        next_warehouse, next_cut = self._soon(self.size.clickhouse_every_s), self._soon(self.size.connections_every_s)
        next_pipeline: float | None = None  # when it may be killed, after its first batch
        while not self._done(time.monotonic() - began):
            self.crew.refuse_dead()
            self.warehouse.turn()
            now = time.monotonic()
            if now >= next_cut:
                self._cut()
                next_cut = self._soon(self.size.connections_every_s)
            if now >= next_warehouse and self.warehouse.back_at is None:
                self._during_a_batch()
                self.warehouse.kill(self.dice.uniform(*self.size.clickhouse_down_s))
                self.kills[CLICKHOUSE] += 1
                next_warehouse = self._soon(self.size.clickhouse_every_s)
            if next_pipeline is None and self.pipeline.batches_of_this_life() >= self._batches_before_a_kill():
                next_pipeline = self._soon(self.size.pipeline_lives_s)
            if next_pipeline is not None and now >= next_pipeline:
                self._kill_pipeline()
                next_pipeline = None
            self.longest_stream = max(self.longest_stream, stream_length(self.valkey))
            time.sleep(LOOK_EVERY_S)
        self.warehouse.come_back()
        self.wait_for_a_batch()

    def wait_for_a_batch(self) -> None:
        if not wait_for(lambda: self.pipeline.batches_of_this_life() > 0, FIRST_BATCH_S):
            raise RuntimeError("The pipeline made no batch; see its log.")

    def _done(self, passed: float) -> bool:
        others = min(self.kills[CLICKHOUSE], self.kills[CONNECTIONS])
        enough = self.kills[PIPELINE] >= self.size.least_pipeline and others >= self.size.least_others
        return passed >= (self.size.seconds if enough else self.size.longest_s)

    def _soon(self, bounds: tuple[float, float]) -> float:
        return time.monotonic() + self.dice.uniform(*bounds)

    def _kill_pipeline(self) -> None:
        self._during_a_batch()
        if self.kills[PIPELINE] % self.size.java_alone_every == self.size.java_alone_every - 1:
            self.pipeline.kill_java()
        else:
            self.pipeline.kill()
        self.kills[PIPELINE] += 1
        if self.losses:
            self.files_lost += lose_newest(self.pipeline.checkpoint, self.losses.pop(0))
        self.pipeline.start()

    def _batches_before_a_kill(self) -> int:
        """Return enough batches for a checkpoint to lose some and still have one."""
        return self.losses[0] + 2 if self.losses else 1

    def _during_a_batch(self) -> None:
        """Wait for a critical moment: a batch has just been stored in the spool, Spark has not recorded it as done, and
        its rows are being sent to ClickHouse."""
        before, deadline = self.pipeline.batches_of_this_life(), time.monotonic() + 2.0
        while time.monotonic() < deadline and self.pipeline.batches_of_this_life() == before:
            time.sleep(POLL_S)
        time.sleep(self.dice.uniform(0.0, 0.15))

    def _cut(self) -> None:
        """Cut every connection but our own, repeatedly while clients reconnect."""
        for _ in range(self.dice.randint(1, 4)):
            self.connections_cut += self.valkey.client_kill_filter(_type="normal", skipme=True)
            time.sleep(self.dice.uniform(0.0, 0.1))
        self.kills[CONNECTIONS] += 1


@dataclass
class Run:
    """The servers, their clients, and the final counts of both sides."""

    size: Size
    client: SyncClient
    crew: Crew
    chaos: Chaos
    url: str  # URL of ClickHouse
    began: float

    def start(self) -> None:
        """Start the pipeline first: while it starts there is nothing to disturb."""
        open_queues(self.client)
        self.chaos.pipeline.start()
        self.chaos.wait_for_a_batch()
        for _ in range(self.size.producers):
            self.crew.start("producer")
        self.crew.start("worker")

    def counted(self) -> Counted:
        return count(self.client.redis, connect(self.url, DATABASE))

    def finish(self, away_s: float = 0.0, events_while_away: int = 0) -> Report:
        """Stop producing events, wait until all are in history, count, merge the tables and count again."""
        self.crew.stop("producer")
        wait_for(self._idle, DRAIN_S)
        self.crew.stop("worker")
        own_maintenance(self.client.redis, SHARDS)  # prevents a tick of the pipeline after its last batch
        wait_for(lambda: self.counted().agrees, self.size.settle_s)
        self.chaos.pipeline.stop()
        before = self.counted()
        optimize(connect(self.url, DATABASE))
        after = self.counted()
        odometers = before.reconciled.odometers
        return Report(
            jobs=odometers[Op.ENQUEUE],
            events=before.events,
            batches=self.chaos.pipeline.batches,
            kills=sum(self.chaos.kills.values()),
            kills_by_kind=dict(self.chaos.kills),
            connections_cut=self.chaos.connections_cut,
            checkpoint_files_removed=self.chaos.files_lost,
            seconds=round(time.monotonic() - self.began, 1),
            difference=before.reconciled.difference,
            difference_after_optimize=after.reconciled.difference,
            environment_difference=before.environments + after.environments,
            events_missing=before.events - before.events_in_batches,
            lost_events=before.lost_events,
            left_in_spool=count_records(self.chaos.pipeline.spool),
            max_stream_length=self.chaos.longest_stream,
            verbs={op: number for op, number in odometers.items() if number},
            clickhouse_away_s=away_s,
            events_while_away=events_while_away,
            details=before.details or after.details,
        )

    def _idle(self) -> bool:
        """Return True if no job waits, including scheduled ones, which stay scheduled without maintenance."""
        states = read_states(self.client.redis, SHARDS)
        return not any(state.depth or state.running or state.scheduled for state in states)


def run_chaos(size: Size, folder: Path) -> Report:
    with started(size, folder) as run:
        run.chaos.run()
        return run.finish()


def run_away(size: Size, folder: Path, away_s: float) -> Report:
    """Run with ClickHouse unavailable for a long time under load, and no other faults."""
    with started(size, folder) as run:
        chaos = run.chaos
        before = sum(count_events(chaos.valkey))
        chaos.warehouse.kill(away_s)
        chaos.kills[CLICKHOUSE] += 1
        back_at = time.monotonic() + away_s
        while time.monotonic() < back_at:
            run.crew.refuse_dead()
            chaos.longest_stream = max(chaos.longest_stream, stream_length(chaos.valkey))
            time.sleep(LOOK_EVERY_S)
        while_away = sum(count_events(chaos.valkey)) - before
        chaos.warehouse.come_back()
        return run.finish(away_s, while_away)


@contextmanager
def started(size: Size, folder: Path) -> Generator[Run]:
    """Start everything; ClickHouse keeps its port across restarts."""
    began = time.monotonic()
    valkey = EmbeddedValkey(folder / "valkey", folder)
    clickhouse = EmbeddedClickHouse(folder / "clickhouse", folder, choose_port("clickhouse", 0))
    with ExitStack() as stack:
        for server in (valkey, clickhouse):
            stack.callback(server.stop)
            server.start()
            server.wait_ready(READY_S)
        migrate(connect(clickhouse.url), DATABASE)
        client = stack.enter_context(SyncClient(valkey.url, OPTIONS))
        crew = Crew(folder, valkey.url)
        stack.callback(crew.stop_all)
        pipeline = Pipeline(folder, valkey.url, clickhouse.url, {"HEADRACE_SPOOL_WORKERS": str(size.workers)})
        stack.callback(pipeline.stop)
        chaos = Chaos(size, client.redis, crew, pipeline, Warehouse(clickhouse), random.Random())
        run = Run(size, client, crew, chaos, clickhouse.url, began)
        run.start()
        yield run


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(LOOK_EVERY_S)
    return False


def count_records(spool: Path) -> int:
    with Spool.open(SpoolOptions(spool)) as opened:
        return opened.stats().size


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr chaos exactly-once")
    parser.add_argument("--json", action="store_true", help="one line of JSON (the default, and all there is)")
    parser.add_argument("--seconds", type=float, default=Size.seconds, help="how long jobs come and processes die")
    parser.add_argument(
        "--clickhouse-away", type=float, metavar="SECONDS", help="instead: ClickHouse goes once, for so long"
    )
    parser.add_argument("--workers", type=int, default=Size.workers, help="workers of the exporter (default 4)")
    parser.add_argument("--keep", type=Path, help="a folder for logs and data; else they are thrown away")
    given = parser.parse_args()
    size = Size(seconds=given.seconds, longest_s=2 * given.seconds, workers=given.workers)
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as folder:
        where = (given.keep or Path(folder)).resolve()
        where.mkdir(parents=True, exist_ok=True)
        away: float | None = given.clickhouse_away
        report = run_chaos(size, where) if away is None else run_away(size, where, away)
    print(json.dumps(asdict(report)))
    sys.exit(0 if report.holds else 1)
