"""Fault of the chaos run: the server and producers are killed in the middle of batches of concurrent enqueues.

What was acknowledged exists exactly once; what was not may or may not exist, and is repeated under the same id. The
server syncs every write (`appendfsync always`): under `everysec` a killed server may lose acknowledged writes, because
it does not write to its file while a sync is in progress. `--appendfsync everysec` shows that (`batch_lost`): the
server is then killed during a sync.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from headrace.embedded.process import GuardedProcess
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey, connect
from tests.chaos.children import kill, stop_all
from tests.chaos.queue_processes import READY_S, WORKER, start_process, started_valkey
from tests.chaos.queue_producer import AWAITS, REFS, THREADS, ProducerNotes, find_file
from tests.chaos.queue_tasks import EXECUTIONS, notes_url
from tests.model.fold import Fold, differences, read_envs, read_events

SHARDS = 2
EVERYSEC = "everysec"
SYNC_S = 10.0  # a sync that is over sooner than a request takes may never be seen
PRODUCERS = {"one": AWAITS, "two": THREADS}
PROGRESS_BYTES = 4000  # of notes between two kills: some hundred calls
LONGEST_PAUSE_S = 0.3
GIVE_UP_S = 1800.0
POLL_S = 0.02


@dataclass(frozen=True)
class BatchReport:
    batch_server_kills: int
    batch_producer_kills: int
    batch_jobs: int  # acknowledged
    batch_failed_calls: int  # repeated under the same id
    batch_unacknowledged: int  # sent, and never acknowledged although the server came back
    batch_lost: int  # acknowledged and never run
    batch_repeated: int  # run more than once: they existed more than once
    batch_unknown: int  # run and never sent
    batch_fold_differences: int  # between the folded metric stream and the queue's own numbers

    @property
    def holds(self) -> bool:
        return not (
            self.batch_unacknowledged
            or self.batch_lost
            or self.batch_repeated
            or self.batch_unknown
            or self.batch_fold_differences
        )


class Producers:
    """Producer processes, the oldest of which is killed now and then."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self.kills = 0
        self._children = {name: self._start(name) for name in PRODUCERS}

    def _start(self, name: str) -> GuardedProcess:
        arguments = (name, PRODUCERS[name], self._url, str(self._folder))
        return start_process(
            f"producer-{name}-{self.kills}", self._folder, {}, "tests.chaos.queue_producer", *arguments
        )

    def kill_oldest(self) -> None:
        name = next(iter(self._children))
        kill(self._children.pop(name))
        self.kills += 1
        self._children[name] = self._start(name)

    def wait_for_progress(self) -> None:
        """Wait until every producer has got on: on a slow machine none would, between two kills."""
        until = time.monotonic() + READY_S
        sizes = {name: self._measure(name) for name in PRODUCERS}
        while any(self._measure(name) < size + PROGRESS_BYTES for name, size in sizes.items()):
            if time.monotonic() > until:
                raise RuntimeError(f"A producer made no progress in {READY_S:g} s.")
            time.sleep(POLL_S)

    def _measure(self, name: str) -> int:
        file = find_file(self._folder, name)
        return file.stat().st_size if file.exists() else 0

    def stop(self) -> None:
        stop_all(list(self._children.values()))

    def read_notes(self) -> dict[str, ProducerNotes]:
        return {name: ProducerNotes.read(self._folder, name) for name in PRODUCERS}


def run_batch_faults(folder: Path, kills: int, appendfsync: str = "always") -> BatchReport:
    """Kill the server and a producer `kills` times each, in turns, while all producers send."""
    folder.mkdir(parents=True)
    dice = random.Random()
    with started_valkey(folder, "--appendfsync", appendfsync) as server:
        producers = Producers(server.url, folder)
        try:
            for _ in range(kills):
                producers.wait_for_progress()
                time.sleep(dice.uniform(0, LONGEST_PAUSE_S))
                if appendfsync == EVERYSEC:
                    wait_for_sync(server.url)
                kill(server.child)
                server.restart()
                server.wait_ready(READY_S)
                producers.wait_for_progress()
                time.sleep(dice.uniform(0, LONGEST_PAUSE_S))
                producers.kill_oldest()
            producers.wait_for_progress()  # a process that has just started would end before its batch
        finally:
            producers.stop()
        with connect(server.url) as redis:
            drain(redis, server.url, folder)
            return judge(redis, server.url, kills, producers)


def wait_for_sync(url: str) -> None:
    """Wait until the server has postponed a write to its file, because a sync is in progress."""
    until = time.monotonic() + SYNC_S
    with connect(url) as redis:
        while time.monotonic() < until:
            found: dict[str, int] = redis.info("persistence")
            if found["aof_pending_bio_fsync"] and found["aof_buffer_length"]:
                return


def drain(redis: Valkey, url: str, folder: Path) -> None:
    """Run all jobs. No worker is killed, so each job that exists once is run once."""
    worker = start_process("worker", folder, {"REDIS_URL": url, "QUEUE_LEASE": "10m"}, *WORKER)
    try:
        until = time.monotonic() + GIVE_UP_S
        while any(state.depth + state.running for state in read_states(redis, SHARDS)) and time.monotonic() < until:
            time.sleep(POLL_S)
    finally:
        stop_all([worker])


def judge(redis: Valkey, url: str, kills: int, producers: Producers) -> BatchReport:
    notes = producers.read_notes()
    sent = {f"{ref}:{job_id}": job_id for name, found in notes.items() for ref, job_id in found.list_jobs(name)}
    acknowledged = {job_id for found in notes.values() for job_id in found.acknowledged}
    with connect(notes_url(url)) as executions:
        found = cast("dict[bytes, bytes]", executions.hgetall(EXECUTIONS))
    times = {name.decode(): int(count) for name, count in found.items()}
    return BatchReport(
        batch_server_kills=kills,
        batch_producer_kills=producers.kills,
        batch_jobs=len(acknowledged),
        batch_failed_calls=sum(found.failures for found in notes.values()),
        batch_unacknowledged=len(sent) - len(acknowledged),
        batch_lost=sum(job_id in acknowledged and name not in times for name, job_id in sent.items()),
        batch_repeated=sum(count > 1 for count in times.values()),
        batch_unknown=sum(name not in sent for name in times),
        batch_fold_differences=sum(len(compare(redis, shard)) for shard in range(SHARDS)),
    )


def compare(redis: Valkey, shard: int) -> Sequence[str]:
    environments = [ref.environment for ref in REFS if ref.environment.shard(SHARDS) == shard]
    states = [state for state in read_states(redis, SHARDS) if state.ref.environment in environments]
    return differences(Fold().add(read_events(redis, shard)), states, read_envs(redis, shard, environments))
