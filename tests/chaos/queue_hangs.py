"""Fault of the chaos run: tasks hang past their time limits, in workers that also run innocent jobs.

Hanging tasks run on the event loop, in threads and in child processes, some of which ignore SIGTERM. Their time limits
are shorter and longer than the grace period, so that workers are stopped while such tasks run. No worker is killed, so
no innocent job may lose an attempt. A worker with too many hung threads ends by itself and is replaced.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.embedded.process import GuardedProcess
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import SyncClient
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey, connect
from tests.chaos.children import read_pid
from tests.chaos.queue_processes import READY_S, WORKER, start_process, started_valkey
from tests.chaos.queue_tasks import EXECUTIONS, HANGING, INNOCENT, REPEATED, notes_url

SHARDS = 2
REFS = tuple(QueueRef("org", "hangs", env, "mail") for env in ("one", "two"))
WORKERS = 2
GRACE_S = 1.0
STOP_S = GRACE_S + 5.0
SLACK_S = 25.0  # for a machine that has much else to do: a worker that waits for a hung task takes 1000 s
INNOCENT_PER_ROUND = 60
PER_KIND = 1  # hanging jobs of a round, of each kind
GIVE_UP_S = 600.0
POLL_S = 0.02
EXIT_RESTART = 75
MAX_BAD_EXITS = 5


@dataclass(frozen=True)
class HangReport:
    hang_jobs: int  # whose tasks hang
    hang_innocent: int
    hang_stops: int
    hang_recycled: int  # workers that ended by themselves, because too many threads hung
    hang_longest_stop_s: float
    hang_late_stops: int  # workers that did not end within the grace period and 5 s (and SLACK_S)
    hang_bad_exits: int  # workers that ended with another exit code than 0, or 75 by themselves
    hang_lost: int  # innocent jobs that were never run
    hang_lost_attempts: int  # innocent jobs that were run and had lost an attempt before, or failed
    hang_unfinished: int  # jobs that were neither done nor dead at the end
    hang_survivors: int  # jobs whose tasks hang and that are not dead at the end

    @property
    def holds(self) -> bool:
        return not (
            self.hang_late_stops
            or self.hang_bad_exits
            or self.hang_lost
            or self.hang_lost_attempts
            or self.hang_unfinished
            or self.hang_survivors
        )


class HangingWorkers:
    """Workers that are stopped, the oldest first, and replaced."""

    def __init__(self, url: str, folder: Path) -> None:
        self._env = {
            "REDIS_URL": url,
            "WORKER_CONCURRENCY": "12",
            "WORKER_GRACE": f"{GRACE_S:g}s",
            "WORKER_MAX_HUNG_THREADS": "5",
            "QUEUE_LEASE": "10m",  # no lease may expire because the machine stands still
        }
        self._folder = folder
        self._started = 0
        self.stops = self.late_stops = self.bad_exits = self.recycled = 0
        self.longest_stop_s = 0.0
        self._children = [self._start() for _ in range(WORKERS)]

    def _start(self) -> GuardedProcess:
        self._started += 1
        child = start_process(f"hanging-{self._started}", self._folder, self._env, *WORKER)
        read_pid(child)
        return child

    def replace_ended(self) -> None:
        """Start a worker for each that has ended by itself."""
        for child in list(self._children):
            if (code := child.exit_code()) is not None:
                self.recycled += 1
                self.bad_exits += code != EXIT_RESTART
                if self.bad_exits > MAX_BAD_EXITS:
                    raise RuntimeError(f"Workers end by themselves. {child.describe_log()}")
                self._children.remove(child)
                self._children.append(self._start())

    def stop_oldest(self) -> None:
        self._stop(self._children.pop(0))
        self._children.append(self._start())

    def stop_all(self) -> None:
        while self._children:
            self._stop(self._children.pop(0))

    def _stop(self, child: GuardedProcess) -> None:
        began = time.monotonic()
        child.request_stop()
        while child.exit_code() is None and time.monotonic() < began + STOP_S + SLACK_S:
            time.sleep(POLL_S)
        self.longest_stop_s = max(self.longest_stop_s, time.monotonic() - began)
        self.stops += 1
        if child.exit_code() is None:
            self.late_stops += 1
            child.stop(0.0)
        else:
            self.bad_exits += child.exit_code() not in (0, EXIT_RESTART)


def run_hang_faults(folder: Path, rounds: int) -> HangReport:
    """Enqueue hanging and innocent jobs and stop a worker, `rounds` times; then let the rest end."""
    folder.mkdir(parents=True)
    with started_valkey(folder) as server, SyncClient(server.url) as client, connect(notes_url(server.url)) as notes:
        workers = HangingWorkers(server.url, folder)
        try:
            for number in range(rounds):
                enqueue_round(client, number)
                wait_for_some(notes, number, workers)
                workers.stop_oldest()
            until = time.monotonic() + GIVE_UP_S
            while count_unfinished(read_states(client.redis, SHARDS)) and time.monotonic() < until:
                workers.replace_ended()
                time.sleep(POLL_S)
        finally:
            workers.stop_all()
        return judge(client.redis, notes, rounds, workers)


def enqueue_round(client: SyncClient, number: int) -> None:
    """Enqueue hanging jobs among innocent ones. A hanging job has one attempt, so it is dead after its time limit."""
    hanging = [
        NewJob(task, b"", id=f"{task}-{number}-{i}", max_attempts=1) for i in range(PER_KIND) for task in HANGING
    ]
    innocent = [
        NewJob(INNOCENT[i % len(INNOCENT)], b"", id=f"innocent-{number}-{i}") for i in range(INNOCENT_PER_ROUND)
    ]
    jobs = [*hanging, *innocent]
    random.Random(number).shuffle(jobs)
    for position, ref in enumerate(REFS):
        client.enqueue_many(ref, jobs[position :: len(REFS)])


def wait_for_some(notes: Valkey, number: int, workers: HangingWorkers) -> None:
    """Wait until half of the innocent jobs of a round have run: the others and hanging ones are in the workers."""
    wanted = number * INNOCENT_PER_ROUND + INNOCENT_PER_ROUND // 2
    until = time.monotonic() + READY_S
    while notes.hlen(EXECUTIONS) < wanted and time.monotonic() < until:
        workers.replace_ended()
        time.sleep(POLL_S)


def count_unfinished(states: list[QueueState]) -> int:
    return sum(state.depth + state.scheduled + state.running for state in states)


def judge(redis: Valkey, notes: Valkey, rounds: int, workers: HangingWorkers) -> HangReport:
    states = read_states(redis, SHARDS)
    hanging, innocent = rounds * PER_KIND * len(HANGING), rounds * INNOCENT_PER_ROUND
    nacks = sum(state.odometers.get("nack", 0) for state in states)  # a hanging job is buried at its first failure
    return HangReport(
        hang_jobs=hanging,
        hang_innocent=innocent,
        hang_stops=workers.stops,
        hang_recycled=workers.recycled,
        hang_longest_stop_s=round(workers.longest_stop_s, 1),
        hang_late_stops=workers.late_stops,
        hang_bad_exits=workers.bad_exits,
        hang_lost=innocent - notes.hlen(EXECUTIONS),
        hang_lost_attempts=notes.scard(REPEATED) + nacks,
        hang_unfinished=count_unfinished(states),
        hang_survivors=hanging - sum(state.dead for state in states),
    )
