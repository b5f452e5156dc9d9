"""The chaos run itself, in any size: `queue.py` is its command, `test_queue_short.py` a small one."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from headrace.embedded.process import GuardedProcess
from headrace.errors import QueueFull
from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.client import SyncClient
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey, connect
from tests.chaos.children import kill, stop_all
from tests.chaos.queue_batches import run_batch_faults
from tests.chaos.queue_hangs import run_hang_faults
from tests.chaos.queue_processes import WORKER, start_process, started_valkey
from tests.chaos.queue_tasks import EXECUTIONS, notes_url
from tests.chaos.queue_wake import run_wake_faults
from tests.model.fold import Fold, differences, read_envs, read_events

POLL_S = 0.05
BATCH = 1000
MAX_ATTEMPTS = 1000  # a kill costs an attempt, and no job may be buried for that

TENANTS = tuple(EnvRef("org", "project", name) for name in ("noisy", "two", "three", "bursts:{odd}"))
BURSTING, ENV_LIMIT, BURST = TENANTS[3], 8, 1.5
NARROW_LIMIT = 5
SHARES = {  # of all jobs, in percent
    QueueRef("org", "project", "noisy", "mail"): 60,
    QueueRef("org", "project", "noisy", "narrow"): 3,
    QueueRef("org", "project", "two", "mail"): 15,
    QueueRef("org", "project", "three", "mail"): 10,
    QueueRef("org", "project", "three", "narrow"): 2,
    QueueRef("org", "project", "bursts:{odd}", "mail"): 5,
    QueueRef("org", "project", "bursts:{odd}", "a,b"): 5,
}


@dataclass(frozen=True)
class Report:
    jobs: int
    done_distinct: int  # jobs that were run at least once, by the tasks' own notes
    executions: int  # runs in all; more than the jobs, since a killed worker's jobs run again
    kills: int
    events: int
    seconds: float
    lost: int  # accepted and never run
    stuck: int  # accepted and not done at the end
    limit_exceeded: int  # events with more running jobs than a limit allows
    fold_differences: int  # between the folded metric stream and the queue's own numbers
    details: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        return not (self.lost or self.stuck or self.limit_exceeded or self.fold_differences)


class Workers:
    """Worker processes, the oldest of which is killed now and then."""

    def __init__(self, count: int, url: str, folder: Path) -> None:
        self._env = {
            "REDIS_URL": url,
            "QUEUE_LEASE": "2s",
            "WORKER_HEARTBEAT": "500ms",
            "WORKER_POLL": "50ms",
        }
        self._folder = folder
        self._started = 0
        self.kills = 0
        self._children = [self._start() for _ in range(count)]

    def _start(self) -> GuardedProcess:
        self._started += 1
        return start_process(f"worker-{self._started}", self._folder, self._env, *WORKER)

    def kill_oldest(self) -> None:
        kill(self._children.pop(0))
        self.kills += 1
        self._children.append(self._start())

    def stop(self) -> None:
        stop_all(self._children)


@dataclass
class Killer:
    """Kills a worker every so often, if some job was done since: on a slow machine none would ever be."""

    crew: Workers
    every_s: float
    most: float  # kills
    next_at: float
    done: int = 0  # at the last kill

    def turn(self, done: int) -> None:
        if done > self.done and time.monotonic() >= self.next_at and self.crew.kills < self.most:
            self.crew.kill_oldest()
            self.done, self.next_at = done, time.monotonic() + self.every_s


def run_chaos(
    jobs: int,
    workers: int,
    folder: Path,
    *,
    kill_every_s: float = 1.0,
    most_kills: float = math.inf,
    give_up_s: float = 1800.0,
) -> Report:
    began = time.monotonic()
    with started_valkey(folder) as server, SyncClient(server.url) as client:
        accepted = open_queues(client)
        crew = Workers(workers, server.url, folder)
        killer = Killer(crew, kill_every_s, most_kills, began + kill_every_s)
        try:
            batches = list(split(jobs))
            while (batches or unfinished(client.redis)) and time.monotonic() < began + give_up_s:
                more = 0
                if len(batches) > 1 or (batches and crew.kills):  # the last ones outlive a killed worker
                    more = enqueue_what_fits(client, batches)
                accepted += more
                if not more:
                    time.sleep(POLL_S)
                killer.turn(done(client.redis))
        finally:
            crew.stop()
        return judge(client.redis, server.url, accepted, crew.kills, time.monotonic() - began)


def open_queues(client: SyncClient) -> int:
    """Limits are set before the first worker starts, so that they hold for every event. Returns the jobs used up."""
    for ref in SHARES:
        enqueue(client, ref, range(1))
        if ref.queue == "narrow":
            client.limits(ref, NARROW_LIMIT)
    client.limits(BURSTING, ENV_LIMIT, BURST)
    return len(SHARES)


def split(jobs: int) -> Iterator[tuple[QueueRef, range]]:
    """Batches of job numbers per queue; the queues take turns. Each queue has one job already."""
    batches: list[tuple[QueueRef, range]] = []
    for ref, percent in SHARES.items():
        wanted = jobs * percent // 100
        batches += [(ref, range(start, min(start + BATCH, wanted))) for start in range(1, wanted, BATCH)]
    return iter(sorted(batches, key=lambda batch: -batch[1].start))  # taken from the end


def enqueue_what_fits(client: SyncClient, batches: list[tuple[QueueRef, range]]) -> int:
    """The last batch, which is then gone from the list; or none while its queue is full."""
    try:
        count = enqueue(client, *batches[-1])
    except QueueFull:
        return 0
    batches.pop()
    return count


def enqueue(client: SyncClient, ref: QueueRef, numbers: range) -> int:
    ids = [f"{ref.queue}-{number}" for number in numbers]  # an id is taken for its whole environment
    new = [NewJob("note", b"x" * 100, id=job_id, max_attempts=MAX_ATTEMPTS) for job_id in ids]
    assert all(client.enqueue_many(ref, new))
    return len(new)


def unfinished(redis: Valkey) -> int:
    return sum(state.depth + state.scheduled + state.running for state in read_states(redis, 2))


def done(redis: Valkey) -> int:
    return sum(state.odometers.get("ack", 0) for state in read_states(redis, 2))


def judge(redis: Valkey, url: str, accepted: int, kills: int, seconds: float) -> Report:
    states = read_states(redis, 2)
    with connect(notes_url(url)) as notes:
        executions = [int(times) for times in cast("list[bytes]", notes.hvals(EXECUTIONS))]
    folds = [Fold(bursts={BURSTING: BURST}).add(read_events(redis, shard)) for shard in range(2)]
    details = [line for shard, fold in enumerate(folds) for line in compare(redis, shard, fold, states)]
    return Report(
        jobs=accepted,
        done_distinct=len(executions),
        executions=sum(executions),
        kills=kills,
        events=sum(fold.events for fold in folds),
        seconds=round(seconds, 1),
        lost=accepted - len(executions),
        stuck=accepted - sum(state.odometers.get("ack", 0) for state in states),
        limit_exceeded=sum(fold.over_limit for fold in folds),
        fold_differences=len(details),
        details=details[:20],
    )


def compare(redis: Valkey, shard: int, fold: Fold, states: Sequence[QueueState]) -> list[str]:
    own = [state for state in states if state.ref.environment.shard(2) == shard]
    envs = read_envs(redis, shard, [env for env in TENANTS if env.shard(2) == shard])
    return differences(fold, own, envs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr chaos queue")
    parser.add_argument("--json", action="store_true", help="one line of JSON (the default, and all there is)")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--wake-kills", type=int, default=20, help="workers killed between wake and dequeue")
    parser.add_argument("--batch-kills", type=int, default=20, help="kills of the server and of producers, each")
    parser.add_argument("--appendfsync", default="always", help="of the server of --batch-kills (default always)")
    parser.add_argument("--hang-rounds", type=int, default=10, help="stops of workers whose tasks hang")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as name:
        folder = Path(name)
        reports = (
            run_chaos(given.jobs, given.workers, folder),
            run_wake_faults(folder / "wake", given.wake_kills),
            run_batch_faults(folder / "batches", given.batch_kills, given.appendfsync),
            run_hang_faults(folder / "hangs", given.hang_rounds),
        )
    merged: dict[str, object] = {}
    for report in reports:
        merged |= asdict(report)
    print(json.dumps(merged))
    sys.exit(0 if all(report.holds for report in reports) else 1)
