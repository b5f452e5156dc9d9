"""The backlog run, in any size: `backlog.py` is its command, `test_backlog_short.py` a small one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.cold.audit import Drift
from headrace.cold.tiers import Tiers
from headrace.embedded.process import GuardedProcess
from headrace.model.event import Op
from headrace.postgres.migrate import migrate
from headrace.queue.client import SyncClient
from headrace.queue.state import QueueState, read_states
from tests.audits import run_audit
from tests.chaos.backlog_crew import REF, SHARD, SHARDS, Places
from tests.chaos.children import STOP_S, stop_all
from tests.chaos.tiers_run import ROOT, started_servers

PRODUCERS = 2
POLL_S = 0.1
SAY_EVERY_S = 5.0
LEAVE_S = 240.0  # for the queue to leave cold mode when all is done
TOTALS = "SELECT spilled, refilled, waiting, delayed, expired, quarantined FROM cold_queues"


@dataclass(frozen=True)
class Report:
    jobs: int
    done: int
    cap: int
    max_held: int
    samples: int
    out_of_order: int
    difference: int  # between producers, consumer, events, Valkey's odometers and PostgreSQL's counters
    drift: int
    cold_mode: bool  # at the end
    spilled: int
    refilled: int
    events: int
    seconds: float
    spill_per_s: float  # accepted per second while the backlog grew
    process_per_s: float  # done per second by the fast worker, refills included
    peak_used_memory: int
    details: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        wrong = self.out_of_order or self.difference or self.drift or self.cold_mode
        return not wrong and self.done == self.jobs and self.max_held <= self.cap


class Crew:
    def __init__(self, places: Places) -> None:
        self._places = places
        self._children: dict[tuple[str, int], GuardedProcess] = {}

    def start(self, role: str, number: int = 0) -> GuardedProcess:
        command = [
            sys.executable,
            "-m",
            "tests.chaos.backlog_crew",
            role,
            str(number),
            json.dumps(asdict(self._places)),
        ]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        log_file = Path(self._places.folder) / f"{role}-{number}.log"
        child = GuardedProcess(role, command, log_file=log_file, env={"PYTHONPATH": path})
        child.start()
        self._children[role, number] = child
        return child

    def stop(self, role: str) -> None:
        for (other, _), child in self._children.items():
            if other == role:
                child.stop(STOP_S)

    def stop_all(self) -> None:
        stop_all([*self._children.values()])

    def result(self, role: str, number: int = 0) -> Any:
        return json.loads((Path(self._places.folder) / f"{role}-{number}.json").read_text())


@dataclass
class Progress:
    """Print a line of progress now and then."""

    client: SyncClient
    loud: bool
    began: float = field(default_factory=time.monotonic)
    next_s: float = 0.0

    def wait_for(self, children: Sequence[GuardedProcess], what: str) -> None:
        while any(child.exit_code() is None for child in children):
            if self.loud and (passed := time.monotonic() - self.began) >= self.next_s:
                self.next_s = passed + SAY_EVERY_S
                print(f"{passed:5.0f} s  {what}: {self._numbers()}", file=sys.stderr, flush=True)
            time.sleep(POLL_S)

    def _numbers(self) -> str:
        state = state_of(self.client)
        if state is None:
            return "not begun"
        done = state.odometers.get(Op.ACK, 0)
        return f"{state.warm:,} wait in Valkey, {state.cold:,} in PostgreSQL, {done:,} are done"


def run_backlog(jobs: int, cap: int, folder: Path, *, loud: bool = False) -> Report:
    with ExitStack() as stack:
        valkey, postgres = stack.enter_context(started_servers(folder))
        places = Places(valkey.url, f"{postgres.url}?connect_timeout=60", str(folder), jobs, cap, PRODUCERS)
        migrate(places.postgres, POSTGRES_SCHEMAS)
        tiers = Tiers(places.valkey, places.postgres, places.options)
        client = stack.enter_context(SyncClient(places.valkey, places.options, tiers))
        began = time.monotonic()
        crew = Crew(places)
        stack.callback(crew.stop_all)
        for role in ("sampler", "fold", "mover"):
            crew.start(role)
        consumer = crew.start("consumer")
        progress = Progress(client, loud)
        progress.wait_for([crew.start("producer", number) for number in range(PRODUCERS)], "jobs come")
        places.fast.touch()
        progress.wait_for([consumer], "jobs are done")
        wait_until_warm(client)
        seconds = time.monotonic() - began
        crew.stop("mover")
        drift = run_audit(tiers, SHARD)
        for role in ("fold", "sampler"):
            crew.stop(role)
        return judge(places, crew, client, tiers, drift, seconds)


def wait_until_warm(client: SyncClient) -> None:
    deadline = time.monotonic() + LEAVE_S
    while (state := state_of(client)) and state.cold_mode and time.monotonic() < deadline:
        time.sleep(POLL_S)


def state_of(client: SyncClient) -> QueueState | None:
    return next((state for state in read_states(client.redis, SHARDS) if state.ref == REF), None)


def judge(places: Places, crew: Crew, client: SyncClient, tiers: Tiers, drift: Drift, seconds: float) -> Report:
    consumer, sampler, folded = crew.result("consumer"), crew.result("sampler"), crew.result("fold")
    producers = [crew.result("producer", number) for number in range(PRODUCERS)]
    state = state_of(client)
    assert state is not None
    with tiers.store.transaction() as conn:
        totals: Any = conn.execute(TOTALS).fetchone()
    spilled, refilled, *left = totals or (0, 0)
    own = state.odometers
    off = {
        "accepted, by producers": sum(one["accepted"] for one in producers) - places.jobs,
        "enqueue": own.get(Op.ENQUEUE, 0) - places.jobs,
        "done, by the consumer": consumer["done"] - places.jobs,
        "leases lost": consumer["lost_leases"],
        "dequeue": own.get(Op.DEQUEUE, 0) - places.jobs,
        "ack": own.get(Op.ACK, 0) - places.jobs,
        "spill": own.get(Op.SPILL, 0) - spilled,
        "refill": own.get(Op.REFILL, 0) - refilled,
        "spilled − refilled": spilled - refilled,
        "left in PostgreSQL": sum(left),
        "left in Valkey": state.depth + state.scheduled + state.running + state.bytes,
        "events, against odometers": sum(
            abs(folded["counts"].get(op, 0) - own.get(op, 0)) for op in own.keys() | folded["counts"].keys()
        ),
        "events that are missing or wrong": folded["broken"],
        "gauges of the last event": sum(map(abs, folded["last"].values())),
    }
    return Report(
        jobs=places.jobs,
        done=consumer["done"],
        cap=places.cap,
        max_held=sampler["max_held"],
        samples=sampler["samples"],
        out_of_order=consumer["out_of_order"],
        difference=sum(map(abs, off.values())),
        drift=sum(asdict(drift).values()),
        cold_mode=state.cold_mode,
        spilled=spilled,
        refilled=refilled,
        events=folded["events"],
        seconds=round(seconds, 1),
        spill_per_s=round(places.jobs / max(one["seconds"] for one in producers)),
        process_per_s=round(consumer["fast_jobs"] / max(consumer["fast_seconds"], 0.001)),
        peak_used_memory=sampler["peak_used_memory"],
        details=[f"{what}: {amount:+d}" for what, amount in off.items() if amount],
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr chaos backlog")
    parser.add_argument("--json", action="store_true", help="one line of JSON (the default, and all there is)")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--cap", type=int, default=5000, help="jobs that Valkey may hold")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as folder:
        report = run_backlog(given.jobs, given.cap, Path(folder), loud=True)
    print(json.dumps(asdict(report)))
    sys.exit(0 if report.holds else 1)
