"""The chaos run of the two tiers, in any size: `tiers.py` is its command, `test_tiers_short.py` a small one."""

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
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.cold.mover import LOOK_AHEAD_MS
from headrace.cold.tiers import Tiers
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import GuardedProcess, choose_port
from headrace.embedded.valkey import EmbeddedValkey
from headrace.errors import EmbeddedError
from headrace.model.event import Op
from headrace.model.job import NewJob
from headrace.postgres.migrate import migrate
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey
from tests.chaos.children import read_pid, stop_all
from tests.chaos.tiers_judge import Evidence, Report, judge
from tests.chaos.tiers_notes import ready_file
from tests.chaos.tiers_plan import FAR_MS, MANY, NARROW, NARROW_BYTES, QUEUES, SHARDS, TINY, TINY_CAP, Places

ROOT = Path(__file__).parents[2]
READY_S = 180.0
POLL_S = 0.05
DEAD_LEASE_MS = 200
GRACE_S = 240.0  # for producers to get their last replies, and for the others to finish


@dataclass(frozen=True)
class Size:
    seconds: float = 120.0
    least_kills: int = 3  # the run goes on until they are done, PostgreSQL was away and some job had to wait in it
    longest_s: float = 400.0
    producers: int = 3
    workers: int = 3
    cap: int = 100
    kill_every_s: float = 0.7
    postgres_every_s: float = 12.0  # between two times that PostgreSQL goes away
    postgres_down_s: tuple[float, float] = (0.5, 4.0)
    pause_every_s: float = 30.0  # between two times that a mover is paused, for longer than its lease
    pause_s: float = 17.0
    mover_every_s: float = 5.0
    wait_for_lease: float = 0.5  # how often a dead mover's lease takes its time; else its end is brought forward
    settle_s: float = 300.0


SHORT = Size(
    seconds=5.0,
    producers=2,
    workers=2,
    cap=50,
    kill_every_s=0.8,
    postgres_every_s=2.0,
    postgres_down_s=(0.2, 0.6),
    pause_every_s=1e9,
    mover_every_s=1.0,
    wait_for_lease=0.0,
)


@dataclass
class Crew:
    """Processes by role. Producers keep their names when they come back, and with them their notes."""

    places: Places
    members: dict[str, GuardedProcess] = field(default_factory=dict[str, GuardedProcess])
    started: Counter[str] = field(default_factory=Counter[str])
    kills: Counter[str] = field(default_factory=Counter[str])
    killed: set[str] = field(default_factory=set[str])
    crashed: list[str] = field(default_factory=list[str])

    def start(self, role: str, name: str | None = None) -> None:
        self.started[role] += 1
        name = name or f"{role}-{self.started[role]}"
        at = self.places
        where = (at.valkey, at.postgres, at.folder, at.mover_every_s, at.cap)
        command = [sys.executable, "-m", "tests.chaos.tiers_crew", role, name, *map(str, where)]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        child = GuardedProcess(name, command, log_file=self.places.folder / f"{name}.log", env={"PYTHONPATH": path})
        ready_file(self.places.folder, name).unlink(missing_ok=True)
        child.start()
        self.members[name] = child

    def of(self, role: str) -> list[str]:
        return sorted(name for name in self.members if name.startswith(f"{role}-"))

    def kill(self, name: str) -> None:
        role = name.partition("-")[0]
        if code := self.members[name].exit_code():
            self._note_crash(name, code)
        else:
            self.signal(name, signal.SIGKILL)
            self.kills[role] += 1
            self.killed.add(name)
        self.members.pop(name).stop()  # its guard leaves too
        self.start(role, name if role == "producer" else None)

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(read_pid(self.members[name]), number)

    def stop(self, role: str, grace_s: float = GRACE_S) -> None:
        self.wait_ready()
        names = self.of(role)
        for name in names:
            self.members[name].request_stop()
        deadline = time.monotonic() + grace_s
        for name in names:
            child = self.members.pop(name)
            while child.exit_code() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            self._note_crash(name, child.stop())  # to ask twice is to insist

    def wait_ready(self) -> None:
        """One that has hardly begun would not listen yet."""
        deadline = time.monotonic() + READY_S
        for name, child in self.members.items():
            while not ready_file(self.places.folder, name).exists() and child.exit_code() is None:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name} does not get ready. Its log:\n{child.log_tail()}")
                time.sleep(0.01)

    def _note_crash(self, name: str, code: int | None) -> None:
        if code:
            self.crashed.append(f"{name} ended by itself with {code}")

    def stop_all(self) -> None:
        stop_all([*self.members.values()])


@dataclass
class Database:
    """PostgreSQL that goes away, hard or in order, and comes back."""

    server: EmbeddedPostgres
    dice: random.Random
    down_s: tuple[float, float]
    back_at: float | None = None
    stops: Counter[str] = field(default_factory=Counter[str])

    def go_away(self) -> None:
        hard = sum(self.stops.values()) % 2 == 0
        if hard:
            os.kill(self.server.child.pid, signal.SIGKILL)
        self.server.stop()
        self.stops["postgres_kill" if hard else "postgres_stop"] += 1
        self.back_at = time.monotonic() + self.dice.uniform(*self.down_s)

    def come_back(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:  # what a killed server leaves behind needs a moment to go
            try:
                self.server.start()
                self.server.wait_ready(READY_S)
                break
            except EmbeddedError:
                self.server.stop()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        self.back_at = None

    def turn(self) -> None:
        if self.back_at is not None and time.monotonic() >= self.back_at:
            self.come_back()


@dataclass
class Chaos:
    size: Size
    crew: Crew
    database: Database
    valkey: Valkey
    dice: random.Random
    paused: dict[str, float] = field(default_factory=dict[str, float])  # mover → when it goes on

    def run(self) -> None:
        now = began = time.monotonic()
        next_kill, next_stop = now + self.size.kill_every_s, now + self.size.postgres_every_s
        next_pause = now + self.size.pause_every_s
        while (now := time.monotonic()) < began + self.size.seconds or not self._enough(now - began):
            self.database.turn()
            self._go_on(now)
            if now >= next_kill:
                self._kill_one()
                next_kill = time.monotonic() + self.size.kill_every_s * self.dice.uniform(0.5, 1.5)
            if now >= next_stop and self.database.back_at is None:
                self.database.go_away()
                next_stop = time.monotonic() + self.size.postgres_every_s * self.dice.uniform(0.7, 1.3)
            if now >= next_pause:
                self._pause_leader(now)
                next_pause = now + self.size.pause_every_s
            time.sleep(POLL_S)
        self._go_on(float("inf"))
        if self.database.back_at is not None:
            self.database.come_back()

    def _enough(self, passed_s: float) -> bool:
        killed = self.crew.kills.total() >= self.size.least_kills and self.database.stops
        spilled = any(state.odometers.get(Op.SPILL) for state in read_states(self.valkey, SHARDS))
        return passed_s > self.size.longest_s or bool(killed and spilled)

    def _kill_one(self) -> None:
        role = self.dice.choices(("producer", "worker", "mover"), (4, 4, 2))[0]
        name = self.dice.choice(self.crew.of(role))
        self.paused.pop(name, None)
        self.crew.kill(name)
        if role == "mover" and self.dice.random() >= self.size.wait_for_lease:
            for shard in range(SHARDS):
                if self.valkey.get(keys.mover(shard)) == name.encode():
                    self.valkey.pexpire(keys.mover(shard), DEAD_LEASE_MS)

    def _pause_leader(self, now: float) -> None:
        leader = self.valkey.get(keys.mover(0))
        name = leader.decode() if isinstance(leader, bytes) else ""
        if name in self.crew.members:
            self.crew.signal(name, signal.SIGSTOP)
            self.crew.kills["mover_pause"] += 1
            self.paused[name] = now + self.size.pause_s

    def _go_on(self, now: float) -> None:
        for name in [name for name, at in self.paused.items() if now >= at]:
            del self.paused[name]
            self.crew.signal(name, signal.SIGCONT)


def run_chaos(size: Size, folder: Path) -> Report:
    began = time.monotonic()
    dice = random.Random()
    with ExitStack() as stack:
        valkey, postgres = stack.enter_context(started_servers(folder))
        places = Places(valkey.url, postgres.url, folder, size.mover_every_s, size.cap)
        migrate(places.postgres, POSTGRES_SCHEMAS)
        tiers = Tiers(places.valkey, places.postgres, places.options, far_ms=FAR_MS)
        client = stack.enter_context(SyncClient(places.valkey, places.options, tiers))
        first = open_queues(client)
        crew = Crew(places)
        stack.callback(crew.stop_all)
        for role, count in (("sampler", 1), ("producer", size.producers), ("worker", size.workers), ("mover", 2)):
            for _ in range(count):
                crew.start(role)
        crew.wait_ready()
        database = Database(postgres, dice, size.postgres_down_s)
        Chaos(size, crew, database, client.redis, dice).run()
        crew.stop("producer", GRACE_S)
        settled = settle(client, tiers, size.settle_s)
        for role in ("mover", "worker", "sampler"):
            crew.stop(role)
        evidence = Evidence(
            places=places,
            first=first,
            producers=size.producers,
            workers=[f"worker-{number + 1}" for number in range(crew.started["worker"])],
            killed=crew.killed,
            kills={**crew.kills, **database.stops},
            crashed=crew.crashed,
            settled=settled,
        )
        return judge(evidence, client, tiers, time.monotonic() - began)


@contextmanager
def started_servers(folder: Path) -> Generator[tuple[EmbeddedValkey, EmbeddedPostgres]]:
    """PostgreSQL keeps its port when it comes back."""
    valkey = EmbeddedValkey(folder / "valkey", folder)
    postgres = EmbeddedPostgres(folder / "postgres", folder, choose_port("postgres", 0))
    try:
        for server in (valkey, postgres):
            server.start()
            server.wait_ready(READY_S)
        yield valkey, postgres
    finally:
        postgres.stop()
        valkey.stop()


def open_queues(client: SyncClient) -> list[str]:
    """A queue exists with its first job, and only then can have a cap of its own. Returns the jobs' ids."""
    for number, ref in enumerate(QUEUES):
        assert client.enqueue(ref, NewJob("fine", id=f"first-{number}", max_attempts=MANY))
    client.caps(TINY, TINY_CAP, None)
    client.caps(NARROW, None, NARROW_BYTES)
    return [f"first-{number}" for number in range(len(QUEUES))]


def settle(client: SyncClient, tiers: Tiers, seconds: float) -> bool:
    """Until nothing waits but what is not due for long, and every queue has left cold mode."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_settled(client, tiers):
            return True
        time.sleep(POLL_S)
    return False


def is_settled(client: SyncClient, tiers: Tiers) -> bool:
    states = read_states(client.redis, SHARDS)
    if any(state.depth or state.running or state.cold_mode for state in states):
        return False
    if any(client.redis.zcard(keys.scheduled(shard)) for shard in range(SHARDS)):
        return False
    now_ms = time.time() * 1000
    return not any(tiers.store.list_queues_with_work(shard, now_ms, now_ms + LOOK_AHEAD_MS) for shard in range(SHARDS))


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr chaos tiers")
    parser.add_argument("--json", action="store_true", help="one line of JSON (the default, and all there is)")
    parser.add_argument("--seconds", type=float, default=Size.seconds, help="how long jobs come and processes die")
    parser.add_argument("--keep", type=Path, help="a folder for logs and notes; else they are thrown away")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as folder:
        where = given.keep or Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        report = run_chaos(Size(seconds=given.seconds), where.resolve())
    print(json.dumps(asdict(report)))
    sys.exit(0 if report.holds else 1)
