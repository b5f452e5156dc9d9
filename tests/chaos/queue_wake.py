"""Fault of the chaos run: a worker dies after it was woken and before it took a job. Another must start the jobs.

The wake key was popped by the dead worker, so no other worker is notified by the enqueue. Idle workers look for jobs
only once a minute here: if maintenance did not set the key again, the jobs would wait that long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import SyncClient
from headrace.valkey.connect import Valkey, connect
from tests.chaos.children import kill, stop_all
from tests.chaos.queue_processes import READY_S, WORKER, start_process, started_valkey
from tests.chaos.queue_tasks import EXECUTIONS, notes_url

REFS = tuple(QueueRef("org", "wakes", env, "mail") for env in ("one", "two", "three"))  # in both shards
JOBS = 3  # of a call
MAX_VICTIMS = 1000
MAX_CALLS = 1000  # until the worker that is to be killed is woken
LIMIT_S = 45.0  # until the jobs must have started; shorter than the wait of idle workers
POLL_S = 0.02


@dataclass(frozen=True)
class WakeReport:
    wake_kills: int  # of workers that had been woken for jobs that no worker had started
    wake_longest_s: float  # from a kill until the jobs had run
    wake_unstarted: int  # jobs that no other worker started in time

    @property
    def holds(self) -> bool:
        return not self.wake_unstarted


def run_wake_faults(folder: Path, kills: int) -> WakeReport:
    folder.mkdir(parents=True)
    with started_valkey(folder) as server, SyncClient(server.url) as client, connect(notes_url(server.url)) as notes:
        env = {"REDIS_URL": server.url, "WORKER_POLL": "60s", "WORKER_HEARTBEAT": "500ms", "QUEUE_LEASE": "10s"}
        rescuer = start_process("rescuer", folder, env, *WORKER)
        made, longest_s, unstarted = 0, 0.0, 0
        try:
            # A worker that starts looks for jobs in any case, so the one that remains must be waiting.
            if wait_until_run(notes, enqueue(client, "first", 0), READY_S):
                raise RuntimeError(f"The worker did not start. {rescuer.describe_log()}")
            for number in range(MAX_VICTIMS):
                if made == kills:
                    break
                file = folder / f"woken-{number}"
                victim = start_process(f"victim-{number}", folder, env, "tests.chaos.queue_wake_worker", str(file))
                try:
                    jobs = enqueue_until_woken(client, notes, f"{number}", file)
                    made += len(list_missing(notes, jobs)) == len(jobs)  # else it was woken in vain
                finally:
                    kill(victim)
                began = time.monotonic()
                missing = wait_until_run(notes, jobs, LIMIT_S)
                longest_s = max(longest_s, time.monotonic() - began)
                unstarted += len(missing)
        finally:
            stop_all([rescuer])
        return WakeReport(made, round(longest_s, 1), unstarted)


def enqueue(client: SyncClient, name: str, call: int) -> list[str]:
    """Enqueue the jobs of one call, and return their names in the notes."""
    ref = REFS[call % len(REFS)]
    ids = [f"{name}-{call}-{job}" for job in range(JOBS)]
    client.enqueue_many(ref, [NewJob("note", b"", id=job_id) for job_id in ids])
    return [f"{ref}:{job_id}" for job_id in ids]


def enqueue_until_woken(client: SyncClient, notes: Valkey, name: str, file: Path) -> list[str]:
    """Enqueue jobs, one call after the other, until the enqueue of one has woken the worker that creates `file`. Return
    the jobs of that call. The server wakes the worker that has waited longest, so the workers take turns."""
    for call in range(MAX_CALLS):
        jobs = enqueue(client, name, call)
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            if file.exists():
                return jobs
            if not list_missing(notes, jobs):
                break
            time.sleep(POLL_S)
    raise RuntimeError(f"{MAX_CALLS} calls did not wake the worker that creates {file}")


def wait_until_run(notes: Valkey, jobs: list[str], timeout_s: float) -> list[str]:
    """Wait until jobs have run, and return those that have not."""
    until = time.monotonic() + timeout_s
    while (missing := list_missing(notes, jobs)) and time.monotonic() < until:
        time.sleep(POLL_S)
    return missing


def list_missing(notes: Valkey, jobs: list[str]) -> list[str]:
    return [job for job in jobs if not notes.hexists(EXECUTIONS, job)]
