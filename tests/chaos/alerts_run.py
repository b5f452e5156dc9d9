"""The chaos run of alerts, in any size: `alerts.py` is its command, `test_alerts_short.py` a small one.

Queues become deep one after the other and are drained after their incident began, so that each must fire once and
resolve once. Meanwhile whichever process evaluates is killed again and again: at random moments, and in the middle of
handing over a message, before it can note that it arrived.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from headrace.alerts import records
from headrace.alerts.channels import make_channel
from headrace.alerts.rules import make_rule
from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.postgres.connect import Pool, open_pool, transaction
from headrace.postgres.migrate import migrate
from headrace.warehouse.connect import connect
from headrace.warehouse.migrate import migrate as migrate_warehouse
from tests.alerting import ENV, History, Received, Receiver, http_receiver

ROOT = Path(__file__).parents[2]
DATABASE = "headrace"
EVALUATORS = 2
READY_S = 180.0
SETTLE_S = 600.0
WINDOW_S = 5
BUCKET_MS = 5000
MIDWAY = 0.6
"""How often a message that arrives is to be the last thing that its sender did."""

SETTINGS = {
    "HEADRACE_ALERTS_EVERY": "100ms",
    "HEADRACE_ALERTS_LEASE": "1s",
    "HEADRACE_ALERTS_MAX_LAG": "1d",
    "HEADRACE_ALERTS_RETRY_INTERVAL": "50ms",
    "HEADRACE_ALERTS_MAX_RETRY_DELAY": "200ms",
    "HEADRACE_ALERTS_SEND_TIMEOUT": "5s",
    "HEADRACE_ALERTS_ALLOWED_HOSTS": "127.0.0.1",
    "HEADRACE_LOG_LEVEL": "warning",
}


@dataclass(frozen=True)
class Places:
    postgres: str
    clickhouse: str
    database: str


@dataclass(frozen=True)
class Report:
    kills: int
    killed_midway: int  # of those, between sending and noting
    takeovers: int
    queues: int
    transitions: int  # transitions that notify channels
    arrived: int  # of those, by id
    repeats: int  # deliveries that came again under the same id
    missing: int
    doubled: int  # transitions that came in two different deliveries
    invented: int  # messages without a transition
    wrong: int  # queues that did not fire once and resolve once
    seconds: float

    @property
    def holds(self) -> bool:
        return not (self.missing or self.doubled or self.invented or self.wrong) and self.transitions > 0


class Crew:
    """The evaluators. One holds the lease, and its name holds its process id."""

    def __init__(self, places: Places, pool: Pool, folder: Path) -> None:
        urls = {"HEADRACE_POSTGRES_URL": places.postgres, "HEADRACE_CLICKHOUSE_URL": places.clickhouse}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self._env = {**kept, **SETTINGS, **urls, "HEADRACE_WAREHOUSE_DATABASE": places.database}
        self._pool = pool
        self._log = (folder / "evaluators.log").open("ab")
        self._folder = folder
        self._lock = Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.kills = 0
        self.midway = 0

    def fill(self) -> None:
        with self._lock:
            while len(self._running) < EVALUATORS:
                command = [sys.executable, "-m", "headrace", "alerts", "run"]
                made = subprocess.Popen(command, env=self._env, cwd=self._folder, stdout=self._log, stderr=self._log)
                self._running[made.pid] = made

    def leader(self) -> int | None:
        with transaction(self._pool) as conn:
            rows = conn.execute("SELECT holder FROM leases WHERE until > clock_timestamp()").fetchall()
        return int(str(rows[0][0]).split(":")[1]) if rows else None

    def kill_leader(self, midway: bool = False) -> bool:
        leader = self.leader()
        with self._lock:
            found = self._running.pop(leader, None) if leader is not None else None
            if found is None:
                return False
            found.kill()
            found.wait()
            self.kills += 1
            self.midway += midway
            return True

    def end(self) -> None:
        with self._lock:
            for each in self._running.values():
                each.kill()
                each.wait()
            self._running = {}
        self._log.close()


class Run:
    def __init__(self, places: Places, kills: int, folder: Path, seed: int, loud: bool) -> None:
        self._wanted = kills
        self._chance = random.Random(seed)
        self._loud = loud
        self._pool = open_pool(places.postgres)
        self._history = History(connect(places.clickhouse, places.database))
        self._crew = Crew(places, self._pool, folder)
        self._raised: list[str] = []
        self._drained: set[str] = set()
        self._changes = 0
        self._armed = False  # the process that sends the next message is killed

    def run(self, receiver: Receiver) -> Report:
        began = time.monotonic()
        receiver.answer = self._answer
        self._prepare(receiver)
        try:
            while self._crew.kills < self._wanted:
                self._step()
            self._wait_settled()
        finally:
            self._crew.end()
        report = self._check_results(receiver, time.monotonic() - began)
        self._pool.close()
        return report

    def _prepare(self, receiver: Receiver) -> None:
        channel, _ = make_channel("channel_1", ENV, {"name": "hook", "type": "webhook", "url": receiver.url})
        given = {"name": "deep", "metric": "BACKLOG", "threshold": 100, "window_s": WINDOW_S, "cooldown_s": 0}
        rule = make_rule("rule_1", ENV, {**given, "channels": [channel.id]})
        with transaction(self._pool) as conn:
            records.put_channel(conn, channel)
            records.put_rule(conn, rule)

    def _step(self) -> None:
        """Add a deep queue, drain the queues with incidents, then kill the leader: as soon as its next message has
        arrived, or at a random moment."""
        self._crew.fill()
        self._raised.append(f"q{len(self._raised)}")
        self._wait_until(lambda: self._crew.leader() is not None, READY_S)
        before = self._crew.kills
        self._armed = self._chance.random() < MIDWAY
        self._run_step({self._raised[-1]: 500})
        patience_s = 5.0 if self._armed else self._chance.uniform(0, 1.5)
        if not self._wait_until(lambda: self._crew.kills > before, patience_s):
            self._armed = False
            self._crew.kill_leader()
        self._print_progress()

    def _answer(self, received: Received) -> int:
        """The message is here; its sender may not live to hear so."""
        if self._armed:
            self._armed = False
            self._crew.kill_leader(midway=True)
        return 200

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _run_step(self, deep: dict[str, int]) -> None:
        """History up to now, and final: what changes is put at the end of the last bucket that is over."""
        now_ms = int(time.time() * 1000)
        at_ms = now_ms // BUCKET_MS * BUCKET_MS - 1
        drained = self._list_fired() - self._drained
        self._drained |= drained
        depths = deep | dict.fromkeys(drained, 0)
        if depths:
            where: dict[str, Any] = {"org": ENV.org, "project": ENV.project, "env": ENV.env, "at_ms": at_ms}
            self._changes += 1  # distinguishes two changes in the same millisecond
            where["at_seq"] = self._changes
            self._history.add_table([{**where, "queue": queue, "depth": depth} for queue, depth in depths.items()])
        self._history.set_watermark(now_ms)

    def _list_fired(self) -> set[str]:
        with transaction(self._pool) as conn:
            return {
                each.queue for each in records.list_incidents(conn, records.ANY_ENVIRONMENT, limit=10_000) if each.org
            }

    def _wait_settled(self) -> None:
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and not self._is_settled():
            self._crew.fill()
            self._run_step({})
            time.sleep(0.2)

    def _is_settled(self) -> bool:
        with transaction(self._pool) as conn:
            [[waiting]] = conn.execute(
                "SELECT (SELECT count(*) FROM alert_outbox WHERE delivered_at IS NULL)"
                " + (SELECT count(*) FROM alert_incidents WHERE resolved_at IS NULL AND org <> '')"
            ).fetchall()
        return not waiting and len(self._list_fired()) == len(self._raised)

    def _check_results(self, receiver: Receiver, seconds: float) -> Report:
        with transaction(self._pool) as conn:
            told = {str(row[0]) for row in conn.execute("SELECT id FROM alert_transitions WHERE told").fetchall()}
            [[token]] = conn.execute("SELECT token FROM leases").fetchall()
        deliveries: dict[str, set[str]] = {}
        kinds: dict[str, Counter[str]] = {queue: Counter() for queue in self._raised}
        for each in receiver.received:
            document = each.document
            for made in document["transitions"]:
                if made["id"] not in deliveries:
                    kinds.setdefault(made["queue"], Counter())[document["kind"]] += 1
                deliveries.setdefault(made["id"], set()).add(each.headers["x-headrace-delivery"])
        distinct = {each.headers["x-headrace-delivery"] for each in receiver.received}
        return Report(
            kills=self._crew.kills,
            killed_midway=self._crew.midway,
            takeovers=int(token) - 1,
            queues=len(self._raised),
            transitions=len(told),
            arrived=len(told & deliveries.keys()),
            repeats=len(receiver.received) - len(distinct),
            missing=len(told - deliveries.keys()),
            doubled=sum(len(each) > 1 for each in deliveries.values()),
            invented=len(deliveries.keys() - told),
            wrong=sum(each != {"firing": 1, "resolved": 1} for each in kinds.values()),
            seconds=round(seconds, 1),
        )

    def _print_progress(self) -> None:
        if self._loud:
            print(f"kills {self._crew.kills}, queues {len(self._raised)}", file=sys.stderr, flush=True)


def run_alerts(places: Places, kills: int, folder: Path, seed: int = 1, loud: bool = False) -> Report:
    with http_receiver() as receiver:
        return Run(places, kills, folder, seed, loud).run(receiver)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr chaos alerts")
    parser.add_argument("--json", action="store_true", help="one line of JSON (the default, and all there is)")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as name:
        folder = Path(name)
        servers = EmbeddedPostgres(folder / "postgres", folder), EmbeddedClickHouse(folder / "clickhouse", folder)
        try:
            for server in servers:
                server.start()
            for server in servers:
                server.wait_ready(READY_S)
            places = Places(servers[0].url, servers[1].url, DATABASE)
            migrate(places.postgres, POSTGRES_SCHEMAS)
            migrate_warehouse(connect(places.clickhouse), DATABASE)
            report = run_alerts(places, given.kills, folder, given.seed, loud=True)
        finally:
            for server in servers:
                server.stop()
    print(json.dumps(asdict(report)))
    sys.exit(0 if report.holds else 1)
